"""Limits of a topic's schema and settings: one topic does no harm to the others."""

from __future__ import annotations

from pathlib import Path

import msgspec
import polars as pl
import pyarrow as pa
import pytest

from strandline import changelog
from strandline.changelog import schema as schemas
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import InvalidConfig, SchemaMismatch
from strandline.changelog.flight import messages
from strandline.changelog.flight.client import FlightBroker
from strandline.changelog.flight.connection_target import ConnectionTarget
from strandline.changelog.layout import CATALOG
from strandline.changelog.schema import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_FIELDS
from tests.hostile.conftest import Stranger

ONE = pa.schema([("n", pa.int64())])


def nested(depth: int) -> pa.DataType:
    kind = pa.int8()
    for _ in range(depth - 1):
        kind = pa.list_(kind)
    return kind


def bools(count: int, prefix: str = "b") -> list[pa.Field]:
    return [pa.field(f"{prefix}{n}", pa.bool_()) for n in range(count)]


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.string_view(),
        pa.binary_view(),
        pa.list_view(pa.int8()),
        pa.large_list_view(pa.int8()),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.sparse_union([pa.field("a", pa.int8())]),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "around",
    [
        lambda kind: kind,
        pa.list_,
        lambda kind: pa.struct([("x", kind)]),
        lambda kind: pa.map_(pa.string(), kind),
    ],
    ids=["itself", "list", "struct", "map"],
)
def test_types_whose_values_share_bytes_are_refused(owner: Owner, kind, around) -> None:  # type: ignore[no-untyped-def]
    """A batch of such a type becomes thousands of times as large at its readers."""
    owner.create_topic("typed", schema=ONE)
    column = pa.field("x", around(kind))
    with pytest.raises(SchemaMismatch, match=r"'new': field 'x'.* cannot be stored: .*(use|give)"):
        owner.create_topic("new", schema=pa.schema([column]))
    with pytest.raises(SchemaMismatch, match="'typed': field 'x'.* cannot be stored"):
        owner.alter_topic("typed", schema=ONE.append(column))
    assert [one.name for one in owner.topics() if not one.internal] == ["t", "typed"]


@pytest.mark.parametrize(
    "kind",
    [pa.struct([]), pa.list_(pa.int8(), 0), pa.binary(0), pa.struct([("x", pa.struct([]))])],
    ids=str,
)
def test_lists_of_values_without_bytes_are_refused(owner: Owner, kind: pa.DataType) -> None:
    for column in (pa.list_(kind), pa.map_(pa.string(), kind), pa.large_list(kind)):
        with pytest.raises(SchemaMismatch, match="takes no bytes; give it"):
            owner.create_topic("new", schema=pa.schema([("x", column)]))


def test_types_of_frames_are_accepted(owner: Owner) -> None:
    frame = pl.DataFrame(
        schema={
            "text": pl.String,
            "bytes": pl.Binary,
            "texts": pl.List(pl.String),
            "pair": pl.Array(pl.Float32, 2),
            "object": pl.Struct({"a": pl.Struct({}), "b": pl.List(pl.Struct({"c": pl.Int8}))}),
            "price": pl.Decimal(20, 2),
            "at": pl.Datetime("us", "Europe/Berlin"),
            "day": pl.Date,
            "hour": pl.Time,
            "took": pl.Duration("ms"),
        }
    )
    others = [
        *(pa.uuid(), pa.json_(), pa.bool8(), pa.fixed_shape_tensor(pa.int8(), [2, 2])),
        *(pa.float16(), pa.decimal32(5, 2), pa.month_day_nano_interval(), pa.binary(16)),
        *(pa.map_(pa.string(), pa.large_list(pa.large_string())), nested(MAX_SCHEMA_DEPTH)),
    ]
    schema = frame.to_arrow().schema
    for kind in others:
        schema = schema.append(pa.field(str(len(schema)), kind))
    assert owner.create_topic("new", schema=schema).schema == schema


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (bools(MAX_SCHEMA_FIELDS + 1), "more than 10,000 fields"),
        ([pa.field("x", pa.struct(bools(MAX_SCHEMA_FIELDS)))], "more than 10,000 fields"),
        ([pa.field("x" * MAX_SCHEMA_BYTES, pa.bool_())], "at most 1,048,576 are allowed"),
        ([pa.field("x", pa.int8(), metadata={"a": "b" * MAX_SCHEMA_BYTES})], "at most 1,048,576"),
        ([pa.field("x", nested(MAX_SCHEMA_DEPTH + 1))], "more than 100 deep; use fewer levels"),
    ],
    ids=["fields", "nested fields", "a name", "metadata", "depth"],
)
def test_a_schema_that_is_too_large_is_refused(
    owner: Owner, fields: list[pa.Field], problem: str
) -> None:
    owner.create_topic("typed", schema=ONE)
    with pytest.raises(SchemaMismatch, match=f"'new'.*{problem}"):
        owner.create_topic("new", schema=pa.schema(fields))
    with pytest.raises(SchemaMismatch, match=f"'typed'.*{problem}"):
        owner.alter_topic("typed", schema=pa.schema([*ONE, *fields]))
    assert owner.topic("typed").schema == ONE


def test_the_largest_schema_is_accepted_and_used(owner: Owner, target: ConnectionTarget) -> None:
    schema = pa.schema(bools(MAX_SCHEMA_FIELDS))
    broker = FlightBroker(target, deadline=30)
    assert broker.create_topic("wide", schema=schema).schema == schema
    assert {one.name for one in broker.topics()} >= {"t", "wide"}
    broker.close()


def test_versions_of_a_schema_are_limited(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "MAX_SCHEMA_VERSIONS", 3)
    owner.create_topic("typed", schema=ONE)
    for count in (1, 2):
        owner.alter_topic("typed", schema=pa.schema([*ONE, *bools(count)]))
    with pytest.raises(SchemaMismatch, match="'typed' has 3 versions of its schema"):
        owner.alter_topic("typed", schema=pa.schema([*ONE, *bools(3)]))
    monkeypatch.setattr(schemas, "MAX_SCHEMA_VERSIONS", 10)
    monkeypatch.setattr(schemas, "MAX_VERSIONS_BYTES", 500)
    with pytest.raises(SchemaMismatch, match="all versions of the schema have"):
        owner.alter_topic("typed", schema=pa.schema([*ONE, *bools(3)]))
    assert owner.topic("typed").schema_id == 3


def test_a_producer_cannot_let_the_catalog_grow_without_limit(
    owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemas, "MAX_VERSIONS_BYTES", 50_000)
    owner.create_topic("typed", schema=ONE)
    with pytest.raises(SchemaMismatch):
        for count in range(1, 1_000):
            owner.alter_topic("typed", schema=pa.schema([*ONE, *bools(count)]))
    assert (tmp_path / "log" / CATALOG).stat().st_size < 100_000


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("retention.ms", "0" * 4_000 + "1"),
        ("retention.ms", " " * 4_000 + "1"),
        ("cleanup.policy", "compact," * 4_000 + "compact"),
    ],
)
def test_the_text_of_a_setting_is_limited(owner: Owner, setting: str, text: str) -> None:
    for change in (
        lambda: owner.create_topic("new", config={setting: text}),
        lambda: owner.alter_topic("t", config={setting: text}),
    ):
        with pytest.raises(
            InvalidConfig, match=f"{setting} has at most 100 characters, got (4|32),"
        ):
            change()


def test_lists_are_sent_in_pages(
    owner: Owner, target: ConnectionTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One page for all topics would be longer than a client reads."""
    monkeypatch.setattr(messages, "PAGE_BYTES", 10_000)
    monkeypatch.setattr(messages, "MAX_ANSWER_BYTES", 20_000)
    names = [f"wide-{number}" for number in range(12)]
    for name in names:
        owner.create_topic(name, schema=pa.schema(bools(100)))
    broker = FlightBroker(target, deadline=30)
    listed = broker.topics()
    assert listed == owner.topics()
    assert {one.name for one in listed} >= {"t", *names}
    assert broker.groups() == []
    broker.close()


def test_a_log_with_a_larger_schema_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier releases had no limits, so a log may have a topic that cannot be created now."""
    fields = [*bools(50), pa.field("nothing", pa.list_(pa.null()))]
    wide = pa.schema(fields)
    with monkeypatch.context() as earlier:
        earlier.setattr(schemas, "_check_types", lambda *_: None)
        with changelog.open(tmp_path / "log") as log:
            log.create_topic("wide", schema=wide)
            with log.producer() as producer:
                producer.send("wide", {"b0": True, "nothing": [None]})
    monkeypatch.setattr(schemas, "MAX_SCHEMA_FIELDS", 51)
    with changelog.open(tmp_path / "log") as log:
        assert log.topic("wide").schema == wide
        log.alter_topic("wide", schema=wide)
        with log.producer() as producer:
            producer.send("wide", {"b0": False, "nothing": [None]})
        assert log.to_polars("wide")["b0"].to_list() == [True, False]
        with pytest.raises(SchemaMismatch, match="more than 51 fields"):
            log.alter_topic("wide", schema=wide.append(pa.field("new", pa.int8())))
        monkeypatch.setattr(schemas, "MAX_SCHEMA_FIELDS", 100)
        log.alter_topic("wide", schema=wide.append(pa.field("new", pa.int8())))


def test_a_client_cannot_create_what_others_cannot_list(
    owner: Owner, stranger: Stranger, target: ConnectionTarget
) -> None:
    schema = pa.schema([pa.field("x", pa.struct(bools(MAX_SCHEMA_FIELDS, "")))])
    body = msgspec.msgpack.encode(["new", 1, None, schema.serialize().to_pybytes(), False])
    with pytest.raises(SchemaMismatch):
        stranger.act("CreateTopic", body)
    broker = FlightBroker(target, deadline=30)
    assert [one.name for one in broker.topics() if not one.internal] == ["t"]
    broker.close()
