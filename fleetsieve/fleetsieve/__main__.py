"""`python -m fleetsieve` is the command `fleetsieve`."""

import sys

from fleetsieve.cli import main

sys.exit(main())
