"""A worker of the pipeline, with a store from which keys are deleted all the time.

    python -m tests.chaos.worker LOG STATE GUARANTEE [careless]      runs it until SIGTERM

A careless worker does not check whether tombstones were removed from a changelog.

After SIGUSR1 the worker kills itself in its next commit, after outputs are written and before the
offsets are committed. On SIGUSR2 it prints the stacks of its threads.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from types import ModuleType
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
    step = "commit_until_known" if guarantee == "exactly_once" else "_commit_offsets"
    die_before(commit, step)
    work(log, guarantee, recent=True, windows=True, state_dir=state)


def die_before(module: ModuleType, step: str, on: signal.Signals = signal.SIGUSR1) -> None:
    """Kill the process before this step of its next commit, once a signal has arrived."""
    take = getattr(module, step)
    armed = False

    def arm(*_: Any) -> None:
        nonlocal armed
        armed = True

    def taken(*arguments: Any, **named: Any) -> None:
        if armed:
            os.kill(os.getpid(), signal.SIGKILL)
        take(*arguments, **named)

    setattr(module, step, taken)
    signal.signal(on, arm)


if __name__ == "__main__":
    main()
