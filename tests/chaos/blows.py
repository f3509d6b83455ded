"""Blows that strike the workers of any log."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable

from tests.chaos.field import Field, wait_for
from tests.chaos.report import Report

PAUSES = (0.2, 0.5, 1.0, 2.0)
FREEZE = (0.5, 1.5, 3.5)
"""Seconds. The session timeout is 2 s."""


class Blows:
    """Blows for any log and its workers, one after another, drawn from the seed."""

    def __init__(self, on: Field, report: Report, seed: int, only: str) -> None:
        self.field = on
        self.report = report
        self.chance = random.Random(seed)
        wanted = only.split(",")
        self._kinds = [
            (weight, blow)
            for weight, blow in self.kinds()
            if any(part in blow.__name__ for part in wanted)
        ]
        if not self._kinds:
            names = ", ".join(blow.__name__ for _, blow in self.kinds())
            raise SystemExit(f"--only {only}: no blow has that in its name; there are {names}")

    def kinds(self) -> list[tuple[int, Callable[[], None]]]:
        """Return all blows with their weights."""
        return [
            (5, self.kill_worker),
            (2, self.kill_in_a_commit),
            (4, self.freeze_worker),
            (3, self.restart_worker),
            (2, self.come_or_go),
            (3, self.delete_what_was_read),
        ]

    def strike(self) -> None:
        """Strike the next blow. Afterwards everything runs again."""
        weights = [weight for weight, _ in self._kinds]
        [(_, blow)] = self.chance.choices(self._kinds, weights)
        self._do(blow)
        pause(self.chance.choice(PAUSES))

    def every_kind(self) -> None:
        """Strike one blow of each kind."""
        for _, blow in self._kinds:
            self._do(blow)

    def _do(self, blow: Callable[[], None]) -> None:
        blow()
        self.report.blows[blow.__name__.replace("_", " ")] += 1

    def kill_worker(self) -> None:
        slot = self.chance.choice(self.field.running())
        self.field.process(slot).kill()
        pause(self.chance.choice(PAUSES))
        self.field.start(slot)

    def kill_in_a_commit(self) -> None:
        """Kill a worker after its outputs are written and before the input offsets are
        committed."""
        slot = self.chance.choice(self.field.running())
        process = self.field.process(slot)
        with contextlib.suppress(TimeoutError):  # the report counts how often it worked
            wait_for(lambda: process.has_stores or not process.is_running, 60, "a worker's stores")
            process.send_usr1()
            wait_for(lambda: not process.is_running, 30, "its next commit")
            self.report.killed_in_a_commit += 1
        process.kill()
        self.field.start(slot)

    def freeze_worker(self) -> None:
        slot = self.chance.choice(self.field.running())
        self.field.process(slot).freeze()
        pause(self.chance.choice(FREEZE))
        self.field.process(slot).thaw()

    def restart_worker(self) -> None:
        slot = self.chance.choice(self.field.running())
        self.report.wrong += self.field.end(slot)
        self.field.start(slot)

    def come_or_go(self) -> None:
        """Add a worker for a while, or stop one for a while."""
        if len(self.field.slots) > 2 and self.chance.random() < 0.5:
            slot = self.chance.choice(self.field.running())
            self.report.wrong += self.field.end(slot)
            pause(2 * self.chance.choice(PAUSES))
            self.field.start(slot)
        else:
            self.field.slots.append(None)
            self.field.start(len(self.field.slots) - 1)
            pause(2 * self.chance.choice(PAUSES))
            self.report.wrong += self.field.end(-1)
            del self.field.slots[-1]

    def delete_what_was_read(self) -> None:
        self.report.deleted += self.field.delete_read()


def pause(seconds: float) -> None:
    """Wait for a fixed time, which is the length of the blow."""
    threading.Event().wait(seconds)
