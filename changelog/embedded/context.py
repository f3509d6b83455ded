"""State that all parts of one open log share: storage, clock, durability, settings and counters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from strandline.changelog.clock import Clock
from strandline.changelog.embedded.metrics import LogCounters
from strandline.changelog.embedded.traffic import Traffic
from strandline.changelog.log_config import LogConfig
from strandline.changelog.storage import Durability, Storage

SYNC_THREADS = 8
"""Maximum number of fsyncs that run at the same time."""

T = TypeVar("T")
R = TypeVar("R")


class Notifier:
    """Notifies waiting readers that some partition has changed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.version = 0

    def notify(self) -> None:
        """Increment the version and wake up all waiting readers."""
        with self._changed:
            self.version += 1
            self._changed.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        """Return when the version is no longer `seen`, at the latest after `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self.version != seen, seconds)


class Seen(NamedTuple, Generic[R]):
    """Result of a look at partitions."""

    version: int
    """Version of the notifier before the look."""
    found: R
    is_new: bool
    """True if a reader that waits for something new has it."""


@dataclass
class LogContext:
    """The context of one open log, passed to each of its parts."""

    storage: Storage
    clock: Clock
    durability: Durability = "fsync"
    """"fsync": an acknowledged append survives a power cut; "os": it survives `kill -9`."""
    config: LogConfig = field(default_factory=LogConfig)
    """Present settings of the log as a whole. The catalog replaces them."""
    notifier: Notifier = field(default_factory=Notifier)
    counters: LogCounters = field(default_factory=LogCounters)
    traffic: Traffic = field(default_factory=Traffic)
    """Appends and commits under way. The cleaner yields to them."""
    pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(SYNC_THREADS, "strandline-sync")
    )
    """Threads for concurrent fsyncs of several files. The first use starts them."""

    def __post_init__(self) -> None:
        self._begun_ms = self.clock.now_ms() - int(self.clock.monotonic() * 1000)

    def steady_ms(self) -> int:
        """Return milliseconds since the epoch at the opening, plus the time elapsed since then.

        Changes of the wall clock do not affect it, so it measures how long something was idle.
        """
        return self._begun_ms + int(self.clock.monotonic() * 1000)

    def in_parallel(self, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return the results of `call` for each item, on several threads if possible."""
        # One part for each thread: to hand over every item by itself costs more than a call does.
        parts = [items[at::SYNC_THREADS] for at in range(min(SYNC_THREADS, len(items)))]
        results: list[Any] = [None] * len(items)
        for at, done in enumerate(self._calls_of_parts(call, parts)):
            results[at::SYNC_THREADS] = done
        return results

    def _calls_of_parts(
        self, call: Callable[[T], R], parts: Sequence[Sequence[T]]
    ) -> Iterable[list[R]]:
        def call_all(part: Sequence[T]) -> list[R]:
            return [call(item) for item in part]

        if len(parts) > 1:
            try:
                return list(self.pool.map(call_all, parts))
            except RuntimeError:
                pass  # the interpreter is shutting down and starts no new threads
        return map(call_all, parts)

    def poll_until(
        self,
        look: Callable[[], R],
        is_new: Callable[[R], bool],
        seconds: float,
        seen: Seen[R] | None = None,
    ) -> Seen[R]:
        """Call `look` until `is_new` accepts its result, at most for `seconds`.

        `look` is not called while nothing has changed since its last result, which may be that of
        an earlier poll (`seen`) for the same positions.
        """
        deadline = self.clock.monotonic() + seconds
        while True:
            version = self.notifier.version  # before `look`, so that no change is missed
            if seen is None or seen.version != version:
                found = look()
                seen = Seen(version, found, is_new(found))
            remaining = deadline - self.clock.monotonic()
            if remaining <= 0 or seen.is_new:
                return seen
            self.notifier.wait(version, remaining)
            if self.notifier.version == version:
                return seen  # the time is over
