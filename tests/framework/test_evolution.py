"""An app whose schema is older than the topic's continues to work."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pytest

import strandline as sl
from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import SchemaMismatch
from strandline.changelog.memory_storage import MemoryStorage
from strandline.framework.testing import TestDriver

OLD = pa.schema([pa.field("carrier", pa.string(), nullable=False), pa.field("delay", pa.float64())])
NEW = OLD.append(pa.field("gate", pa.string()))


@dataclass(frozen=True)
class Flight:
    carrier: str
    delay: float | None


@pytest.fixture
def owner() -> Owner:
    """A log with two topics that another app has extended by `gate`."""
    made = Owner(MemoryStorage(), clock=ManualClock(), background=False)
    for name in ("flights", "late"):
        made.create_topic(name, 2, schema=OLD)
        made.alter_topic(name, schema=NEW)
    return made


def forwarding(app: sl.App, **settings: object) -> list[Flight | None]:
    """Add a task from `flights` to `late`. Return the values that its handler has seen."""
    flights, late = (app.topic(name, value=Flight, key="carrier") for name in ("flights", "late"))
    seen: list[Flight | None] = []

    @app.task(flights, tombstones=True, **settings)  # type: ignore[arg-type]
    def forward(record: sl.Record[str, Flight]) -> None:
        seen.append(record.value)
        if record.value is not None and record.value.delay == -1:
            raise ValueError("early")
        late.send(record.key, record.value)

    return seen


def stored(owner: Owner, topic: str) -> list[dict[str, object] | None]:
    from strandline.framework.export import committed_batches

    batches = committed_batches(owner, topic)
    return [value for b in batches for value in b.columns.column("value").to_pylist()]


def test_an_older_app_reads_known_columns_and_writes_null_in_others(owner: Owner) -> None:
    app = sl.App("app", log=owner)
    seen = forwarding(app)
    rows = [{"carrier": "AA", "delay": 5.0, "gate": "B7"}, {"carrier": "AA", "delay": None}]
    with app.producer() as producer:
        producer.append("flights", rows, key="carrier")
        producer.send("flights", None, key="AA").result()
    app.run(until="idle")
    assert seen == [Flight("AA", 5.0), Flight("AA", None), None]
    assert stored(owner, "late") == [
        {"carrier": "AA", "delay": 5.0, "gate": None},
        {"carrier": "AA", "delay": None, "gate": None},
        None,
    ]
    assert owner.topic("late").schema == NEW


def test_an_older_app_appends_with_and_without_the_new_column(owner: Owner) -> None:
    app = sl.App("app", log=owner)
    flights = app.topic("flights", value=Flight, key="carrier")
    flights.append([Flight("AA", 1.0)])
    flights.append(pl.DataFrame({"carrier": ["AA"], "delay": [2.0]}))
    flights.append(pl.DataFrame({"carrier": ["AA"], "delay": [3.0], "gate": ["B7"]}))
    assert [row and row["gate"] for row in stored(owner, "flights")] == [None, None, "B7"]
    assert flights.to_polars().columns[-2:] == ["carrier", "delay"]
    with pytest.raises(sl.InvalidRecord, match="there is no column 'gaet'"):
        flights.append(pl.DataFrame({"carrier": ["AA"], "gaet": ["B7"]}))


def test_dead_letters_of_an_older_app_have_the_known_columns(owner: Owner) -> None:
    app = sl.App("app", log=owner)
    forwarding(app, on_error="dead_letter")
    with app.producer() as producer:
        row = {"carrier": "AA", "delay": -1.0, "gate": "B7"}
        producer.append("flights", [row], key="carrier")
    app.run(until="idle")
    assert stored(owner, "app-forward-dead-letter") == [{"carrier": "AA", "delay": -1.0}]
    assert stored(owner, "late") == []


def test_a_topic_that_is_extended_while_an_app_runs_does_not_stop_it() -> None:
    app = sl.App("app")
    seen = forwarding(app)
    driver = TestDriver(app).run([("AA", Flight("AA", 1.0))])
    for name in ("flights", "late"):
        driver.owner.alter_topic(name, schema=NEW)
    driver.run([("AA", Flight("AA", 2.0))])
    assert seen == [Flight("AA", 1.0), Flight("AA", 2.0)]
    assert [row and row["gate"] for row in stored(driver.owner, "late")] == [None, None]


def test_an_app_whose_schema_is_neither_older_nor_newer_is_refused(owner: Owner) -> None:
    @dataclass(frozen=True)
    class Other:
        carrier: str
        gate: str | None

    app = sl.App("app", log=owner)
    app.topic("flights", value=Other)
    with pytest.raises(SchemaMismatch, match=r"field 1 is .*delay.*, got .*gate"):
        app.prepare()
