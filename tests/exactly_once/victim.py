"""A worker that dies, or falls asleep, at one point of its next commit.

    python -m tests.exactly_once.victim LOG NAME STATE GUARANTEE POINT FATE

POINT is "before" or "after" a step: one of the log's calls, or "checkpoint". FATE is "dies" or
"sleeps". If it is woken up, it runs until SIGTERM.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from strandline.changelog.clock import Clock
from strandline.framework.container import committer
from strandline.statestore.store import AnyStore
from tests.kafka.apps import Totals
from tests.kafka.apps import worker as made_of

STATUS = 9
"""Exit status with which it dies."""
ASLEEP = "this process falls asleep\n"


def main() -> None:
    url, name, state, guarantee, point, fate = sys.argv[1:]
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    made = made_of(name, url, Path(state), guarantee)
    with made.app:
        strike(made, *point.split(), fate=die if fate == "dies" else sleep)
        made.app.run(progress=False)


def die() -> None:
    os._exit(STATUS)


def sleep() -> None:
    sys.stderr.write(ASLEEP)
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGSTOP)


def strike(made: Totals, when: str, step: str, *, fate: Callable[[], None]) -> None:
    """Call `fate` before or after the first time that the worker takes this step."""
    on: Any = committer if step == "checkpoint" else made.app.broker()
    name = "checkpoint_if_due" if step == "checkpoint" else step
    take = checkpoint if step == "checkpoint" else getattr(on, name)

    def taken(*arguments: Any, **options: Any) -> Any:
        setattr(on, name, take)
        if when == "before":
            fate()
        answer = take(*arguments, **options)
        if when == "after":
            fate()
        return answer

    setattr(on, name, taken)


def checkpoint(stores: list[AnyStore], _: Clock) -> None:
    """Checkpoint all stores, due or not."""
    for store in stores:
        store.checkpoint()


if __name__ == "__main__":
    main()
