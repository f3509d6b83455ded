"""`python -m strandline`: the command where no script is installed."""

from __future__ import annotations

import sys

from strandline.framework.cli import main

if __name__ == "__main__":
    sys.argv[0] = "strandline"  # the name that `groups members`, for one, shows
    main()
