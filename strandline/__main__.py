"""Entry point of `python -m strandline`: the command line where no script is installed."""

from __future__ import annotations

import sys

from strandline.framework.cli import main

if __name__ == "__main__":
    sys.argv[0] = "strandline"  # shown as the program's name, for example by `groups members`
    main()
