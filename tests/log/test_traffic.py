"""Background work gives way to appends and commits, and still gets its share of the time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.traffic import MAX_WAIT_RATIO, BackgroundThrottle, Traffic


class Moments(threading.Event):
    """An event to wait for. Each wait advances the clock and calls `then`."""

    def __init__(self, clock: ManualClock, then: Callable[[int], None] = lambda wait: None) -> None:
        super().__init__()
        self._clock = clock
        self._then = then
        self.waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        assert timeout > 0
        self.waits += 1
        self._clock.advance(1)
        self._then(self.waits)
        return self.is_set()


def worked(ms: int, traffic: Traffic, then: Callable[[int], None] = lambda wait: None) -> int:
    """Return the milliseconds for which background work gives way after `ms` of work."""
    clock = ManualClock()
    moments = Moments(clock, then)
    courtesy = BackgroundThrottle(traffic, clock, moments)
    clock.advance(ms)
    courtesy.give_way()
    return moments.waits


def test_background_work_continues_if_no_call_is_in_progress() -> None:
    assert worked(20, Traffic()) == 0


def test_a_little_background_work_is_not_interrupted() -> None:
    traffic = Traffic()
    with traffic:
        assert worked(0, traffic) == 0


def test_background_work_waits_at_most_patience_times_as_long_as_it_has_worked() -> None:
    traffic = Traffic()
    with traffic:
        assert abs(worked(20, traffic) - MAX_WAIT_RATIO * 20) <= 1


def test_background_work_continues_once_all_calls_have_ended() -> None:
    traffic = Traffic()
    traffic.__enter__()
    traffic.__enter__()

    def then(wait: int) -> None:
        if wait in (3, 5):
            traffic.__exit__(None, None, None)

    assert worked(20, traffic, then) == 5


def test_background_work_does_not_continue_between_two_close_calls() -> None:
    traffic = Traffic()

    def then(wait: int) -> None:
        if wait < 8:
            with traffic:
                pass

    with traffic:
        pass
    clock = ManualClock()
    moments = Moments(clock, then)
    courtesy = BackgroundThrottle(traffic, clock, moments)
    clock.advance(20)
    with traffic:
        pass  # over again by the time the background work looks
    courtesy.give_way()
    assert moments.waits == 8


def test_background_work_does_not_wait_once_it_is_stopped() -> None:
    traffic = Traffic()
    clock = ManualClock()
    moments = Moments(clock)
    moments.set()
    courtesy = BackgroundThrottle(traffic, clock, moments)
    clock.advance(20)
    with traffic:
        courtesy.give_way()
    assert moments.waits == 0


def test_each_wait_depends_on_the_work_since_the_last_one() -> None:
    traffic = Traffic()
    clock = ManualClock()
    moments = Moments(clock)
    courtesy = BackgroundThrottle(traffic, clock, moments)
    with traffic:
        clock.advance(20)
        courtesy.give_way()
        courtesy.give_way()
        assert abs(moments.waits - MAX_WAIT_RATIO * 20) <= 1  # fractions of seconds are rounded
        clock.advance(2)
        courtesy.give_way()
    assert abs(moments.waits - MAX_WAIT_RATIO * 22) <= 2


def test_a_call_that_raises_has_ended_too() -> None:
    traffic = Traffic()
    try:
        with traffic:
            raise KeyError
    except KeyError:
        assert not traffic.active
