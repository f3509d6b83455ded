"""A commit that fails rewinds everything: inputs, state, outputs, timers, stream time."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.errors import Fenced, OwnerUnavailable, ProducerFenced, TransactionAborted
from strandline.framework.container import session
from strandline.framework.testing import TestDriver
from tests.exactly_once.apps import expected, running_totals, totals_sent
from tests.exactly_once.flaky import Flaky
from tests.forms import LONG, by_form, few_on_kafka
from tests.kafka.apps import Totals, worker
from tests.systems import System

Plan = Mapping[str, Sequence[Any]]

GIVEN = [(key, 1) for key in "abacabad"]
AWAY = OwnerUnavailable("away")
STEPS = ("append", "add_offsets", "end_transaction")

FAILURES: list[Plan] = [
    {"append": [TransactionAborted("no")] * 3},
    {"end_transaction": [("after", AWAY)]},
    {"add_offsets": [TransactionAborted("no")]},
    {"append": [TransactionAborted("no")]},
    {"end_transaction": [TransactionAborted("timed out")]},
    {"append": [AWAY]},
    {"append": [("after", AWAY)]},
    {"add_offsets": [("after", AWAY)]},
    {"end_transaction": [AWAY]},
    {"end_transaction": [("after", TransactionAborted("or so it says"))]},
]


class Story:
    """An app at work. Each chapter has the same input, and a plan of failures."""

    def __init__(self, made: Totals) -> None:
        self.made = made
        self.flaky = Flaky(made.app.broker())
        self._chapters = 0

    def run_chapter(self, plan: Plan) -> None:
        """Run a chapter, and check that each record has counted once despite the plan."""
        self.flaky.will({})
        self.made.words.append(GIVEN)
        self.flaky.will(plan)
        self.made.app.run(until="idle", progress=False, timeout=60)
        assert self.flaky.is_done, f"the failure was not met: {plan}"
        self._chapters += 1
        self.made.judge(GIVEN * self._chapters)


@pytest.fixture
def story(system: System) -> Iterator[Story]:
    with telling(system) as told:
        told.run_chapter({})
        yield told


@contextmanager
def telling(system: System) -> Iterator[Story]:
    made = worker(f"{system.prefix}app", system.url, system.state)
    with made.app:
        made.app.prepare()
        yield Story(made)


@pytest.mark.parametrize("plan", few_on_kafka(FAILURES, 1))
def test_a_failed_commit_is_repeated_and_counts_once(story: Story, plan: Plan) -> None:
    story.run_chapter(plan)


# after the last failure the partitions are opened again
@pytest.mark.parametrize("plan", few_on_kafka(FAILURES[:-1], 1))
def test_work_of_init_is_committed_once_across_failures(system: System, plan: Plan) -> None:
    app = sl.App(f"{system.prefix}app", log=system.url, state_dir=system.state)
    words, begun = app.topic(f"{system.prefix}words"), app.topic(f"{system.prefix}begun", value=int)
    seen = app.store("seen", value=int, default=0)

    @app.task(words, stores=[seen])
    class Tally:
        def init(self, context: sl.TaskContext) -> None:
            seen["init"] += 1
            begun.send("init", context.partition)

        def process(self, record: sl.Record[str, Any]) -> None:
            seen[record.key] += 1

    with app:
        app.prepare()
        flaky = Flaky(app.broker())
        words.append([("a", b""), ("a", b"")])
        flaky.will(plan)
        app.run(until="idle", progress=False, timeout=60)
        assert flaky.is_done
        assert app.query(seen).to_dict() == {"init": 1, "a": 2}
        assert len(begun.to_polars()) == 1


@pytest.mark.long_on_kafka
def test_a_worker_whose_producer_is_fenced_logs_it_and_rejoins(
    story: Story, system: System, caplog: pytest.LogCaptureFixture
) -> None:
    other = system.open().broker
    takes_over = functools.partial(other.init_producer, f"{story.made.app.name}-0")
    for step in STEPS:
        caplog.clear()
        story.run_chapter({step: [takes_over]})
        said = re.search(r"drops what it had not committed \((\d+) records\)", caplog.text)
        assert said is not None
        # On Kafka the first fetch may return only some of the records.
        assert 0 < int(said[1]) <= len(GIVEN)


@pytest.mark.long_on_kafka
def test_a_worker_fenced_while_it_aborts_rejoins_too(story: Story) -> None:
    fenced = ProducerFenced("another instance took over")
    for failure in (TransactionAborted("no"), AWAY):
        story.run_chapter({"append": [failure], "end_transaction": [fenced]})
        story.run_chapter({"add_offsets": [failure], "end_transaction": [fenced]})
        story.run_chapter({"end_transaction": [failure, fenced]})


@pytest.mark.long_on_kafka
def test_a_commit_in_doubt_is_looked_up_in_the_log(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = functools.partial(session.Producer, delivery_timeout_ms=30)
    monkeypatch.setattr(session, "Producer", impatient)
    with telling(system) as story:
        for first in (AWAY, ("after", AWAY)):
            for step in STEPS if LONG or not system.is_kafka else STEPS[-1:]:
                story.run_chapter({step: [first, *[AWAY] * 9]})


@pytest.mark.long_on_kafka
def test_a_worker_that_cannot_commit_raises_the_reason(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.framework.container.committer.MAX_ABORTED_COMMITS", 2)
    always = TransactionAborted("always")
    with pytest.raises(TransactionAborted, match="always"):
        story.run_chapter({"end_transaction": [always] * 100})
    story.flaky.will({})
    story.made.app.run(until="idle", progress=False)
    story.made.judge(GIVEN * 2)


@pytest.mark.parametrize("concurrency", [None, 1, 4])
@pytest.mark.parametrize("seed", range(by_form(4, 10)))
def test_random_failures_count_each_record_once(seed: int, concurrency: int | None) -> None:
    chance = random.Random(seed)
    app, out, seen = running_totals(commit_records=4, concurrency=concurrency)
    driver = TestDriver(app)
    flaky = Flaky(driver.owner)
    for _ in range(6):
        flaky.will(
            {
                name: [chance.choice([None, TransactionAborted("x"), OwnerUnavailable("y")])]
                for name in ("add_offsets", "end_transaction")
            }
        )
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
    Flaky(driver.owner).will({"end_transaction": [TransactionAborted("no")]})
    driver.settle()
    assert [(r.key, r.timestamp) for r in driver.output(out)] == [("a", 10)]
    driver.run([("c", 1, 100)])
    assert [(r.key, r.timestamp) for r in driver.output(out)] == [("a", 10), ("b", 60)]


def test_fencing_has_its_own_error() -> None:
    assert issubclass(ProducerFenced, Fenced)


@pytest.mark.parametrize("step", STEPS)
def test_a_worker_with_a_commit_in_doubt_retries_to_get_a_new_producer(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky: Flaky | None = None

    def producer(*arguments: Any, **options: Any) -> Any:
        if flaky is not None and flaky.plan:
            flaky.plan = {}  # the log is back after this
            raise AWAY
        return made(*arguments, **options, delivery_timeout_ms=30)

    made = session.Producer
    monkeypatch.setattr(session, "Producer", producer)
    app, out, seen = running_totals()
    driver = TestDriver(app).run(GIVEN)
    driver._take(GIVEN)
    flaky = Flaky(driver.owner)
    flaky.will({step: [AWAY] * 1_000, "end_transaction": [AWAY] * 1_000})
    driver.settle()
    assert not flaky.plan, "no new producer was wanted"
    counts, totals = expected(GIVEN * 2)
    assert driver.store(seen) == counts
    assert totals_sent(driver, out) == totals
