"""Internal topics have the number of partitions of the topics that their rows come from."""

from __future__ import annotations

from typing import Any

import narwhals as nw
import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.errors import SchemaMismatch


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


def test_rows_of_other_types_in_an_internal_topic_are_refused_with_a_way_out(
    tmp_path: Any,
) -> None:
    def run(kind: Any, out: str) -> None:
        with sl.App("app", log=tmp_path / "log") as app:
            stream = app.stream(app.topic("events", key=str, value=int))
            stream = stream.with_columns(group=sl.col("value").cast(kind))
            stream.group_by("group").agg(n=sl.count(), name="agg").to(out)
            app.run(until="idle", progress=False)

    run(nw.Int64, "numbers")
    with pytest.raises(SchemaMismatch, match=r"rows between two tasks.*`strandline reset`"):
        run(nw.String, "texts")
