"""Encode and decode values column by column, against the quickest loop over records.

The values are flights of ten fields, as many at a time as a task decodes. Each form is measured in
three ways: a table to bytes (`append` of a data frame), bytes to a table (`to_polars`), bytes to
objects (the input of handlers). The loops call the usual library of the form, one value at a time,
and have the same result as ours: fastavro for Avro, msgspec for JSON and MessagePack, protobuf's
own generated class.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import json
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import fastavro
import msgspec
import polars as pl
import pyarrow as pa

from benchmarks.harness import Figure, compare
from strandline.framework.container.inputs import DECODE_RECORDS
from strandline.framework.formats import avro_schema, protobuf_messages
from strandline.framework.formats.choice import value_codec
from strandline.framework.formats.codecs import TypedCodec
from strandline.framework.formats.schema import RowType


@dataclasses.dataclass(frozen=True)
class FlightRow:
    """A flight, as in the examples."""

    carrier: str
    origin: str
    dest: str
    at: dt.datetime
    number: int
    dep_delay: float | None = None
    arr_delay: float | None = None
    distance: int = 0
    tail: str | None = None
    cancelled: bool = False


@dataclasses.dataclass(frozen=True)
class Loops:
    """Functions for one record of a form at a time, by its usual library."""

    library: str
    dumps: Callable[[dict[str, Any]], bytes]
    to_dict: Callable[[bytes], dict[str, Any]]
    to_object: Callable[[bytes], FlightRow]


ROWS = RowType(FlightRow)
Way = tuple[str, Callable[[], Any], Callable[[], Any]]
TARGETS = {"avro": {"table to bytes": 5.0, "bytes to table": 5.0, "bytes to objects": 1.5}}


def run(*, quick: bool = False) -> Iterator[Figure]:
    """Measure records a second of each form, each way."""
    rounds = 2 if quick else 15
    table = _flights()
    for form, loops in _loops().items():
        codec = cast("TypedCodec", value_codec(FlightRow, form))  # type: ignore[arg-type]
        data = codec.from_columns(table)
        assert ROWS.values(codec.to_columns(data)) == codec.decode(data) == ROWS.values(table)
        for way, ours, theirs in _ways(codec, data, table, loops):
            yield compare(
                f"{form}, {way} ({data.nbytes / len(data) - 4:.0f} bytes each)",
                partial(_rate, ours),
                partial(_rate, theirs),
                peer_name=f"a loop with {loops.library}",
                unit="records/s",
                target=None if quick else TARGETS.get(form, {}).get(way),
                rounds=rounds,
            )


def _ways(codec: TypedCodec, data: pa.Array, table: pa.Array, loops: Loops) -> Iterator[Way]:
    """Yield the measured ways: the name, ours, and the loop."""
    frame = pl.DataFrame(pa.Table.from_struct_array(table))
    yield (
        "table to bytes",
        lambda: codec.from_columns(table),
        lambda: pa.array(map(loops.dumps, frame.to_dicts()), pa.binary()),
    )
    yield (
        "bytes to table",
        lambda: codec.to_columns(data),
        lambda: pa.array(map(loops.to_dict, data.to_pylist()), ROWS.arrow),
    )
    yield (
        "bytes to objects",
        lambda: codec.decode(data),
        lambda: list(map(loops.to_object, data.to_pylist())),
    )


def _rate(call: Callable[[], Any]) -> float:
    """Return records a second of processor time, because nothing here waits."""
    begun = time.process_time()
    call()
    return DECODE_RECORDS / (time.process_time() - begun)


def _flights() -> pa.Array:
    seeded = random.Random(1)
    start = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    return ROWS.column(
        [
            ROWS.check(
                FlightRow(
                    seeded.choice(["AA", "UA", "DL"]),
                    seeded.choice(["JFK", "LGA", "EWR"]),
                    seeded.choice(["ORD", "LAX", "ATL"]),
                    start + dt.timedelta(minutes=number),
                    seeded.randrange(5000),
                    None if number % 9 == 0 else round(seeded.gauss(10, 30)) * 1.0,
                    None if number % 9 == 0 else round(seeded.gauss(10, 30)) * 1.0,
                    seeded.randrange(3000),
                    f"N{seeded.randrange(1000)}AA",
                    number % 50 == 0,
                )
            )
            for number in range(DECODE_RECORDS)
        ]
    )


def _loops() -> dict[str, Loops]:
    as_json, as_pack = msgspec.json.Encoder().encode, msgspec.msgpack.Encoder().encode
    typed_json = msgspec.json.Decoder(FlightRow).decode
    typed_pack = msgspec.msgpack.Decoder(FlightRow).decode
    message: Any = protobuf_messages.derived(ROWS, "Flight")
    return {
        "json": Loops("msgspec", as_json, lambda data: vars(typed_json(data)), typed_json),
        "avro": _avro(),
        "protobuf": Loops(
            "protobuf",
            lambda row: bytes(message(**row).SerializeToString()),
            lambda data: _fields(message.FromString(data)),
            lambda data: FlightRow(**_fields(message.FromString(data))),
        ),
        "msgpack": Loops("msgspec", as_pack, lambda data: vars(typed_pack(data)), typed_pack),
    }


def _avro() -> Loops:
    schema = fastavro.parse_schema(json.loads(avro_schema.derived(ROWS, "Flight")))

    def dumps(row: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        return out.getvalue()

    def to_dict(data: bytes) -> dict[str, Any]:
        row = fastavro.schemaless_reader(io.BytesIO(data), schema, None)
        return cast("dict[str, Any]", row)

    return Loops("fastavro", dumps, to_dict, lambda data: FlightRow(**to_dict(data)))


def _fields(message: Any) -> dict[str, Any]:
    """Return the fields as a loop would: None for absent ones, a datetime for a Timestamp."""
    optional = ("dep_delay", "arr_delay", "distance", "tail", "cancelled")
    row = {name: getattr(message, name) for name in ("carrier", "origin", "dest", "number")}
    row["at"] = message.at.ToDatetime(tzinfo=dt.UTC)
    for name in optional:
        row[name] = getattr(message, name) if message.HasField(name) else None
    return row
