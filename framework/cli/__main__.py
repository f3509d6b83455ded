"""`python -m framework.cli`: the command where no script is installed."""

from __future__ import annotations

import sys

from framework.cli import main

if __name__ == "__main__":
    sys.argv[0] = "strandline"  # as which it is known to others, `groups members` for one
    main()
