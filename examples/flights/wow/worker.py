"""A worker's process: `python -m examples.flights.wow.worker DIR GUARANTEE`.

After SIGUSR1 it dies at the worst possible moment: at its next commit, when the outputs are in the
log and the offsets are not. With exactly_once there is no such moment, so it dies at once.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from dataclasses import replace
from typing import Any, cast, get_args

from examples.flights.app import app
from strandline import changelog
from strandline.changelog.broker import Broker
from strandline.framework.options import Guarantee


class Deadly:
    """Broker that kills its process after a signal."""

    def __init__(self, broker: Broker, *, at_offsets: bool) -> None:
        self._broker = broker
        self._at_offsets = at_offsets
        self._dies_at_offsets = False
        signal.signal(signal.SIGUSR1, self._on_signal)

    def commit_offsets(self, *arguments: Any, **options: Any) -> None:
        """Commit offsets, or die after a signal: with at_least_once they are committed last."""
        if self._dies_at_offsets:
            _die()
        self._broker.commit_offsets(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def _on_signal(self, *_: object) -> None:
        self._dies_at_offsets = True
        if not self._at_offsets:
            _die()


def main() -> None:
    """Work until the process is killed or ended by a signal."""
    folder, guarantee = sys.argv[1:]
    assert guarantee in get_args(Guarantee)
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    with changelog.open(folder) as log:
        deadly = Deadly(log.broker, at_offsets=guarantee == "at_least_once")
        app.log = cast("Broker", deadly)
        app.session.state_dir = f"{folder}/state"
        app.session.options = replace(
            app.session.options,
            processing_guarantee=cast("Guarantee", guarantee),
            commit_interval_ms=50,
            session_timeout_ms=2_000,
        )
        app.run(progress=False)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
