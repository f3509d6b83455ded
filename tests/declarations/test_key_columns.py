"""The column that holds the key of an input is part of the declaration of its task's stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.framework.cli import main
from tests.systems import System


@dataclass
class Flight:
    carrier: str
    tail: str
    delay: float


FLIGHTS = [Flight("UA", "N1", 3.0), Flight("UA", "N2", 4.0), Flight("AA", "N1", 5.0)]
Declare = Callable[[sl.App], sl.Topic[Any, Any]]


def flights_by(key: Any) -> Declare:
    """Return a declaration of the topic `flights` with this key."""
    return lambda app: app.topic("flights", value=Flight, key=key, partitions=2)


@contextmanager
def totals(log: str | Path, declare: Declare, **settings: Any) -> Iterator[tuple[sl.App, Any]]:
    """Open an app that adds up delays by the key of its input."""
    with sl.App("delays", log=str(log)) as app:
        flights = declare(app)
        store = app.store("totals", key=str, value=float, default=0.0, **settings)

        @app.task(flights, stores=[store], name="tally")
        def tally(record: sl.Record[str, Any]) -> None:
            store[record.key] += record.value.delay

        yield app, store


def append(log: str | Path, key: Any = "carrier") -> None:
    with sl.App("producer", log=str(log)) as app:
        given = FLIGHTS if key in ("carrier", "tail") else [(f.carrier, f) for f in FLIGHTS]
        flights_by(key)(app).append(given)


def refused(*inputs: str) -> Any:
    columns = r".*".join(inputs) or r"'flights'.*'carrier'.*'tail'"
    return pytest.raises(sl.InvalidConfig, match=rf"store 'totals'.*{columns}.*reset")


def test_another_column_as_the_key_is_refused_and_nothing_is_changed(system: System) -> None:
    append(system.url)
    with totals(system.url, flights_by("carrier")) as (app, store):
        assert app.run(until="idle") == 3
        assert app.query(store).to_dict() == {"UA": 7.0, "AA": 5.0}
    append(system.url)
    with totals(system.url, flights_by("tail")) as (app, store), refused():
        app.run(until="idle")
    with totals(system.url, flights_by("carrier")) as (app, store):
        assert app.run(until="idle") == 3
        assert app.query(store).to_dict() == {"UA": 14.0, "AA": 10.0}


def test_an_upgrade_of_values_does_not_help(tmp_path: Path) -> None:
    append(tmp_path)
    with totals(tmp_path, flights_by("carrier")) as (app, _):
        app.run(until="idle")
    with totals(tmp_path, flights_by("tail"), upgrade=lambda value: value) as (app, _), refused():
        app.run(until="idle")


def test_a_type_may_become_a_column_which_is_then_recorded(tmp_path: Path) -> None:
    append(tmp_path, str)
    with totals(tmp_path, flights_by(str)) as (app, _):
        app.run(until="idle")
    for _ in range(2):
        append(tmp_path)
        with totals(tmp_path, flights_by("carrier")) as (app, _):
            assert app.run(until="idle") == 3
    with totals(tmp_path, flights_by("tail")) as (app, _), refused():
        app.run(until="idle")
    with totals(tmp_path, flights_by(str)) as (app, store):  # a program that reads the keys
        append(tmp_path)
        app.run(until="idle")
        assert app.query(store).to_dict() == {"UA": 28.0, "AA": 20.0}
    with totals(tmp_path, flights_by("tail")) as (app, _), refused():
        app.run(until="idle")


def test_an_input_that_comes_back_has_the_key_it_had(tmp_path: Path) -> None:
    def others(app: sl.App) -> sl.Topic[Any, Any]:
        return app.topic("charters", value=Flight, key="tail", partitions=2)

    append(tmp_path)
    for declare in (flights_by("carrier"), others, flights_by("carrier")):
        with totals(tmp_path, declare) as (app, _):
            app.run(until="idle")
    with totals(tmp_path, flights_by("tail")) as (app, _), refused():
        app.run(until="idle")


def test_a_repartition_by_another_column_is_refused(tmp_path: Path) -> None:
    def by(column: str) -> Declare:
        return lambda app: app.repartition(flights_by("carrier")(app), column, name="again")

    append(tmp_path)
    with totals(tmp_path, by("tail")) as (app, store):
        app.run(until="idle")
        assert app.query(store).to_dict() == {"N1": 8.0, "N2": 4.0}
    changed = refused("'delays-again-repartition'", "'tail'", "'carrier'")
    with totals(tmp_path, by("carrier")) as (app, _), changed:
        app.run(until="idle")


def test_a_stream_by_a_column_of_its_own_accepts_any_key(tmp_path: Path) -> None:
    """Its groups are not those of the topic's keys, before and after the change."""

    def run(key: str) -> dict[str, int]:
        with sl.App("delays", log=str(tmp_path)) as app:
            flights = app.stream(flights_by(key)(app))
            flights.group_by("delay").agg(n=sl.count(), name="totals").to("n")
            app.run(until="idle")
            return {str(key): row.n for key, row in app.query("totals").to_dict().items()}

    append(tmp_path)
    assert run("carrier") == {"3.0": 1, "4.0": 1, "5.0": 1}
    append(tmp_path, "tail")
    assert run("tail") == {"3.0": 2, "4.0": 2, "5.0": 2}


def test_a_stream_by_the_key_is_refused_with_another_key(tmp_path: Path) -> None:
    """Its groups were in the partitions of the topic's keys."""

    def run(key: str) -> None:
        with sl.App("delays", log=str(tmp_path)) as app:
            flights = app.stream(flights_by(key)(app))
            flights.group_by("carrier").agg(n=sl.count(), name="totals").to("n")
            app.run(until="idle")

    append(tmp_path)
    run("carrier")
    with pytest.raises(sl.InvalidConfig, match=r"store 'totals'.*carrier.*repartition.*reset"):
        run("tail")


def test_state_that_is_empty_takes_any_key(tmp_path: Path) -> None:
    with totals(tmp_path, flights_by("carrier")) as (app, _):
        app.run(until="idle")
    append(tmp_path, "tail")
    with totals(tmp_path, flights_by("tail")) as (app, store):
        app.run(until="idle")
        assert app.query(store).to_dict() == {"N1": 8.0, "N2": 4.0}


def test_the_plan_shows_the_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / "data")
    with totals(tmp_path / "data", flights_by("carrier")) as (app, _):
        app.run(until="idle")
    monkeypatch.chdir(tmp_path)
    Path("changed_key_app.py").write_text(
        "import strandline as sl\n"
        "from tests.declarations.test_key_columns import flights_by\n"
        "app = sl.App('delays', log='data')\n"
        "totals = app.store('totals', key=str, value=float, default=0.0)\n"
        "@app.task(flights_by('tail')(app), stores=[totals], name='tally')\n"
        "def tally(record): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["plan", "changed_key_app:app"])
    assert ended.value.code != 0
    said = " ".join(capsys.readouterr().out.split())
    assert "changed" in said
    assert "'carrier'" in said
