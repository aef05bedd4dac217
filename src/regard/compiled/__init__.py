"""What compiled engines share: machine code and its cache on disk, vector instructions, threads."""
