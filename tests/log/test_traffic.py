"""Work in the background gives way to appends and commits, and still gets its part of the time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.traffic import MAX_WAIT_RATIO, BackgroundThrottle, Traffic


class Moments(threading.Event):
    """What is waited for; while somebody waits, time passes and things happen."""

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
    """How many milliseconds who has worked for `ms` gives way."""
    clock = ManualClock()
    moments = Moments(clock, then)
    courtesy = BackgroundThrottle(traffic, clock, moments)
    clock.advance(ms)
    courtesy.give_way()
    return moments.waits


def test_with_nothing_under_way_it_goes_on() -> None:
    assert worked(20, Traffic()) == 0


def test_a_little_work_is_not_interrupted() -> None:
    traffic = Traffic()
    with traffic:
        assert worked(0, traffic) == 0


def test_it_waits_no_longer_than_so_many_times_as_it_has_worked() -> None:
    traffic = Traffic()
    with traffic:
        assert abs(worked(20, traffic) - MAX_WAIT_RATIO * 20) <= 1


def test_it_goes_on_when_all_is_done() -> None:
    traffic = Traffic()
    traffic.__enter__()
    traffic.__enter__()

    def then(wait: int) -> None:
        if wait in (3, 5):
            traffic.__exit__(None, None, None)

    assert worked(20, traffic, then) == 5


def test_it_does_not_slip_between_two_calls() -> None:
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
        pass  # and it is over again when it looks
    courtesy.give_way()
    assert moments.waits == 8


def test_it_ends_when_it_is_to_stop() -> None:
    traffic = Traffic()
    clock = ManualClock()
    moments = Moments(clock)
    moments.set()
    courtesy = BackgroundThrottle(traffic, clock, moments)
    clock.advance(20)
    with traffic:
        courtesy.give_way()
    assert moments.waits == 0


def test_each_wait_is_for_the_work_since_the_last() -> None:
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


def test_an_error_is_an_end_too() -> None:
    traffic = Traffic()
    try:
        with traffic:
            raise KeyError
    except KeyError:
        assert not traffic.active
