"""Tables of another framework are stores: every reader decodes what their declarations record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.embedded.checking.findings import Severity
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.log import Log
from strandline.framework.placing import home
from strandline.framework.spark.options import SourceOptions
from strandline.framework.spark.tables import plan_store, read_store, store_schema
from strandline.statestore.checking.stores import check_stores
from strandline.statestore.foreign_keys import AsciiJsonKey, JsonKey, RawKey
from tests.cli.conftest import Command, folder, strandline
from tests.foreign_tables import record, table, write

__all__ = ["folder", "strandline"]

WINDOW = (1700006400.0, 1700009999.9)
MISLEADING = b"\xc1" + bytes(8) + b"x"
"""Bytes that begin like an expiry that is long over."""


class Order(msgspec.Struct):
    item: str
    count: int


class Written(NamedTuple):
    """A table, as it is stored and as it is read."""

    spec: Any
    stored: dict[bytes, bytes]
    read: dict[Any, Any]


MODEL = {"item": "tea", "count": 3, "__faust": {"ns": "shop.Order"}}
TABLES = [
    Written(table("words"), {b'"york"': b"1", '"é"'.encode(): b"2"}, {"york": 1, "é": 2}),
    Written(
        table("ascii", AsciiJsonKey),
        {b'"york"': b'"\\u00e9"', b'"\\u00e9"': '"é"'.encode()},
        {"york": "é", "é": "é"},
    ),
    Written(
        table("bytes", RawKey, bytes),
        {b"york": MISLEADING, b"\xff": b"1"},
        {b"york": MISLEADING, b"\xff": b"1"},
    ),
    Written(
        table("models"),
        {b'"york"': json.dumps(MODEL).encode(), b'"hull"': b"null"},
        {"york": {"item": "tea", "count": 3}, "hull": None},
    ),
    Written(
        table("windows"),
        {json.dumps(["york", WINDOW], separators=(",", ":")).encode(): b"5"},
        {("york", WINDOW): 5},
    ),
    Written(table("unserialized"), {b"york": b"1", b"\x80": b"2.5"}, {b"york": 1, b"\x80": 2.5}),
]
each_table = pytest.mark.parametrize("written", TABLES, ids=lambda one: one.spec.name)


@pytest.fixture
def log(folder: Path) -> Iterator[Log]:
    """A log with the tables of an app that does not run."""
    with changelog.open(folder, durability="os") as opened:
        for one in TABLES:
            topic = record(opened, "shop", one.spec)
            for number, entry in enumerate(one.stored.items()):
                write(opened, topic, [(entry[0], b"0"), entry], partition=number % 2)
        yield opened


@each_table
def test_a_connection_reads_them(log: Log, written: Written) -> None:
    with sl.connect(log) as connection:
        store = connection.store(f"shop/{written.spec.name}")
        assert dict(store.all()) == store.to_dict() == written.read
        assert {key: store[key] for key in written.read} == written.read
        assert store.get_many([*written.read, "nowhere"]) == written.read
        assert all(key in store for key in written.read)
        assert store.get("nowhere") is None
        assert store.to_arrow()["value"].to_pylist() == list(store.to_dict().values())
        assert len(store.to_polars()) == len(written.read)


@each_table
def test_the_command_line_reads_them(log: Log, strandline: Command, written: Written) -> None:
    name = f"shop/{written.spec.name}"
    listed = strandline("stores", "list", "--json").json
    assert [row["keys"] for row in listed if row["store"] == name] == [len(written.read)]
    assert len(strandline("stores", "scan", name, "--json").lines) == len(written.read)
    if written.spec.name == "unserialized":
        [row] = strandline("stores", "scan", name, "--prefix", "y", "--json").lines
        assert row["key"] == {"utf8": "york"}
    shown = {"bytes": None, "windows": json.dumps(["york", WINDOW])}.get(written.spec.name, "york")
    if shown is not None:
        [row] = strandline("stores", "get", name, shown, "--json").lines
        assert row["value"] in written.read.values()


@each_table
def test_spark_reads_them_in_columns(log: Log, written: Written) -> None:
    options = SourceOptions.parse({"path": "/log", "store": f"shop/{written.spec.name}"})
    target = store_schema(log.broker, options)
    rows = [
        row
        for each in plan_store(log.broker, options)
        for batch in read_store(log.broker, each, target, options)
        for row in batch.to_pylist()
    ]
    if written.spec.name == "windows":
        window = pa.struct([("_1", pa.float64()), ("_2", pa.float64())])
        assert target.field("key").type == pa.struct([("_1", pa.string()), ("_2", window)])
        [row] = rows
        assert row["key"] == {"_1": "york", "_2": {"_1": WINDOW[0], "_2": WINDOW[1]}}
        assert row["value"] == 5
    else:
        assert {row["key"]: row["value"] for row in rows} == written.read
    if written.spec.name == "models":
        assert set(target.field("value").type.names) == {"item", "count"}


@pytest.mark.damages
def test_check_finds_a_value_that_is_no_json(folder: Path) -> None:
    with changelog.open(folder) as log:
        for one in TABLES:
            topic = record(log, "shop", one.spec)
            write(log, topic, one.stored.items())
    storage = LocalStorage(folder)
    with_tables = check_log(storage)
    check_stores(folder, with_tables)
    assert with_tables.report.worst is None
    with changelog.open(folder) as log:
        write(log, "shop-words-changelog", [('"é"'.encode(), b"\xa1x")])
    damaged = check_log(storage)
    check_stores(folder, damaged)
    [found] = damaged.report.of(Severity.DAMAGE)
    assert "a value that is not as declared, under the key 'é'" in found.what


def test_json_has_no_ranges_and_values_can_have_a_type(log: Log, strandline: Command) -> None:
    with sl.connect(log) as connection:
        words = connection.store("shop/words")
        for ask in (
            lambda: words.range("a"),
            lambda: words.range(None, "z"),
            lambda: words.prefix("y"),
        ):
            with pytest.raises(sl.InvalidRequest, match="no order"):
                ask()
        assert len(list(words.range())) == 2
        models = connection.store("shop/models", value=Order | None)
        assert models.to_dict() == {"york": Order("tea", 3), "hull": None}
        assert connection.store("shop/models", value=bytes)["hull"] == b"null"
        with pytest.raises(sl.InvalidRecord, match="as JSON"):
            connection.store("shop/models", value=int).to_dict()
        with pytest.raises(sl.InvalidConfig, match="keys are JSON .UTF-8.*, and are wanted as str"):
            connection.store("shop/words", key=str)
    assert [
        r["key"]
        for r in strandline("stores", "scan", "shop/words", "--prefix", "y", "--json").lines
    ] == ["york"]


def test_a_key_in_any_partition_is_found_as_soon_as_it_is_there(folder: Path) -> None:
    with changelog.open(folder) as log, sl.connect(log) as connection:
        topic = record(log, "shop", table("words"), partitions=4)
        words = connection.store("shop/words")
        assert words.get("york") is None
        assert home("york", 4) != 3
        write(log, topic, [(b'"york"', b"1")], partition=3)
        assert words["york"] == 1
        write(log, topic, [(b'"york"', b"2")], partition=2)
        with pytest.raises(sl.KeyInSeveralPartitions, match="key 'york' in several partitions"):
            words.get("york")
        with pytest.raises(sl.KeyInSeveralPartitions):
            words.to_dict()


def test_no_entry_is_hidden_by_another_one_with_an_equal_key(folder: Path) -> None:
    with changelog.open(folder) as log, sl.connect(log) as connection:
        topic = record(log, "shop", table("numbers"))
        write(log, topic, [(b"1", b'"int"'), (b"1.0", b'"float"'), (b"true", b'"bool"')])
        write(log, topic, [(b'{"id":1}', b'"object"')], partition=1)
        numbers = connection.store("shop/numbers")
        assert [value for _, value in numbers.all()] == ["int", "float", "bool", "object"]
        assert [numbers[key] for key in (1, 1.0, True, {"id": 1})] == [
            "int",
            "float",
            "bool",
            "object",
        ]
        with pytest.raises(sl.InvalidRecord, match="equal in Python"):
            numbers.to_dict()
        with pytest.raises(sl.InvalidRecord, match="equal in Python"):
            numbers.get_many([1, 1.0])
        with pytest.raises(sl.InvalidRecord, match="is an object"):
            numbers.get_many([{"id": 1}])


class Pickled:
    """A serde that only its app has."""

    identity = "Faust's serializers json (keys) and pickle (values)"

    def dumps(self, value: Any) -> bytes:
        raise NotImplementedError

    loads = dumps


def test_readers_say_that_only_the_app_can_read_a_serde(folder: Path, strandline: Command) -> None:
    with changelog.open(folder) as log, sl.connect(log) as connection:
        topic = record(log, "shop", table("sealed", RawKey, Pickled()))
        write(log, topic, [(b'"york"', b"gASV")])
        with pytest.raises(sl.InvalidConfig, match="by Faust's serializers json .keys. and pickle"):
            connection.store("shop/sealed").to_dict()
        assert connection.store("shop/sealed", value=bytes).to_dict() == {b'"york"': b"gASV"}
        assert strandline("stores", "scan", "shop/sealed", "--json").lines[0]["value"] == {
            "utf8": "gASV"
        }
        options = SourceOptions.parse({"path": "/log", "store": "shop/sealed"})
        with pytest.raises(sl.InvalidRecord, match="by a serde that only the app has"):
            store_schema(log.broker, options)


def test_another_serializer_is_refused_while_the_table_has_data(log: Log) -> None:
    with pytest.raises(sl.InvalidConfig) as refused:
        record(log, "shop", table("words", JsonKey, Pickled()))
    assert "its values are JSON, and are declared as those of the serde Faust's" in str(
        refused.value
    )
    assert "No state was changed" in str(refused.value)
    assert "strandline reset shop" in str(refused.value)
    assert "upgrade" not in str(refused.value)
    with pytest.raises(
        sl.InvalidConfig,
        match="keys are JSON .UTF-8.*, and are declared as JSON .ASCII, as Python's json",
    ):
        record(log, "shop", table("words", AsciiJsonKey))
    with sl.connect(log) as connection:
        assert connection.store("shop/words").to_dict() == {"york": 1, "é": 2}


def test_an_app_that_has_committed_nothing_is_known_by_its_declarations(
    folder: Path, strandline: Command
) -> None:
    with changelog.open(folder) as log:
        topic = record(log, "shop-v2", table("words"))
        write(log, topic, [(b'"york"', b"1")])
        assert [row["store"] for row in strandline("stores", "list", "--json").json] == [
            "shop-v2/words"
        ]


def test_a_table_from_before_declarations_is_recorded_if_it_fits(folder: Path) -> None:
    with changelog.open(folder) as log, sl.connect(log) as connection:
        for name in ("fits", "other"):
            log.create_topic(f"shop-{name}-changelog", 1, config={"cleanup.policy": "compact"})
        write(log, "shop-fits-changelog", [(b'"york"', b"1")])
        write(log, "shop-other-changelog", [(b'"york"', b"\xa1x")])
        record(log, "shop", table("fits"))
        assert connection.store("shop/fits")["york"] == 1
        with pytest.raises(sl.InvalidConfig, match="is not what is stored"):
            record(log, "shop", table("other"))
