"""A topic's values look the same to the user on every system, in any form."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import json
import os
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any

import fastavro
import polars as pl
import pyarrow as pa
import pytest

import strandline as sl
from strandline.changelog.log import Log
from tests.systems import System


@dataclasses.dataclass(frozen=True)
class Flight:
    carrier: str
    at: dt.datetime
    delay: float | None = None
    stops: list[str] = dataclasses.field(default_factory=list)


AT = dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC)
FLIGHTS = [Flight("AA", AT, 3.5, ["ORD"]), Flight("UA", AT + dt.timedelta(minutes=1))]


@pytest.fixture
def app(system: System) -> Iterator[sl.App]:
    with sl.App("forms", log=system.url) as made:
        yield made


@pytest.mark.parametrize("form", [None, "json", "avro", "protobuf", "msgpack"])
def test_appended_values_are_read_as_columns(app: sl.App, name: str, form: Any) -> None:
    flights = app.topic(name, value=Flight, key="carrier", timestamp="at", serde=form)
    flights.append(FLIGHTS)
    flights.append(pl.DataFrame([dataclasses.asdict(flight) for flight in FLIGHTS]))
    got = flights.to_polars()
    assert got["key"].to_list() == ["AA", "UA"] * 2
    assert got["timestamp"].to_list() == [flight.at for flight in FLIGHTS] * 2
    rows = got.select("carrier", "at", "delay", "stops").to_dicts()
    assert [Flight(**row) for row in rows] == FLIGHTS * 2


def test_typed_values_without_a_serde_are_columns_or_json_on_kafka(
    app: sl.App, system: System, log: Log, name: str
) -> None:
    flights = app.topic(name, value=Flight, key="carrier")
    flights.append(FLIGHTS[:1])
    schema, stored = app.broker().topic(name).schema, log.read(name)
    if system.name == "embedded":
        assert schema == flights.schema
        assert stored["value"].to_pylist()[0]["carrier"] == "AA"
    else:
        assert schema is None
        [value] = stored["value"].to_pylist()
        told = {"carrier": "AA", "at": "2024-05-01T10:00:00+00:00", "delay": 3.5, "stops": ["ORD"]}
        assert json.loads(value) == told


@dataclasses.dataclass(frozen=True)
class Payment:
    shop: str
    amount: Annotated[Decimal, pa.decimal128(9, 2)]


@dataclasses.dataclass(frozen=True)
class Takings:
    shop: str
    total: Annotated[Decimal | None, pa.decimal128(38, 2)]


@pytest.mark.long_on_kafka
@pytest.mark.parametrize("form", [None, "msgpack", "avro"])
def test_sums_of_money_are_exact(app: sl.App, name: str, form: Any) -> None:
    payments = app.topic(name, value=Payment, key="shop", serde=form)
    takings = app.topic(f"{name}-totals", value=Takings, key="shop", serde=form)
    by_shop = app.stream(payments).group_by("shop")
    by_shop.agg(total=sl.sum("amount"), name=f"{name}-sums").to(takings)
    payments.append([Payment("york", Decimal(text)) for text in ("0.10", "0.20", "9999999.99")])
    frame = {"shop": ["york"], "amount": [Decimal("0.01")]}
    payments.append(pl.DataFrame(frame, {"shop": pl.String, "amount": pl.Decimal(9, 2)}))
    with pytest.raises(sl.InvalidRecord, match="field 'amount' of Payment"):
        payments.append([Payment("york", Decimal("0.001"))])
    app.run(until="idle", progress=False, timeout=60)
    assert takings.to_polars()["total"].to_list()[-1] == Decimal("10000000.30")


def test_other_programs_read_our_values_and_we_read_theirs(
    app: sl.App, log: Log, name: str
) -> None:
    """The registry is a fake in this process, which stores schemas but enforces no rules."""
    registry = sl.SchemaRegistry(f"mock://{name}-{os.getpid()}")
    flights = app.topic(name, value=Flight, serde=sl.AvroSerde(registry=registry))
    flights.append([("AA", FLIGHTS[0])])
    [data] = log.read(name)["value"].to_pylist()
    schema = json.loads(registry.schema(int.from_bytes(data[1:5], "big")).text)
    told = fastavro.schemaless_reader(io.BytesIO(data[5:]), schema, None)
    assert told == dataclasses.asdict(FLIGHTS[0])
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, dataclasses.asdict(FLIGHTS[1]))
    log.append(name, [{"key": b"UA", "value": data[:5] + out.getvalue()}])
    assert flights.to_polars().select("key", "carrier").rows() == [("AA", "AA"), ("UA", "UA")]


def test_a_record_of_another_form_is_named(app: sl.App, log: Log, name: str) -> None:
    flights = app.topic(name, value=Flight, serde="json")
    flights.append([("AA", FLIGHTS[0])])
    log.append(name, [{"value": b"{}"}])
    with pytest.raises(
        sl.InvalidRecord, match=rf"{name}\[0\]@1 cannot be read: not JSON of Flight"
    ):
        flights.to_polars()


def test_confluents_clients_read_our_values_and_we_read_theirs(kafka: str, name: str) -> None:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.schema_registry import topic_subject_name_strategy
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    address = kafka.removeprefix("kafka://")
    registry = sl.SchemaRegistry(f"mock://{name}-{os.getpid()}")
    context = SerializationContext(name, MessageField.VALUE)
    with sl.App("forms", log=kafka, registry=registry) as app:
        flights = app.topic(name, value=Flight, key="carrier", timestamp="at", serde="avro")
        flights.append(FLIGHTS)
        consumer = Consumer(
            {"bootstrap.servers": address, "group.id": name, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([name])
        deserialize = AvroDeserializer(registry.client())
        messages = consumer.consume(2, timeout=30)
        consumer.close()
        told = [(m.key(), m.timestamp()[1], deserialize(m.value(), context)) for m in messages]
        assert told == [
            (f.carrier.encode(), int(f.at.timestamp() * 1000), dataclasses.asdict(f))
            for f in FLIGHTS
        ]
        schema = registry.client().get_latest_version(f"{name}-value").schema.schema_str
        serialize = AvroSerializer(
            registry.client(), schema, conf={"subject.name.strategy": topic_subject_name_strategy}
        )
        producer = Producer({"bootstrap.servers": address})
        theirs = {**dataclasses.asdict(FLIGHTS[0]), "carrier": "DL"}
        producer.produce(name, serialize(theirs, context), key=b"DL")
        assert producer.flush(30) == 0
        assert flights.to_polars()["carrier"].to_list() == ["AA", "UA", "DL"]
