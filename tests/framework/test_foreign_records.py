"""Records in other partitions, or of other times, than their columns say are named, once."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import strandline as sl
from strandline.changelog.client.producer import Producer


@dataclass(frozen=True)
class Sale:
    shop: str
    amount: float


class Counting:
    """An app with a typed topic in four partitions, whose task has state or not."""

    def __init__(self, folder: Path, *, stores: bool) -> None:
        self.app = sl.App("app", log=folder / "log")
        self.sales = self.app.topic("sales", key="shop", value=Sale, partitions=4)
        counts = self.app.counter("counts")

        @self.app.task(self.sales, stores=[counts] if stores else [], name="count")
        def count(record: sl.Record[str, Sale]) -> None:
            if stores:
                counts.add(record.value.shop, 1)

    def run(self, *keys: str | None, partition: int | None = None) -> None:
        self.app.prepare()
        with Producer(self.app.broker()) as producer:
            for key in keys:
                value = {"shop": key or "york", "amount": 1.0}
                producer.send("sales", value, key, partition=partition)
        self.app.run(until="idle", progress=False)


SHOPS = [f"shop-{n}" for n in range(20)]


def test_keys_in_their_partitions_are_not_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Counting(tmp_path, stores=True).run(*SHOPS)
    assert "State is kept by partition" not in caplog.text


@pytest.mark.parametrize(
    ("keys", "partition", "says"),
    [
        (SHOPS, 2, "which belongs into partition"),
        ([None, None], 2, "has no key, but the topic is declared with key='shop'"),
    ],
)
def test_records_elsewhere_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keys: Any, partition: int, says: str
) -> None:
    counting = Counting(tmp_path, stores=True)
    with counting.app:
        counting.run(*keys, partition=partition)
        assert caplog.text.count("State is kept by partition") == 1
    assert says in caplog.text
    assert "of partition 2" in caplog.text


def test_a_task_without_state_may_have_any_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Counting(tmp_path, stores=False).run(*SHOPS, partition=2)
    assert "State is kept by partition" not in caplog.text


@dataclass(frozen=True)
class Visit:
    user: str
    at: dt.datetime


FIRST = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
MS = int(FIRST.timestamp() * 1000)


@pytest.mark.parametrize("serde", [None, "json"])
def test_times_that_differ_from_their_column_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, serde: Any
) -> None:
    app = sl.App("app", log=tmp_path / "log")
    visits = app.topic("visits", key="user", timestamp="at", value=Visit, serde=serde)
    counts = app.counter("counts")

    @app.task(visits, stores=[counts], name="count")
    def count(record: sl.Record[str, Visit]) -> None:
        counts.add(record.key, 1)

    visits.append([Visit("a", FIRST)])
    app.run(until="idle", progress=False)
    assert "has the time" not in caplog.text
    for hours in (1, 2):
        value: Any = {"user": "b", "at": FIRST + dt.timedelta(hours=hours)}
        with app.producer() as producer:
            producer.send(
                "visits", msgspec.json.encode(value) if serde else value, b"b", timestamp=MS
            )
    app.run(until="idle", progress=False)
    assert caplog.text.count("has the time") == 1
    assert f"offset 1 of partition 0 has the time {MS} (ms), but its column" in caplog.text


def test_a_record_without_a_time_in_its_column_or_that_cannot_be_decoded_is_not_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = sl.App("app", log=tmp_path / "log")
    value = pa.schema([("user", pa.string()), ("at", pa.timestamp("ms", "UTC"))])
    visits = app.topic("visits", key="user", timestamp="at", value=value, serde="json")
    counts = app.counter("counts")

    @app.task(visits, stores=[counts], name="count", on_error="skip")
    def count(record: sl.Record[str, Any]) -> None:
        counts.add(record.key, 1)

    visits.append([{"user": "a", "at": None}])
    with app.producer() as producer:
        producer.send("visits", b"{", key=b"b")
    app.run(until="idle", progress=False)
    assert "has the time" not in caplog.text
