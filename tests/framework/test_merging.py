"""A task with several inputs handles their records by time, in whatever order they are fetched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.framework.testing import TestDriver

T = 1_760_000_400_000


def merging(log: Any = None, partitions: int = 1) -> tuple[sl.App, list[Any], list[Any]]:
    """Return an app with three inputs, fetched a batch at a time, and the list of handled
    records."""
    app = sl.App("app", log=log)
    app.session.options = replace(app.session.options, fetch_bytes=1)
    topics = [app.topic(name, value=int, partitions=partitions) for name in ("c", "a", "b")]
    seen: list[Any] = []

    @app.task(topics)
    def note(record: sl.Record[str, int]) -> None:
        seen.append((record.timestamp - T, record.topic, record.partition))

    return app, topics, seen


GIVEN = {
    "c": [[1, 2], [10, 11, 12], [40]],
    "a": [[1], [2, 10], [30, 31]],
    "b": [[20], [25], [32, 50], [60]],
}
MERGED = sorted(
    ((at, topic) for topic, batches in GIVEN.items() for batch in batches for at in batch),
    key=lambda one: (one[0], "cab".index(one[1])),
)


def test_inputs_are_merged_by_time_and_ties_by_their_declaration() -> None:
    app, topics, seen = merging()
    given = [(topic, "k", 0, T + at) for topic in topics for b in GIVEN[topic.name] for at in b]
    with TestDriver(app) as driver:
        driver.run(given)
    assert [(at, topic) for at, topic, _ in seen] == MERGED


def test_no_input_overtakes_one_that_has_more_in_the_log(tmp_path: Path) -> None:
    """Each fetch returns one batch, so every input runs dry before its end."""
    app, topics, seen = merging(tmp_path, partitions=2)
    with app:
        for topic in topics:
            for batch in GIVEN[topic.name]:
                for key in ("ann", "dan"):  # one in each partition
                    topic.append([(key, 0, T + at) for at in batch])
        app.run(until="idle", progress=False)
    assert {partition for _, _, partition in seen} == {0, 1}
    for number in (0, 1):
        assert [(at, topic) for at, topic, of in seen if of == number] == MERGED


def test_an_input_with_an_open_transaction_does_not_block_others(tmp_path: Path) -> None:
    app, topics, seen = merging(tmp_path)
    with app, app.producer("other") as producer:
        producer.begin_transaction()
        producer.send("c", b"\x01", key=b"k", timestamp=T)
        producer.flush()
        topics[1].append([("k", 0, T + 5)])
        assert app.run(count=1, timeout=30, progress=False) == 1
        producer.commit_transaction()
        app.run(until="idle", progress=False)
    assert [(at, topic) for at, topic, _ in seen] == [(5, "a"), (0, "c")]


def test_records_out_of_order_in_an_input_keep_their_places_there() -> None:
    app, (first, second, _), seen = merging()
    given = [(first, "k", 0, T + at) for at in (5, 1, 9)]
    given += [(second, "k", 0, T + at) for at in (2, 7, 3)]
    with TestDriver(app) as driver:
        driver.run(given)
    assert [at for at, topic, _ in seen if topic == "c"] == [5, 1, 9]
    assert [at for at, topic, _ in seen if topic == "a"] == [2, 7, 3]
    assert [at for at, _, _ in seen] == [2, 5, 1, 7, 3, 9]


@pytest.mark.parametrize("limit", [1, 3])
def test_a_run_in_pieces_gives_the_same_order(tmp_path: Path, limit: int) -> None:
    app, topics, seen = merging(tmp_path)
    with app:
        for topic in topics:
            for batch in GIVEN[topic.name]:
                topic.append([("x", 0, T + at) for at in batch])
        while app.run(until="idle", count=limit, progress=False):
            pass
    assert [(at, topic) for at, topic, _ in seen] == MERGED
