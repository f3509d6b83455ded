"""A worker of the pipeline, with a store from which keys are deleted all the time.

python -m tests.chaos.worker LOG STATE GUARANTEE [careless]      runs it until it is told to stop; one
    that is careless does not look whether deletions were removed from a changelog
"""

from __future__ import annotations

import sys

from changelog.records import PartitionOffsets
from tests.workers.pipeline import work


def main() -> None:
    log, state, guarantee, *care = sys.argv[1:]
    if care == ["careless"]:
        PartitionOffsets.must_start_over = lambda *_: False  # type: ignore[method-assign]
    work(log, guarantee, recent=True, state_dir=state)


if __name__ == "__main__":
    main()
