"""A worker of the pipeline, with a store from which keys are deleted all the time.

python -m tests.chaos.worker LOG STATE GUARANTEE [careless]      runs it until it is told to stop; one
    that is careless does not look whether deletions were removed from a changelog

SIGUSR1 dooms it: it kills itself in its next commit, when outputs are written and the offsets are not
committed yet. SIGUSR2 makes it say what its threads are doing.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from typing import Any

from strandline.changelog.records import PartitionOffsets
from strandline.framework.container import commit
from tests.workers.pipeline import work


def main() -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2)
    log, state, guarantee, *care = sys.argv[1:]
    if care == ["careless"]:
        PartitionOffsets.must_start_over = lambda *_: False  # type: ignore[method-assign]
    doom_before("commit_until_known" if guarantee == "exactly_once" else "_commit_offsets")
    work(log, guarantee, recent=True, state_dir=state)


def doom_before(step: str) -> None:
    """A worker that is doomed does not take this step of the commit."""
    take = getattr(commit, step)
    doomed = False

    def doom(*_: Any) -> None:
        nonlocal doomed
        doomed = True

    def taken(*arguments: Any, **named: Any) -> None:
        if doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        take(*arguments, **named)

    setattr(commit, step, taken)
    signal.signal(signal.SIGUSR1, doom)


if __name__ == "__main__":
    main()
