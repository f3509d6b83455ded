"""Topics whose values are bytes in the log have their declared types for the user."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.error import SchemaRegistryError

import strandline as sl
from strandline.changelog.errors import RegistryUnavailable, SchemaMismatch
from strandline.framework.export import committed_batches
from strandline.framework.formats.registry import SchemaRegistry
from strandline.framework.testing import CRASH, TestDriver
from tests.serdes.kit import FORMS

EACH = pytest.mark.parametrize("form", FORMS)
AT = dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC)


@dataclasses.dataclass(frozen=True)
class Sale:
    shop: str
    at: dt.datetime
    amount: float
    count: int = 1
    note: str | None = None


SALES = [Sale("york", AT, 1.5), Sale("leeds", AT + dt.timedelta(days=1), 2.5, 3, "gift")]


def stored(app: sl.App, topic: str) -> list[bytes | None]:
    """Return the values as they are in the log."""
    batches = committed_batches(app.broker(), topic)
    found: list[bytes | None] = []
    for batch in batches:
        assert batch.columns.schema.field("value").type == pa.binary()
        found += batch.columns.column("value").to_pylist()
    return found


@pytest.fixture
def app(tmp_path: Path) -> Any:
    with sl.App("shop", log=tmp_path / "log") as made:
        yield made


@EACH
def test_key_and_time_are_columns_in_data_frames_read_and_appended(app: sl.App, form: Any) -> None:
    sales = app.topic("sales", value=Sale, key="shop", timestamp="at", serde=form)
    assert sales.append(SALES) == 2
    frame = pl.DataFrame([dataclasses.asdict(sale) for sale in SALES])
    assert sales.append(frame) == 2
    assert sales.append(frame.drop("note", "count")) == 2
    got = sales.to_polars()
    assert got.columns == ["partition", "offset", "timestamp", "key", *frame.columns]
    assert got["key"].to_list() == ["york", "leeds"] * 3
    assert got["timestamp"].to_list() == [sale.at for sale in SALES] * 3
    assert got[:4].select(frame.columns).rows() == frame.rows() * 2
    assert got[4:]["count"].to_list() == [1, 1]
    data = stored(app, "sales")
    assert data[:2] == data[2:4], "records and frames are written alike"


@EACH
def test_tasks_get_objects_and_send_them_and_the_topic_is_bytes(form: Any, tmp_path: Path) -> None:
    app = sl.App("shop", log=tmp_path / "log")
    sales = app.topic("sales", value=Sale, key="shop", serde=form)
    doubled = app.topic("doubled", value=Sale, key="shop", serde=form)

    @app.task(sales)
    def double(record: sl.Record[str, Sale]) -> None:
        assert type(record.value) is Sale
        doubled.send(None, dataclasses.replace(record.value, amount=2 * record.value.amount))

    driver = TestDriver(app).run([SALES[0], CRASH, SALES[1]])
    assert [record.value.amount for record in driver.output(doubled)] == [3.0, 5.0]
    assert driver.owner.topic("doubled").schema is None


@EACH
def test_tombstones_are_nulls(app: sl.App, form: Any) -> None:
    sales = app.topic("sales", value=Sale, serde=form)
    sales.append([("a", SALES[0]), ("a", None)])
    assert stored(app, "sales")[1] is None
    assert sales.to_polars().height == 1
    told = sales.to_polars(tombstones=True)
    assert told.select("tombstone", "shop").rows() == [(False, "york"), (True, None)]


@EACH
def test_a_record_of_another_form_is_named(app: sl.App, form: Any) -> None:
    sales = app.topic("sales", value=Sale, key="shop", serde=form)
    sales.append(SALES)
    with app.producer() as producer:
        producer.send("sales", b"\xff\xff", key=b"k")
    sales.append(SALES)
    with pytest.raises(sl.InvalidRecord, match=r"the value at sales\[0\]@2 cannot be read: "):
        sales.to_polars()
    seen = []

    @app.task(sales, on_error="dead_letter")
    def look(record: sl.Record[str, Sale]) -> None:
        seen.append(record.value)

    app.run("idle", progress=False)
    assert seen == SALES * 2
    assert stored(app, "shop-look-dead-letter") == [b"\xff\xff"]


@EACH
def test_records_of_another_form_can_be_left_out(
    app: sl.App, form: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sales = app.topic("sales", value=Sale, key="shop", serde=form)
    with app.producer() as producer:
        for _ in range(3):
            producer.send("sales", b"\xff\xff", key=b"k")
    assert sales.to_polars(errors="skip").height == 0
    sales.append(SALES)
    with app.producer() as producer:
        producer.send("sales", b"\xff\xff", key=b"k")
        producer.send("sales", None, key=b"york")
    caplog.clear()
    found = sales.to_polars(errors="skip", tombstones=True)
    assert found["offset"].to_list() == [3, 4, 6]
    assert "4 records cannot be read and are left out, the first at offset 0" in caplog.text
    with pytest.raises(sl.InvalidConfig, match="errors is"):
        sales.to_polars(errors="ignore")  # type: ignore[arg-type]


def test_keys_of_another_form_can_be_left_out(app: sl.App) -> None:
    numbers = app.topic("numbers", key=str, value=int)
    numbers.append([("a", 1), ("b", 2)])
    with app.producer() as producer:
        producer.send("numbers", b"\x07", key=b"\xff")
    with pytest.raises(sl.InvalidRecord, match='errors="skip"'):
        numbers.to_polars()
    assert numbers.to_polars(errors="skip")["value"].to_list() == [1, 2]


def test_a_value_that_cannot_be_written_is_found_among_those_of_a_commit(tmp_path: Path) -> None:
    app = sl.App("shop", log=tmp_path / "log")
    numbers = app.topic("numbers", value=float)
    sales = app.topic("sales", value=Sale, key="shop", serde="json")

    @app.task(numbers, on_error="skip")
    def sell(record: sl.Record[str, float]) -> None:
        sales.send(None, dataclasses.replace(SALES[0], amount=record.value))

    driver = TestDriver(app).run([("a", 1.0), ("b", float("nan")), ("c", 3.0)])
    assert [record.value.amount for record in driver.output(sales)] == [1.0, 3.0]


# Declarations and existing topics -----------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then", "match"),
    [
        (None, "json", "holds columns .'shop'.*but is declared with values that are bytes"),
        ("json", None, "holds bytes, but is declared with struct.*name the form of the bytes"),
    ],
)
def test_columns_are_not_taken_for_bytes_nor_bytes_for_columns(
    first: Any, then: Any, match: str, tmp_path: Path
) -> None:
    with sl.App("one", log=tmp_path / "log") as app:
        app.topic("sales", value=Sale, serde=first).append([("k", SALES[0])])
    with sl.App("two", log=tmp_path / "log") as app:
        sales = app.topic("sales", value=Sale, serde=then)
        with pytest.raises(SchemaMismatch, match=match):
            sales.to_polars()


def test_typed_values_in_a_topic_of_bytes_are_json_by_default() -> None:
    app = sl.App("shop", log="kafka://127.0.0.1:1")
    by_default, declared = app.topic("a", value=Sale), app.topic("b", value=Sale, serde="avro")
    assert by_default.stored_schema is None
    assert by_default.schema == declared.schema
    sale = SALES[1]
    text = b'{"shop":"leeds","at":"2024-05-02T10:00:00+00:00","amount":2.5,"count":3,"note":"gift"}'
    assert by_default.values.encode([by_default.values.item(sale)]).to_pylist() == [text]
    other = app.repartition(by_default, "note")
    assert other.stored_schema is None


def test_the_same_topic_declared_twice_has_one_form(app: sl.App) -> None:
    assert app.topic("a", value=Sale, serde="json") is app.topic("a", value=Sale, serde="json")
    with pytest.raises(sl.InvalidConfig, match="declared twice"):
        app.topic("a", value=Sale, serde="avro")


@EACH
def test_keys_have_forms_too(app: sl.App, form: Any) -> None:
    @dataclasses.dataclass(frozen=True)
    class Route:
        start: str
        end: str

    late = app.topic("late", key=Route, value=Sale, key_serde=form, serde=form)
    route = Route("york", "leeds")
    late.append([(route, SALES[0])])
    frame = pl.DataFrame([dataclasses.asdict(SALES[0])])
    late.append(frame.with_columns(key=pl.struct(start=pl.lit("york"), end=pl.lit("leeds"))))
    got = late.to_polars()
    assert got["key"].to_list() == [dataclasses.asdict(route)] * 2
    seen = []

    @app.task(late)
    def look(record: sl.Record[Route, Sale]) -> None:
        seen.append(record.key)

    app.run("idle", progress=False)
    assert seen == [route, route]


# With a registry -----------------------------------------------------------------------------


@pytest.fixture
def mock(name: str) -> SchemaRegistry:
    return SchemaRegistry(f"mock://{name}")


def test_the_variable_names_the_registry(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("STRANDLINE_SCHEMA_REGISTRY", f"mock://{name}")
    app = sl.App("shop", registry="http://127.0.0.1:1")
    topic = app.topic("sales", value=Sale, serde="avro")
    [data] = topic.values.encode([topic.values.item(SALES[0])]).to_pylist()
    assert data[:5] == b"\x00\x00\x00\x00\x01"
    assert app.session.registry is not None
    assert app.session.registry.client().get_subjects() == ["sales-value"]


@pytest.mark.parametrize("call", ["schema", "id_of"])
def test_records_wait_for_a_registry_that_is_down(
    call: str, mock: SchemaRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with sl.App("seller", log=tmp_path / "log", registry=mock) as seller:
        seller.topic("sales", value=Sale, key="shop", serde="avro").append(SALES)
    app = sl.App("shop", log=tmp_path / "log", registry=mock.url)
    sales = app.topic("sales", value=Sale, key="shop", serde="avro")
    copies = app.topic("copies", value=Sale, key="shop", serde="avro")

    @app.task(sales, on_error="skip")
    def copy(record: sl.Record[str, Sale]) -> None:
        copies.send(None, record.value)

    answer, failures = getattr(SchemaRegistry, call), iter(range(3))

    def failing(self: SchemaRegistry, *asked: Any) -> Any:
        if next(failures, None) is not None:
            raise RegistryUnavailable("not now")
        return answer(self, *asked)

    monkeypatch.setattr(SchemaRegistry, call, failing)
    app.run("idle", progress=False)
    assert next(failures, None) is None
    assert copies.to_polars()["shop"].to_list() == ["york", "leeds"]
    app.close()


def test_a_commit_does_not_wait_for_the_schema_of_the_next_records(
    mock: SchemaRegistry, tmp_path: Path
) -> None:
    app = sl.App("shop", log=tmp_path / "log", registry=mock, commit_records=2)
    sales = app.topic("sales", value=Sale, key="shop", serde="avro")
    sales.append(SALES)
    with app.producer() as producer:
        producer.send("sales", b"\x00\x00\x00\xff\xff", key=b"k")
    copies = app.topic("copies", value=Sale, key="shop")
    asked = []

    def unknown(schema_id: int) -> Any:
        asked.append(schema_id)
        raise ConnectionRefusedError("nobody there")

    @app.task(sales)
    def copy(record: sl.Record[str, Sale]) -> None:
        copies.send(None, record.value)
        mock.client().get_schema = unknown

    app.run(count=2, progress=False)
    assert copies.to_polars()["shop"].to_list() == ["york", "leeds"]
    app.close()


def test_a_refused_schema_ends_the_run_and_no_record_is_skipped(
    mock: SchemaRegistry, tmp_path: Path
) -> None:
    app = sl.App("shop", log=tmp_path / "log", registry=mock)
    sales = app.topic("sales", value=Sale, key="shop")
    copies = app.topic("copies", value=Sale, key="shop", serde="avro")
    sales.append(SALES)
    register = mock.client().register_schema

    def refuse(*_: object) -> None:
        raise SchemaRegistryError(409, 409, "incompatible")

    @app.task(sales, on_error="skip")
    def copy(record: sl.Record[str, Sale]) -> None:
        copies.send(None, record.value)

    mock.client().register_schema = refuse
    with pytest.raises(SchemaMismatch, match="the schema of copies-value: incompatible"):
        app.run("idle", progress=False)
    assert copies.to_polars().height == 0
    mock.client().register_schema = register
    app.run("idle", progress=False)
    assert copies.to_polars()["shop"].to_list() == ["york", "leeds"]
    app.close()


SMALL = {"type": "record", "name": "Small", "fields": [{"name": "n", "type": "int"}]}
LONG, DOUBLE = (
    pa.schema([pa.field("n", kind, nullable=False)]) for kind in (pa.int64(), pa.float64())
)


@pytest.mark.parametrize(
    ("kind", "serde", "good", "bad"),
    [(DOUBLE, "json", 1.5, float("nan")), (LONG, sl.AvroSerde(SMALL), 1, 2**40)],
)
def test_a_value_that_only_the_form_cannot_hold_is_named_by_topic_and_key(
    app: sl.App, kind: Any, serde: Any, good: Any, bad: Any
) -> None:
    topic = app.topic("numbers", value=kind, serde=serde)
    with pytest.raises(sl.InvalidRecord, match="topic 'numbers': the record with key 'b' cannot"):
        topic.append([("a", {"n": good}), ("b", {"n": bad})])
    with pytest.raises(sl.InvalidRecord, match="topic 'numbers': "):
        topic.append(pl.DataFrame({"key": ["a", "b"], "n": [good, bad]}))
    assert topic.to_polars().height == 0
