"""A worker's patience with a log that does not answer: it is limited, logged, and ended by a
stop."""

from __future__ import annotations

import pytest

import strandline as sl
from strandline.changelog.errors import InvalidRequest, MemberFenced, OwnerUnavailable
from strandline.changelog.records import TopicPartition
from strandline.framework import patience
from strandline.framework.container import outage
from strandline.framework.container.outage import patiently
from strandline.framework.testing import TestDriver


class Away:
    """A call that succeeds at the n-th attempt."""

    def __init__(self, until: int) -> None:
        self.calls = 0
        self._until = until

    def __call__(self) -> int:
        self.calls += 1
        if self.calls < self._until:
            raise OwnerUnavailable("away")
        return self.calls


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "LONGEST_RETRY_PAUSE_S", 0.001)
    monkeypatch.setattr(outage, "FIRST_RETRY_PAUSE_S", 0.001)


def test_a_call_is_repeated_until_it_succeeds_and_both_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "FIRST_LOG_S", 0.0)
    assert patiently(Away(5)) == 5
    assert caplog.text.count("the app waits for the log") == 1
    assert "the log answers again" in caplog.text


def test_an_outage_is_logged_repeatedly_with_its_duration_and_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "FIRST_LOG_S", 0.0)
    monkeypatch.setattr(patience, "REPEAT_SECONDS", 0.0)
    patiently(Away(4))
    told = [record.getMessage() for record in caplog.records]
    waits = "the app waits for the log (for 0 s by now), and tries again for another 300 s: away"
    assert told == [waits] * 3 + ["the log answers again after 0 s: the app goes on"]


def test_a_short_outage_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert patiently(Away(2)) == 2
    assert not caplog.text


def test_an_outage_that_is_too_long_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.02)
    with pytest.raises(OwnerUnavailable, match="away"):
        patiently(Away(10**9))


def test_a_stop_ends_the_waiting_and_other_errors_are_not_retried() -> None:
    away = Away(10**9)
    with pytest.raises(OwnerUnavailable):
        patiently(away, lambda: away.calls == 3)
    assert away.calls == 3

    def refused() -> None:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest):
        patiently(refused)


class LostPlace:
    """Membership of a member that was expelled, as it discovers itself."""

    def allowed(self) -> frozenset[TopicPartition]:
        raise MemberFenced("put out")


class LostSeat:
    """A session that can be opened once; after that the log is away."""

    def __init__(self) -> None:
        self.membership: LostPlace | None = LostPlace()

    def acquire(self) -> LostPlace:
        if self.membership is None:
            raise OwnerUnavailable("away")
        return self.membership

    def fenced(self, _error: Exception, _dropped: int) -> None:
        self.membership = None

    def leave(self) -> None:
        """Do nothing."""


def test_a_lost_membership_does_not_mean_that_the_log_answers() -> None:
    """Otherwise an outage longer than the session would count as over, and begin again, in its
    middle."""
    app = sl.App("app")
    words = app.topic("words", value=int)
    app.task(words, name="count")(lambda record: None)
    worker = TestDriver(app).worker
    worker._session = worker._committer._session = LostSeat()  # type: ignore[assignment]
    with pytest.raises(OwnerUnavailable):
        worker.cycle()
    worker._session = worker._committer._session = LostSeat()  # type: ignore[assignment]
    worker.stop()
    assert worker.cycle() == 0, "who is to end joins no more"
