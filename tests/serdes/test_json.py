"""JSON: the written text, and the reading of values from other programs."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import Any

import msgspec
import pytest

import strandline as sl
from tests.serdes.kit import codec, read, shown, written


@dataclasses.dataclass(frozen=True)
class Reading:
    sensor: str
    at: dt.datetime
    value: float
    count: int = 1
    raw: bytes | None = None
    day: dt.date | None = None


CODEC = codec(Reading, "json")
AT = dt.datetime(2024, 5, 1, 10, 0, 0, 250_000, tzinfo=dt.UTC)
FULL = {"sensor": "a", "at": "2024-05-01T10:00:00.250000+00:00", "value": 0.1}


def test_values_are_written_as_json_objects() -> None:
    full = Reading('a"\n\u2028é', AT, 1e300, 2**63 - 1, b"\xff\x00", dt.date(2024, 5, 1))
    [data] = written(CODEC, full)
    assert data is not None
    assert json.loads(data) == {
        "sensor": 'a"\n\u2028é',
        "at": "2024-05-01T10:00:00.250+00:00",
        "value": 1e300,
        "count": 9223372036854775807,
        "raw": "/wA=",
        "day": "2024-05-01",
    }
    assert b" " not in data


def both(message: Any) -> list[Any]:
    """Return the value that a handler gets of a message, and the row of a data frame."""
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    return [*read(CODEC, data), *shown(CODEC, data)]


def test_unknown_fields_are_ignored_and_fields_with_defaults_may_be_missing() -> None:
    record, row = both({**FULL, "extra": {"n": [1]}})
    assert record == Reading("a", AT, 0.1)
    assert row == {**dataclasses.asdict(record), "count": None}  # as in columns: older records


@pytest.mark.parametrize(
    "at",
    [
        "2024-05-01T12:00:00.25+02:00",
        "2024-05-01T10:00:00.250Z",
        "2024-05-01T10:00:00.25",
        "2024-05-01 10:00:00.25Z",
    ],
)
def test_times_may_have_any_zone_or_none(at: str) -> None:
    record, row = both({**FULL, "at": at})
    assert record.at == row["at"] == AT
    assert record.at.tzinfo is dt.UTC


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (
            {**FULL, "value": "0.1"},
            r"not JSON of Reading: Expected `float`, got `str` - at `\$.value`",
        ),
        ({**FULL, "count": 1.5}, "Expected `int`, got `float`"),
        ({**FULL, "count": True}, "Expected `int`, got `bool`"),
        ({**FULL, "count": None}, "Expected `int`, got `null`"),
        ({**FULL, "raw": "not base64!"}, "Invalid base64"),
        ({**FULL, "at": 1714557600}, "Expected `datetime`, got `int`"),
        ({"sensor": "a", "value": 1}, "missing required field `at`"),
        ([], "Expected `object`, got `array`"),
        (b"null", "Expected `object`, got `null`"),
        (b"", "truncated"),
        (b'{"sensor":', "truncated"),
        (b"{} {}", "."),
        (b'{"value": NaN}', "invalid"),
        (b"\xff", "."),
    ],
)
def test_anything_else_is_refused(message: Any, match: str) -> None:
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    for look in (read, shown):
        with pytest.raises(sl.InvalidRecord, match=match):
            look(CODEC, data)


def test_a_number_too_large_for_a_column_is_refused_in_columns() -> None:
    data = json.dumps({**FULL, "count": 2**64}).encode()
    with pytest.raises(sl.InvalidRecord, match="JSON that is no Reading"):
        shown(CODEC, data)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_is_refused(value: float) -> None:
    with pytest.raises(sl.InvalidRecord, match="JSON has no NaN and no infinity"):
        written(CODEC, Reading("a", AT, value))


class Renamed(msgspec.Struct, rename="camel", frozen=True):
    flight_number: int
    inner: Reading | None = None


class Tagged(msgspec.Struct, tag="t", frozen=True):
    n: int


@pytest.mark.parametrize(
    ("value", "data"),
    [(Renamed(7), b'{"flightNumber":7,"inner":null}'), (Tagged(1), b'{"type":"t","n":1}')],
)
def test_renamed_fields_of_a_struct_have_those_names_in_json(value: Any, data: bytes) -> None:
    made = codec(type(value), "json")
    assert written(made, value) == [data]
    assert read(made, data) == [value]
    assert made.from_columns(made.to_columns(made.encode([made.item(value)]))).to_pylist() == [data]


def test_values_of_a_declared_type_are_checked_when_they_are_sent() -> None:
    made = codec(dict[str, int], sl.JsonSerde())
    with pytest.raises(sl.InvalidRecord, match="could not encode: Expected `int`, got `str`"):
        made.item({"a": "b"})
