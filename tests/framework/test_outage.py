"""A worker's patience with a log that does not answer: it ends, it is said, and a stop cuts it short."""

from __future__ import annotations

import pytest

import strandline as sl
from strandline.changelog.errors import InvalidRequest, MemberFenced, OwnerUnavailable
from strandline.changelog.records import TopicPartition
from strandline.framework.container import outage
from strandline.framework.container.outage import patiently
from strandline.framework.testing import TestDriver


class Away:
    """Answers at the n-th call."""

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
    monkeypatch.setattr(outage, "FIRST_PAUSE_S", 0.002)


def test_it_asks_until_there_is_an_answer_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outage, "FIRST_LOG_S", 0.0)
    assert patiently(Away(5)) == 5
    assert caplog.text.count("the app waits for the log") == 1
    assert "the log answers again" in caplog.text


def test_it_is_said_again_now_and_then_since_when_and_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outage, "FIRST_LOG_S", 0.0)
    monkeypatch.setattr(outage, "REPEAT_SECONDS", 0.0)
    patiently(Away(4))
    told = [record.getMessage() for record in caplog.records]
    waits = "the app waits for the log (for 0 s by now), and tries again for another 300 s: away"
    assert told == [waits] * 3 + ["the log answers again after 0 s: the app goes on"]


def test_a_short_one_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    assert patiently(Away(2)) == 2
    assert not caplog.text


def test_it_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "PATIENCE_SECONDS", 0.02)
    with pytest.raises(OwnerUnavailable, match="away"):
        patiently(Away(10**9))


def test_a_stop_ends_it_and_other_errors_are_not_repeated() -> None:
    away = Away(10**9)
    with pytest.raises(OwnerUnavailable):
        patiently(away, lambda: away.calls == 3)
    assert away.calls == 3

    def refused() -> None:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest):
        patiently(refused)


class LostPlace:
    """Of a member that was put out, as it finds out by itself."""

    def allowed(self) -> frozenset[TopicPartition]:
        raise MemberFenced("put out")


class LostSeat:
    """Taken once; then the log is away."""

    def __init__(self) -> None:
        self.membership: LostPlace | None = LostPlace()

    def acquire(self) -> LostPlace:
        if self.membership is None:
            raise OwnerUnavailable("away")
        return self.membership

    def fenced(self, _error: Exception, _dropped: int) -> None:
        self.membership = None

    def leave(self) -> None:
        """There is nothing to leave."""


def test_to_have_lost_its_place_does_not_mean_that_the_log_answers() -> None:
    """Or an outage that outlasts the session would be over, and begin anew, in its middle."""
    app = sl.App("app")
    words = app.topic("words", value=int)
    app.task(words, name="count")(lambda record: None)
    worker = TestDriver(app).worker
    worker._session = LostSeat()  # type: ignore[assignment]
    with pytest.raises(OwnerUnavailable):
        worker.cycle()
    worker._session = LostSeat()  # type: ignore[assignment]
    worker.stop()
    assert worker.cycle() == 0, "who is to end joins no more"
