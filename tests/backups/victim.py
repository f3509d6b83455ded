"""A process that backs up, restores, or writes, and prints its progress, until it is killed."""

from __future__ import annotations

import sys
from pathlib import Path

from strandline.changelog import backups
from strandline.changelog.errors import StrandlineError


def main() -> None:
    doing, source, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    try:
        if doing == "backup":
            backups.backup(source, target, progress=said)
        else:
            backups.restore(source, target, progress=said)
    except StrandlineError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    else:
        print("done", flush=True)


def said(done: int, total: int) -> None:
    print(done, total, flush=True)


if __name__ == "__main__":
    main()
