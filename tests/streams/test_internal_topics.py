"""Internal topics have the number of partitions of the topics that their rows come from."""

from __future__ import annotations

from typing import Any

import pytest

import strandline as sl
from strandline import changelog


@pytest.mark.parametrize("declared", [None, 4])
def test_an_internal_topic_has_the_partitions_of_its_existing_source(
    tmp_path: Any, declared: int | None
) -> None:
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("events", 4)
        app = sl.App("app", log=log)
        topic = app.topic("events", key=str, value=int, partitions=declared)
        app.stream(topic).group_by("value").agg(n=sl.count(), name="agg").to("out")
        app.run(until="idle", progress=False)
        assert log.topic("app-agg-repartition").partitions == 4


def test_an_internal_topic_after_a_topic_has_the_partitions_of_that_one(tmp_path: Any) -> None:
    with changelog.open(tmp_path / "log") as log:
        app = sl.App("app", log=log)
        stream = app.stream(app.topic("events", key=str, value=int, partitions=3))
        between = app.topic("between", key=str, value=int, partitions=2)
        stream.through(between).group_by("value").agg(n=sl.count(), name="agg").to("out")
        app.run(until="idle", progress=False)
        assert log.topic("app-agg-repartition").partitions == 2


def test_a_repartition_has_the_partitions_of_its_existing_source(tmp_path: Any) -> None:
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("events", 4)
        app = sl.App("app", log=log)
        events = app.topic("events", key=str, value=int)
        by_value = app.repartition(events, key=lambda record: str(record.value), name="by-value")

        @app.task(by_value)
        def nothing(record: Any) -> None: ...

        app.run(until="idle", progress=False)
        assert log.topic(by_value.name).partitions == 4
