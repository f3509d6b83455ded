"""Records from outside of a task, many at a time."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import strandline as sl
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import InvalidRecord
from strandline.changelog.memory_storage import MemoryStorage


@dataclass(frozen=True)
class Delay:
    minutes: float


@dataclass(frozen=True)
class Name:
    name: str


@pytest.fixture
def app() -> sl.App:
    return sl.App("app", log=Owner(MemoryStorage(), background=False))


ROWS = [("AA", Delay(5.0)), ("BA", Delay(7.0))]
TABLE = pl.DataFrame({"key": ["AA", "BA"], "minutes": [5.0, 7.0]})
NOON = dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize("data", [ROWS, TABLE, TABLE.to_arrow()])
@pytest.mark.parametrize("timestamp", [NOON, int(NOON.timestamp() * 1000)])
def test_records_without_a_time_get_the_given_one(app: sl.App, data: Any, timestamp: Any) -> None:
    delays = app.topic("delays", key=str, value=Delay)
    assert delays.append(data, timestamp=timestamp) == 2
    assert delays.to_polars().select("key", "timestamp", "minutes").rows() == [
        ("AA", NOON, 5.0),
        ("BA", NOON, 7.0),
    ]


def test_a_table_with_times_keeps_them(app: sl.App) -> None:
    delays = app.topic("delays", key=str, value=Delay)
    own = TABLE.with_columns(timestamp=pl.Series([NOON, NOON + dt.timedelta(hours=1)]))
    delays.append(own, timestamp=7)
    assert delays.to_polars()["timestamp"].to_list() == own["timestamp"].to_list()


NOT_UTF8 = pa.array([b"ok", b"\xff"], pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    ("key", "value", "column"),
    [(str, Name, "name"), (str, str, "value"), (str, Name, "key"), (str, bytes, "key")],
)
def test_text_that_is_not_utf8_is_refused_and_nothing_is_appended(
    app: sl.App, key: Any, value: Any, column: str
) -> None:
    topic = app.topic("names", key=key, value=value)
    other = "name" if value is Name else "value"
    data = {"key": ["a", "b"], other: pa.array(["c", "d"], pa.binary() if value is bytes else None)}
    with pytest.raises(InvalidRecord, match=f"column '{column}' is not valid string: .*UTF8"):
        topic.append(pa.table({**data, column: NOT_UTF8}))
    assert len(topic.to_polars()) == 0


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_bytes_that_are_not_utf8_are_no_keys_of_text(app: sl.App, kind: pa.DataType) -> None:
    """Otherwise the whole topic could not be read as a table any more."""
    topic = app.topic("names", key=str, value=str)
    data = {"key": pa.array([b"e", b"\xff"], kind), "value": ["c", "d"]}
    with pytest.raises(InvalidRecord, match="column 'key'.*UTF8"):
        topic.append(pa.table(data))
    assert len(topic.to_polars()) == 0
    topic.append(pa.table({"key": pa.array(["ä".encode()], kind), "value": ["c"]}))
    assert topic.to_polars()["key"].to_list() == ["ä"]


@pytest.mark.parametrize("data", [ROWS, TABLE])
def test_many_appends_need_few_producers(data: Any) -> None:
    """The log remembers each producer for a day, in memory."""
    owner = Owner(MemoryStorage(), background=False)
    created, init = [], owner.init_producer

    def counted(*given: Any, **options: Any) -> Any:
        created.append(init(*given, **options))
        return created[-1]

    owner.init_producer = counted  # type: ignore[method-assign]
    app = sl.App("app", log=owner)
    delays = app.topic("delays", key=str, value=Delay)
    for _ in range(10):
        delays.append(data)
    assert len(created) == 1
    both, within = threading.Barrier(2), threading.Barrier(2)

    def records() -> Iterator[tuple[str, Delay]]:
        yield "AA", Delay(1.0)
        within.wait(30)  # both appends are under way
        yield "BA", Delay(2.0)

    def append() -> None:
        both.wait(30)
        delays.append(records())

    threads = [threading.Thread(target=append) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for _ in range(10):
        delays.append(data)
    assert len(created) == 2
    with pytest.raises(InvalidRecord):
        delays.append([("AA", "no delay")])  # type: ignore[list-item]
    delays.append(data)
    assert len(created) <= 3
    app.close()
    delays.append(data)
    assert len(delays.to_polars()) == 22 * 2 + 4
    app.close()


def test_a_tuple_without_the_key_that_a_column_has_is_explained() -> None:
    app = sl.App("app", log=Owner(MemoryStorage(), background=False))
    topic = app.topic("t", value=pa.schema([("k", pa.string()), ("n", pa.int64())]), key="k")
    row = {"k": "a", "n": 1}
    with pytest.raises(sl.InvalidRecord, match="its key may be None, because the column 'k' has"):
        topic.append([(row, 1_760_000_399_983)])
    assert topic.append([(None, row, 1_760_000_399_983)]) == 1
