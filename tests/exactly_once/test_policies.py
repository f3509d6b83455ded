"""A handler that raises leaves no trace in the log, and its record follows the policy, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

import strandline as sl
from strandline.changelog.records import TopicPartition
from tests.exactly_once.flaky import Flaky
from tests.forms import few_on_kafka
from tests.kafka.apps import Totals
from tests.systems import System

GIVEN = [("a", 1), ("a", -1), ("a", 2)]


@contextmanager
def picky(system: System, on_error: Any, *, refused: int = -1) -> Iterator[Totals]:
    """Yield an app that counts, sends the count, and raises after both on the value that it
    refuses."""
    app = sl.App(f"{system.prefix}picky", log=system.url, state_dir=system.state)
    words = app.topic(f"{system.prefix}words", key=str, value=int)
    out = app.topic(f"{system.prefix}out", key=str, value=int)
    seen = app.store("seen", key=str, value=int, default=0)

    @app.task(words, stores=[seen], on_error=on_error)
    def count(record: sl.Record[str, int]) -> None:
        seen[record.key] += 1
        out.send(record.key, seen[record.key])
        if record.value == refused:
            raise ValueError(f"not {refused}")

    with app:
        app.prepare()
        yield Totals(app, words, out, seen)


@pytest.mark.parametrize("on_error", few_on_kafka(["dead_letter", "skip"]))
def test_a_record_is_skipped_in_the_commit_of_its_neighbours(system: System, on_error: str) -> None:
    """The commit is repeated with some errors, and still skips the record."""
    with picky(system, on_error) as made:
        made.words.append(GIVEN)
        flaky = Flaky(made.app.broker())
        flaky.will({"end_transaction": [sl.TransactionAborted("once")]})
        made.app.run(until="idle", progress=False)
        assert flaky.is_done
        made.judge([("a", 1), ("a", 2)])
        if on_error == "dead_letter":
            letters = system.open().read(f"{made.app.name}-count-dead-letter")
            assert letters["value"].to_pylist() == [msgspec.msgpack.encode(-1)]


@pytest.mark.long_on_kafka
def test_a_task_stops_before_a_record_and_continues_with_it(system: System) -> None:
    for _ in range(2):
        with picky(system, "fail") as made:
            if not made.sent():
                made.words.append(GIVEN)
            with pytest.raises(sl.TaskFailed, match=f"{made.words.name}-0 @ 1 .*not -1"):
                made.app.run(until="idle", progress=False)
            made.judge(GIVEN[:1])
            first = TopicPartition(made.words.name, 0)
            assert made.app.broker().committed(made.app.name)[first].offset == 1
    with picky(system, "fail", refused=0) as made:
        made.app.run(until="idle", progress=False)
        made.judge(GIVEN)
