"""`python -m regard.cli` is `regard`."""

import sys

from regard.cli import main

sys.exit(main())
