"""Blows that strike Faust workers and the owner of their log."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable

from tests.chaos.field import wait_for
from tests.faust.chaos_field import READY, FaustField

PAUSES = (0.2, 0.5, 1.0, 2.0)
FREEZE = (0.5, 2.0, 5.0)
"""Seconds. The session timeout is 3 s."""


class FaustBlows:
    """Blows at random, drawn from a seed. After each, all workers run again."""

    def __init__(self, field: FaustField, seed: int, only: str = "") -> None:
        self.field = field
        self.count: Counter[str] = Counter()
        self.killed_in_a_commit = 0
        self.chance = random.Random(seed)
        wanted = only.split(",")
        self._kinds = [
            (weight, blow)
            for weight, blow in (
                (5, self.kill_worker),
                (1, self.kill_starting),
                (3, self.kill_in_a_commit),
                (4, self.freeze_worker),
                (3, self.restart_worker),
                (2, self.come_and_go),
                (2, self.kill_owner),
                (1, self.lose_disk),
                (1, self.kill_everything),
            )
            if any(part in blow.__name__ for part in wanted)
        ]
        if not self._kinds:
            raise SystemExit(f"--only {only}: no blow has that in its name")

    def every_kind(self) -> None:
        """Strike one blow of each kind."""
        for _, blow in self._kinds:
            self._do(blow)

    def strike(self) -> None:
        """Strike the next blow."""
        weights = [weight for weight, _ in self._kinds]
        [(_, blow)] = self.chance.choices(self._kinds, weights)
        self._do(blow)
        self._pause(self.chance.choice(PAUSES))

    def _do(self, blow: Callable[[], None]) -> None:
        blow()
        self.count[blow.__name__.replace("_", " ")] += 1

    def kill_worker(self) -> None:
        slot = self._ready()
        self._pause(self.chance.choice(PAUSES))
        self.field.slots[slot].kill()
        self._pause(self.chance.choice(PAUSES))
        self.field.start(slot)

    def kill_starting(self) -> None:
        """Kill a worker while it starts, joins or restores."""
        slot = self._any()
        self.field.slots[slot].kill()
        self.field.start(slot)
        self._pause(self.chance.choice(PAUSES))
        self.field.slots[slot].kill()
        self.field.start(slot)

    def kill_in_a_commit(self) -> None:
        """Kill a worker after its outputs are written and before they are committed."""
        slot = self._ready()
        worker = self.field.slots[slot]
        with contextlib.suppress(TimeoutError):  # the report counts how often it worked
            os.kill(worker.pid, signal.SIGHUP)
            wait_for(lambda: not worker.is_running, 5, "its next commit")
            self.killed_in_a_commit += 1
        worker.kill()
        self.field.start(slot)

    def freeze_worker(self) -> None:
        worker = self.field.slots[self._ready()]
        worker.freeze()
        self._pause(self.chance.choice(FREEZE))
        worker.thaw()

    def restart_worker(self) -> None:
        slot = self._any()
        self.field.slots[slot].stop()
        self.field.start(slot)

    def come_and_go(self) -> None:
        """Add a worker for a while."""
        slot = self.field.add()
        worker = self.field.slots[slot]
        wait_for(lambda: READY in worker.text() or not worker.is_running, 60, "a new worker")
        self._pause(self.chance.choice(PAUSES))
        worker.stop()
        del self.field.slots[slot]
        del self.field.ports[slot]

    def kill_owner(self) -> None:
        """Kill the process that owns the log, a worker or one that only does this."""
        pid = self.field.owner()
        if pid is None:
            return  # a cluster has none
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: self.field.owner() not in (None, pid), 30, "another owner")
        for slot, worker in enumerate(self.field.slots):
            if worker.pid == pid:
                worker.kill()
                self.field.start(slot)

    def lose_disk(self) -> None:
        """Kill a worker, and remove its tables."""
        slot = self._any()
        self.field.slots[slot].kill()
        shutil.rmtree(self.field.state(slot), ignore_errors=True)
        self.field.start(slot)

    def kill_everything(self) -> None:
        """Kill all workers at once."""
        self.field.kill_all()
        for slot in range(len(self.field.slots)):
            self.field.start(slot)

    def _any(self) -> int:
        return self.chance.randrange(len(self.field.slots))

    def _ready(self) -> int:
        """Return the slot of a worker, once that handles records, or after a minute."""
        slot = self._any()
        worker = self.field.slots[slot]
        with contextlib.suppress(TimeoutError):  # at the end everything must be handled
            wait_for(lambda: READY in worker.text() or not worker.is_running, 60, "a worker")
        return slot

    @staticmethod
    def _pause(seconds: float) -> None:
        """Wait for a fixed time, which is the length of the blow."""
        threading.Event().wait(seconds)
