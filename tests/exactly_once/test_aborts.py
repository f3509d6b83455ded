"""A commit that fails rewinds everything: inputs, state, outputs, timers, stream time."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest

import strandline as sl
from changelog.errors import Fenced, OwnerUnavailable, ProducerFenced, TransactionAborted
from framework.container import seat
from framework.testing import TestDriver
from tests.exactly_once.apps import expected, running_totals, totals_sent


class Flaky:
    """Lets calls of the owner fail as planned: `plan[call]` is a list of errors, one a call.

    An error in a tuple `("after", error)` is raised when the call has been carried out.
    """

    def __init__(self, driver: TestDriver) -> None:
        self._owner = driver.owner
        self.plan: dict[str, list[Any]] = {}
        for name in ("append", "add_offsets", "end_transaction", "commit_offsets"):
            setattr(driver.owner, name, self._wrapped(name, getattr(driver.owner, name)))

    def _wrapped(self, name: str, call: Any) -> Any:
        def flaky(*args: Any, **options: Any) -> Any:
            planned = self.plan.get(name)
            error = planned.pop(0) if planned else None
            if isinstance(error, tuple):
                call(*args, **options)
                raise error[1]
            if error is not None:
                raise error
            return call(*args, **options)

        return flaky


GIVEN = [(key, 1) for key in "abacabad"]

FAILURES: list[dict[str, list[Any]]] = [
    {"append": [TransactionAborted("no")]},
    {"append": [TransactionAborted("no")] * 3},
    {"add_offsets": [TransactionAborted("no")]},
    {"end_transaction": [TransactionAborted("timed out")]},
    {"append": [OwnerUnavailable("away")]},
    {"append": [("after", OwnerUnavailable("away"))]},
    {"add_offsets": [("after", OwnerUnavailable("away"))]},
    {"end_transaction": [OwnerUnavailable("away")]},
    {"end_transaction": [("after", OwnerUnavailable("away"))]},
    {"end_transaction": [("after", TransactionAborted("or so it says"))]},
]


@pytest.mark.parametrize("plan", FAILURES, ids=str)
def test_a_commit_that_fails_is_made_again_and_counts_once(plan: dict[str, list[Any]]) -> None:
    app, out, seen = running_totals()
    driver = TestDriver(app).run(GIVEN)
    plan = {name: list(errors) for name, errors in plan.items()}
    driver._take(GIVEN)
    Flaky(driver).plan = plan
    driver.settle()
    assert not any(plan.values()), "the failure was not met"
    counts, totals = expected(GIVEN * 2)
    assert driver.store(seen) == counts
    assert totals_sent(driver, out) == totals


@pytest.mark.parametrize("seed", range(10))
def test_many_failures_at_random(seed: int) -> None:
    chance = random.Random(seed)
    app, out, seen = running_totals(commit_records=4)
    driver = TestDriver(app)
    flaky = Flaky(driver)
    for _ in range(6):
        flaky.plan = {
            name: [chance.choice([None, TransactionAborted("x"), OwnerUnavailable("y")])]
            for name in ("add_offsets", "end_transaction")
        }
        driver.settle()
        driver._take(GIVEN)
        driver.settle()
    counts, totals = expected(GIVEN * 6)
    assert driver.store(seen) == counts
    assert totals_sent(driver, out) == totals


def test_timers_and_stream_time_are_rewound() -> None:
    app = sl.App("app")
    words, out = app.topic("words", value=int), app.topic("out", value=int)

    @app.task(words)
    class Task:
        def process(self, record: sl.Record[str, int]) -> None:
            sl.set_timer(record.key, record.timestamp + 10)

        def on_timer(self, name: str) -> None:
            out.send(name, 1)

    driver = TestDriver(app).run([("a", 1, 0)])
    driver._take([("b", 1, 50)])
    Flaky(driver).plan = {"end_transaction": [TransactionAborted("no")]}
    driver.settle()
    assert [(r.key, r.timestamp) for r in driver.output(out)] == [("a", 10)]
    driver.run([("c", 1, 100)])
    assert [(r.key, r.timestamp) for r in driver.output(out)] == [("a", 10), ("b", 60)]


def test_a_fenced_worker_leaves_nothing_says_so_and_joins_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, out, seen = running_totals()
    driver = TestDriver(app).run(GIVEN)
    driver._take(GIVEN)
    driver.owner.init_producer("app-0")  # another instance takes over
    driver.worker.commit()
    assert driver.worker.instances == []
    assert totals_sent(driver, out) == expected(GIVEN)[1]
    assert f"drops what it had not committed ({len(GIVEN)} records)" in caplog.text
    driver.settle()
    assert totals_sent(driver, out) == expected([*GIVEN, *GIVEN])[1]


@pytest.mark.parametrize("call", ["append", "add_offsets", "end_transaction"])
@pytest.mark.parametrize("failure", [TransactionAborted("no"), OwnerUnavailable("away")], ids=repr)
def test_one_that_is_fenced_while_it_aborts_joins_again_too(call: str, failure: Exception) -> None:
    app, out, seen = running_totals()
    driver = TestDriver(app).run(GIVEN)
    driver._take(GIVEN)
    flaky = Flaky(driver)
    fenced = [ProducerFenced("another instance took over")]
    if call == "end_transaction":
        flaky.plan = {call: [failure, *fenced]}
    else:
        flaky.plan = {call: [failure], "end_transaction": fenced}
    driver.settle()
    assert not any(flaky.plan.values()), "the failure was not met"
    counts, totals = expected(GIVEN * 2)
    assert driver.store(seen) == counts
    assert totals_sent(driver, out) == totals


def test_a_worker_that_cannot_commit_gives_up_with_the_reason() -> None:
    app, _, _ = running_totals()
    driver = TestDriver(app)
    driver._take(GIVEN)
    Flaky(driver).plan = {"end_transaction": [TransactionAborted("always")] * 100}
    with pytest.raises(TransactionAborted, match="always"):
        driver.settle()


def test_fencing_is_an_error_of_its_own() -> None:
    assert issubclass(ProducerFenced, Fenced)


@pytest.mark.parametrize("answered", [True, False], ids=["carried out", "not carried out"])
@pytest.mark.parametrize("call", ["append", "add_offsets", "end_transaction"])
def test_a_commit_in_doubt_is_looked_up_in_the_log(
    call: str, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = functools.partial(seat.Producer, delivery_timeout_ms=30)
    monkeypatch.setattr(seat, "Producer", impatient)
    app, out, seen = running_totals()
    driver = TestDriver(app).run(GIVEN)
    driver._take(GIVEN)
    away = OwnerUnavailable("away")
    Flaky(driver).plan = {call: [("after", away) if answered else away, *[away] * 9]}
    driver.settle()
    counts, totals = expected(GIVEN * 2)
    assert driver.store(seen) == counts
    assert totals_sent(driver, out) == totals


@pytest.mark.parametrize("call", ["append", "add_offsets", "end_transaction"])
def test_one_in_doubt_that_gets_no_new_producer_at_first_gets_it_later(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = OwnerUnavailable("away")
    flaky: Flaky | None = None

    def producer(*arguments: Any, **options: Any) -> Any:
        if flaky is not None and flaky.plan:
            flaky.plan = {}  # it is there again after this
            raise away
        return made(*arguments, **options, delivery_timeout_ms=30)

    made = seat.Producer
    monkeypatch.setattr(seat, "Producer", producer)
    app, out, seen = running_totals()
    driver = TestDriver(app).run(GIVEN)
    driver._take(GIVEN)
    flaky = Flaky(driver)
    flaky.plan = {call: [away] * 1_000, "end_transaction": [away] * 1_000}
    driver.settle()
    assert not flaky.plan, "no new producer was wanted"
    counts, totals = expected(GIVEN * 2)
    assert driver.store(seen) == counts
    assert totals_sent(driver, out) == totals
