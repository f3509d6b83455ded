"""Time and random identifiers, passed in as arguments so that tests control both."""

from __future__ import annotations

import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """Source of time and random identifiers."""

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never decrease and include suspend time, for deadlines."""
        ...

    def awake(self) -> float:
        """Return seconds that never decrease and exclude suspend time, to judge silence by."""
        ...

    def new_id(self) -> str:
        """Return a new unique identifier of 32 hexadecimal digits."""
        ...


class SystemClock:
    """The machine's own clock and random identifiers."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.clock_gettime(_SUSPEND_AWARE)

    def awake(self) -> float:
        return time.clock_gettime(_AWAKE)

    def new_id(self) -> str:
        return uuid.uuid4().hex


class ManualClock:
    """A clock that moves only when `advance` or `jump` is called, for tests.

    >>> clock = ManualClock(now_ms=1_000)
    >>> clock.advance(250); clock.now_ms(), clock.monotonic()
    (1250, 0.25)
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._elapsed_ms = 0
        self._awake_ms = 0
        self._ids = 0

    def advance(self, ms: int) -> None:
        """Move all clocks forward by `ms` milliseconds."""
        self._now_ms += ms
        self._elapsed_ms += ms
        self._awake_ms += ms

    def suspend(self, ms: int) -> None:
        """Let `ms` milliseconds pass as on a machine that sleeps."""
        self._now_ms += ms
        self._elapsed_ms += ms

    def jump(self, ms: int) -> None:
        """Move only the wall clock, forward or back, by `ms` milliseconds."""
        self._now_ms += ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._elapsed_ms / 1000

    def awake(self) -> float:
        return self._awake_ms / 1000

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"


# Linux's CLOCK_MONOTONIC stops during suspend; macOS's goes on.
_SUSPEND_AWARE = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_AWAKE = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)
