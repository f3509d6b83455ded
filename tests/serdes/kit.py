"""Typed values with every kind of column, and codecs for them."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any, cast

import msgspec
import pyarrow as pa
from hypothesis import strategies as st

from strandline.framework.formats.choice import AnySerde, value_codec
from strandline.framework.formats.codecs import TypedCodec
from strandline.framework.formats.wire import SerdeUse


@dataclasses.dataclass(frozen=True)
class Stop:
    town: str
    at: dt.datetime
    minutes: int = 1
    note: str | None = None


class Seat(msgspec.Struct, frozen=True):
    row: int
    letter: str = "A"


@dataclasses.dataclass(frozen=True)
class Trip:
    name: str
    at: dt.datetime
    day: dt.date
    number: int
    length: float
    late: bool
    ticket: bytes
    stops: list[Stop]
    scores: list[int]
    fare: float | None
    seat: Seat | None = None
    remark: str | None = None
    rank: int = 7
    tags: list[str] = dataclasses.field(default_factory=list)
    code: bytes = b"\xff"


FORMS = ["json", "avro", "protobuf", "msgpack"]

# Years that all forms can write. Protobuf's timestamps go from year 1 to 9999.
times = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30), timezones=st.just(dt.UTC))
longs = st.integers(-(2**63), 2**63 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
stops = st.builds(Stop, town=texts, at=times, minutes=longs, note=st.none() | texts)
trips = st.builds(
    Trip,
    name=texts,
    at=times,
    day=st.dates(dt.date(1, 1, 2), dt.date(9999, 12, 30)),
    number=longs,
    length=finite,
    late=st.booleans(),
    ticket=st.binary(max_size=20),
    stops=st.lists(stops, max_size=3),
    scores=st.lists(longs, max_size=5),
    fare=st.none() | finite,
    seat=st.none() | st.builds(Seat, row=longs, letter=texts),
    remark=st.none() | texts,
    rank=longs,
    tags=st.lists(texts, max_size=3),
    code=st.binary(max_size=5),
)


def codec(kind: Any, serde: AnySerde | None, place: SerdeUse | None = None) -> TypedCodec:
    """Return the codec of typed values in a form."""
    return cast("TypedCodec", value_codec(kind, serde, place or SerdeUse("trips")))


def written(made: TypedCodec, *values: Any) -> list[bytes | None]:
    """Return the bytes of values in the log."""
    found: list[bytes | None] = made.encode([made.item(value) for value in values]).to_pylist()
    return found


def read(made: TypedCodec, *data: bytes | None) -> list[Any]:
    """Return the values that handlers get."""
    return made.decode(pa.array(data, pa.binary()))


def shown(made: TypedCodec, *data: bytes | None) -> list[Any]:
    """Return the values that data frames get, row by row."""
    rows: list[Any] = made.to_columns(pa.array(data, pa.binary())).to_pylist()
    return rows
