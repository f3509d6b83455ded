"""A topic as a data frame."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.memory_storage import MemoryStorage


@dataclass(frozen=True)
class Delay:
    minutes: float | None
    tombstone: str | None = None


@pytest.fixture
def app() -> sl.App:
    return sl.App("app", log=Owner(MemoryStorage(), background=False))


def test_tombstones_are_left_out_unless_requested_and_then_marked(app: sl.App) -> None:
    delays = app.topic("delays", value=Delay)
    delays.append([("AA", Delay(5.0, "x")), ("AA", None), ("BA", Delay(None))])
    seen = delays.to_polars()
    assert seen.columns == ["partition", "offset", "timestamp", "key", "minutes", "tombstone"]
    assert seen.select("offset", "key", "minutes", "tombstone").rows() == [
        (0, "AA", 5.0, "x"),
        (2, "BA", None, None),
    ]
    every = delays.to_polars(tombstones=True)
    assert every.columns[3:] == ["key", "tombstone", "minutes", "value_tombstone"]
    assert every.select("key", "tombstone", "minutes", "value_tombstone").rows() == [
        ("AA", False, 5.0, "x"),
        ("AA", True, None, None),
        ("BA", False, None, None),
    ]


@pytest.mark.parametrize("tombstones", [False, True])
def test_topics_of_any_kind_and_batch_size_are_data_frames(app: sl.App, tombstones: bool) -> None:
    counts = app.topic("counts", value=int)
    for key, value in [("a", None), ("b", 1), (None, 2), ("a", None)]:
        counts.append([(key, value)])
    rows = [("a", None), ("b", 1), (None, 2), ("a", None)] if tombstones else [("b", 1), (None, 2)]
    seen = counts.to_polars(tombstones=tombstones)
    assert seen.select("key", "value").rows() == rows
    assert ("tombstone" in seen.columns) is tombstones


@pytest.mark.parametrize("tombstones", [False, True])
@pytest.mark.parametrize("rows", [[], [("AA", None)]])
def test_an_empty_topic_has_its_columns(
    app: sl.App, rows: list[tuple[str, None]], tombstones: bool
) -> None:
    delays = app.topic("delays", value=Delay)
    delays.append(rows)
    seen = delays.to_polars(tombstones=tombstones)
    assert len(seen) == (len(rows) if tombstones else 0)
    assert "minutes" in seen.columns


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN", "1e100"])
def test_values_without_a_column_type_are_shown_as_stored(app: sl.App, value: str) -> None:
    """Before, one infinite Decimal made `to_polars` raise a TypeError."""
    prices = app.topic("prices", value=Decimal)
    prices.append([("AA", Decimal("1.5")), ("BA", Decimal(value))])
    seen = prices.to_polars()["value"].to_list()
    assert prices.values.decode(pa.array(seen))[0] == Decimal("1.5")
    assert all(isinstance(item, bytes) for item in seen)


def test_a_topic_can_be_read_after_another_one_has_got_more_partitions(tmp_path: Path) -> None:
    def declared() -> tuple[sl.App, sl.Topic[Any, Any], sl.Topic[Any, Any]]:
        app = sl.App("app", log=tmp_path / "log")
        given = app.topic("given", key=str, value=int, partitions=2)
        return app, given, app.topic("other", key=str, value=int, partitions=2)

    app, given, _ = declared()
    with app:
        given.append([("a", 1)])
        app.broker().alter_topic("other", partitions=4)
    app, given, other = declared()
    with app:
        assert given.to_polars()["value"].to_list() == [1]
        with pytest.raises(
            sl.InvalidConfig, match="'other' has 4 partitions, but is declared with 2"
        ):
            other.to_polars()
