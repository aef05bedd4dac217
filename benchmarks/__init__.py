"""Ours beside what a user could pick today: `make bench`, or `python -m benchmarks` where the peers are installed.

`cases.py` is the table of what is measured, `peers/` has a file for each library, `timing.py` and `memory.py` measure,
`bench.py` goes through the table, and `page.py` writes `docs/benchmarks.md` from what was measured.
"""
