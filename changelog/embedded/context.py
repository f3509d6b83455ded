"""What every part of one open log shares: files, time, durability, settings, the bell for readers, counters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeVar

from strandline.changelog.clock import Clock
from strandline.changelog.embedded.metrics import LogCounters
from strandline.changelog.embedded.traffic import Traffic
from strandline.changelog.log_config import LogConfig
from strandline.changelog.storage import Storage

Durability = Literal["fsync", "os"]
SYNC_THREADS = 8

T = TypeVar("T")
R = TypeVar("R")


class Notifier:
    """Tells waiting readers that some partition has something new."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.version = 0

    def notify(self) -> None:
        """Something is new."""
        with self._changed:
            self.version += 1
            self._changed.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        """Return when the version is past `seen`, at the latest after `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self.version != seen, seconds)


@dataclass
class LogContext:
    """The world of one open log, passed in."""

    storage: Storage
    clock: Clock
    durability: Durability = "fsync"
    """fsync: an acknowledged append survives a power cut; os: it survives `kill -9`."""
    config: LogConfig = field(default_factory=LogConfig)
    """What is set for the log as a whole, at the moment; changed by the catalog."""
    notifier: Notifier = field(default_factory=Notifier)
    counters: LogCounters = field(default_factory=LogCounters)
    traffic: Traffic = field(default_factory=Traffic)
    """Appends and commits; the cleaner gives way to them."""
    pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(SYNC_THREADS, "strandline-sync")
    )
    """For fsyncs of several files at once; it has no thread until the first."""

    def __post_init__(self) -> None:
        self._begun_ms = self.clock.now_ms() - int(self.clock.monotonic() * 1000)

    @cached_property
    def incarnation(self) -> str:
        """Identifier of this opening of the log, as epochs name it: see `changelog.history`.

        Drawn by the first append. If two threads draw it at once both identifiers are used, which
        is harmless: no other opening has either of them.
        """
        return self.clock.new_id()

    def steady_ms(self) -> int:
        """The time in ms as it was at the opening, and goes on whatever becomes of the wall clock.

        For how long something has been idle: a clock that is set forward makes nobody idle.
        """
        return self._begun_ms + int(self.clock.monotonic() * 1000)

    def in_parallel(self, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`call` of each item, side by side where that is possible."""
        if len(items) > 1:
            try:
                return list(self.pool.map(call, items))
            except RuntimeError:
                pass  # no new threads while the interpreter shuts down
        return [call(item) for item in items]

    def poll_until(self, look: Callable[[], R], is_new: Callable[[R], bool], seconds: float) -> R:
        """What `look` finds, as soon as something in it is new, at the latest after `seconds`."""
        deadline = self.clock.monotonic() + seconds
        while True:
            seen = self.notifier.version
            found = look()
            remaining = deadline - self.clock.monotonic()
            if remaining <= 0 or is_new(found):
                return found
            self.notifier.wait(seen, remaining)
