"""`python -m framework.cli`: the command where no script is installed."""

from __future__ import annotations

from framework.cli import main

if __name__ == "__main__":
    main()
