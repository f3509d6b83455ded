"""Programs that read a store without its app follow its recorded declaration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.framework.spark.options import SourceOptions
from strandline.framework.spark.tables import plan_store, read_store, store_schema
from strandline.framework.testing import TestDriver
from tests.cli.conftest import Command, folder, strandline
from tests.declarations.programs import Program, program

__all__ = ["folder", "strandline"]

MISLEADING = b"\xc1" + bytes(8) + b"x"
"""Bytes that begin like an expiry that is long over."""


@dataclass
class Total:
    n: int


@dataclass
class Wider:
    n: int
    more: int = 0


@dataclass
class Narrow:
    pass


@dataclass
class Odd:
    n: str


def totals(store: Any, record: sl.Record[str, Any]) -> None:
    store[record.key] = Total(record.value)


@pytest.fixture(params=[None, 3_600_000], ids=["for ever", "with a time to live"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Program:
    """A store of bytes that look like something else. Its app is not running."""
    with program(tmp_path / "log", value=bytes, ttl_ms=request.param) as made:
        made.run(("york", MISLEADING), ("hull", b"a"))
    return made


HELD = {"york": MISLEADING, "hull": b"a"}


def test_a_connection_reads_by_the_declaration_while_no_worker_runs(shop: Program) -> None:
    with sl.connect(str(shop.app.log)) as connection:
        store = connection.store("shop/totals")
        assert dict(store.all()) == HELD
        assert store["york"] == MISLEADING


def test_the_command_line_reads_by_the_declaration(shop: Program, strandline: Command) -> None:
    log = ("--log", str(shop.app.log))
    assert strandline("stores", "get", "shop/totals", "hull", *log).json == {"utf8": "a"}
    listed = strandline("stores", "list", "--json", *log).json
    assert [one["keys"] for one in listed if one["store"] == "shop/totals"] == [2]
    lines = strandline("stores", "scan", "shop/totals", "--json", *log).lines
    assert lines[0]["value"] == {"utf8": "a"}
    assert len(lines) == 2


def test_spark_reads_by_the_declaration(shop: Program) -> None:
    with program(str(shop.app.log), value=bytes) as made:
        broker = made.app.broker()
        options = SourceOptions.parse({"path": "/log", "store": "shop/totals"})
        target = store_schema(broker, options)
        assert target.field("value").type == pa.binary()
        found = [
            batch
            for each in plan_store(broker, options)
            for batch in read_store(broker, each, target, options)
        ]
        assert {row["key"]: row["value"] for one in found for row in one.to_pylist()} == HELD


class Bytes:
    """Serde of bytes, or one that can read nothing."""

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails

    def dumps(self, value: bytes) -> bytes:
        return value

    def loads(self, data: bytes) -> bytes:
        if self.fails:
            raise KeyError(data)
        return data


@pytest.mark.parametrize("read", [lambda view: view.to_dict(), lambda view: view.get("ann")])
def test_a_serde_that_cannot_read_a_value_raises_no_error_of_its_own(
    tmp_path: Path, read: Any
) -> None:
    found = []
    for fails in (False, True):
        with sl.App("app", log=tmp_path / "log") as app:
            names = app.topic("names", key=str, value=int)
            store = app.store("s", key=str, value=Bytes(fails=fails))

            @app.task(names, stores=[store], name="put")
            def put(record: sl.Record[str, int], store: Any = store) -> None:
                store[record.key] = b"1"

            if not fails:
                names.append([("ann", 1)])
                app.run(until="idle", progress=False)
                found.append(read(app.query(store)))
            else:
                with pytest.raises(sl.CorruptLog, match="cannot be decoded"):
                    read(app.query(store))
    assert found


def test_a_key_that_arrow_cannot_hold_is_named(tmp_path: Path, strandline: Command) -> None:
    """Python's names of files that are not UTF-8 have lone surrogates."""
    with sl.App("app", log=tmp_path / "log") as app:
        names = app.topic("names", key=bytes, value=int)
        store = app.store("s", key=str, value=int)

        @app.task(names, stores=[store])
        def put(record: sl.Record[bytes, int]) -> None:
            store[record.key.decode(errors="surrogateescape")] = record.value

        names.append([(b"name-\xff", 1), (b"ann", 2)])
        app.run(until="idle", progress=False)
        view = app.query(store)
        assert view["name-\udcff"] == 1
        with pytest.raises(sl.InvalidRecord, match=r"name-\\udcff' has a lone surrogate.*all\(\)"):
            view.to_polars()
    shown = strandline("stores", "scan", "app/s", "--json", "--log", str(tmp_path / "log"))
    assert '{"surrogates":"bmFtZS3ts78="}' in shown.out


def test_types_given_to_a_connection_are_compared_with_the_declaration(tmp_path: Path) -> None:
    with program(tmp_path, value=Total, handle=totals) as made:
        made.run(("york", 1))
        with sl.connect(made.app.broker()) as connection:
            assert connection.store("shop/totals", value=Wider)["york"] == Wider(1)
            assert connection.store("shop/totals", value=Narrow)["york"] == Narrow()
            assert connection.store("shop/totals")["york"] == {"n": 1}
            with pytest.raises(sl.InvalidConfig, match="keys are str, and are wanted as int"):
                connection.store("shop/totals", key=int)
            with pytest.raises(sl.InvalidConfig, match="field 'n' is int"):
                connection.store("shop/totals", value=Odd)


def test_figures_are_shown_as_figures_while_no_worker_runs(tmp_path: Path) -> None:
    def store(app: sl.App) -> Any:
        return app.aggregates("totals", n=sl.count(), mean=sl.mean("x"))

    def add(figures: Any, record: sl.Record[str, Any]) -> None:
        figures.add(record.key, x=record.value)

    with program(tmp_path, store=store, handle=add) as made:
        made.run(("york", 1), ("york", 2))
        with sl.connect(made.app.broker()) as connection:
            found = connection.store("shop/totals")["york"]
            assert (found.n, found.mean) == (2, 1.5)


def test_settings_of_figures_are_recorded_for_readers_without_the_app(tmp_path: Path) -> None:
    def store(app: sl.App) -> Any:
        return app.aggregates(
            "totals",
            high=sl.quantile("x", 0.9),
            best=sl.top("x", 2),
            values=sl.collect("x", limit=3),
            about=sl.n_unique("x", approx=True),
            joined=sl.reducer(list, lambda old, row: [*old, row["x"]]),
        )

    def add(figures: Any, record: sl.Record[str, Any]) -> None:
        figures.add(record.key, x=record.value)

    with program(tmp_path, store=store, handle=add) as made:
        made.run(*[("york", x) for x in range(10)])
        with sl.connect(made.app.broker()) as connection:
            found = connection.store("shop/totals")["york"]
            assert (found.high, found.best, found.values, found.about) == (8, [9, 8], [0, 1, 2], 10)
            assert found.joined == list(range(10))


def test_other_settings_of_figures_are_refused(tmp_path: Path) -> None:
    def declared(q: float) -> Any:
        return lambda app: app.aggregates("totals", high=sl.quantile("x", q))

    def add(figures: Any, record: sl.Record[str, Any]) -> None:
        figures.add(record.key, x=record.value)

    with program(tmp_path, store=declared(0.9), handle=add) as before:
        before.run(("york", 1))
    refused = pytest.raises(sl.InvalidConfig, match=r'it keeps high=quantile \{"q":0.9\}\(x\)')
    with program(tmp_path, store=declared(0.5), handle=add) as after, refused:
        after.run(("york", 2))


def test_a_driver_on_a_folder_compares_declarations_too(tmp_path: Path) -> None:
    def driver(kind: Any) -> TestDriver:
        app = sl.App("shop", log="unused")
        sales = app.topic("sales", key=str, value=Any)
        store = app.store("totals", value=kind)

        @app.task(sales, stores=[store])
        def tally(record: sl.Record[str, Any]) -> None:
            store[record.key] = record.value

        return TestDriver(app, folder=tmp_path)

    with driver(int) as first:
        first.run([("york", 1)])
    with pytest.raises(sl.InvalidConfig, match="'totals' is declared otherwise"):
        driver(str)
    with driver(int) as again:
        again.run([("york", 2)])


def test_the_store_of_timers_is_declared_too(tmp_path: Path) -> None:
    app = sl.App("shop", log="unused")

    @app.task(app.topic("sales", key=str, value=Any), name="tally")
    def tally(record: sl.Record[str, Any]) -> None:
        sl.set_timer("x", 5_000_000)

    app.on_timer(tally)(lambda name: None)
    with TestDriver(app, folder=tmp_path) as driver:
        driver.run([("york", 1)])
        from strandline.statestore.recorded import DeclarationLog

        recorded = DeclarationLog(driver.owner, "shop", driver.clock).read()
    [declared] = recorded.stores.values()
    assert declared.key == ["tuple", ["str", "bytes"], False]
