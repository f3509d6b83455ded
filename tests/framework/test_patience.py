"""Waits for a log that does not answer."""

from __future__ import annotations

import pytest

from strandline.changelog.clock import ManualClock
from strandline.changelog.errors import OwnerUnavailable
from strandline.framework.patience import PATIENCE_SECONDS, Patience

ERROR = OwnerUnavailable("no broker answers")


@pytest.fixture
def patience(clock: ManualClock) -> Patience:
    return Patience(clock)


def fails(patience: Patience, clock: ManualClock, seconds: float) -> bool:
    """Make an attempt that fails after some seconds; return True if there may be another one."""
    patience.ask()
    clock.advance(int(seconds * 1000))
    return patience.failed(ERROR)


def test_an_outage_ends_the_wait_after_its_limit(patience: Patience, clock: ManualClock) -> None:
    assert fails(patience, clock, 30)
    assert fails(patience, clock, PATIENCE_SECONDS - 31)
    assert not fails(patience, clock, 1)


def test_each_outage_counts_from_its_own_start(patience: Patience, clock: ManualClock) -> None:
    for _ in range(3):
        assert fails(patience, clock, PATIENCE_SECONDS - 1)
        patience.ask()
        clock.advance(int(PATIENCE_SECONDS * 1000))
        patience.answered()
    clock.advance(int(PATIENCE_SECONDS * 1000))  # nothing was asked meanwhile
    assert fails(patience, clock, 1)


def test_an_outage_is_logged_every_minute_and_at_its_end(
    patience: Patience, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    fails(patience, clock, 0.5)
    patience.answered()
    assert not caplog.messages, "it was too short"
    for _ in range(9):
        fails(patience, clock, 10)
    patience.answered()
    assert [message.partition(",")[0] for message in caplog.messages] == [
        "the app waits for the log (for 10 s by now)",
        "the app waits for the log (for 70 s by now)",
        "the log answers again after 90 s: the app goes on",
    ]
