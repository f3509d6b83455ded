"""Tables as stores: read by queries, by the command line and by `check`, with a running worker."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.errors import InvalidConfig, InvalidRequest
from strandline.changelog.log import Log
from tests.cli.conftest import Command, folder, strandline
from tests.faust.faust_workers import eventually, in_folder, rows, worker
from tests.workers.threads import InThread

__all__ = ["folder", "strandline"]

HOUR_S = 3600
START_S = (int(time.time()) // HOUR_S - 2) * HOUR_S
"""Start of an hour that is over, in seconds since 1970; retention would delete older records."""
CITIES = ["york", "hull", "Zürich", "東京"]


def order(log: Log, city: str, item: str, count: int, at_s: float = START_S) -> None:
    """Append an order, in the partition of its key."""
    value = json.dumps({"item": item, "count": count}).encode()
    row = {"key": city.encode(), "value": value, "timestamp": int(at_s * 1000)}
    log.append("incoming", [row], key="key", timestamp="timestamp")


def create(log: Log) -> None:
    """Create the topics of the sample."""
    log.create_topic("incoming", 2)
    log.create_topic("outgoing", 2)


def counts(log: Log, city: str) -> list[int]:
    """Return the committed outputs of a city."""
    return [value for _, _, key, value in rows(log, "outgoing") if key == city]


def test_what_was_committed_a_moment_ago_is_read_from_a_running_worker(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "log") as log:
        create(log)
        with (
            worker("sample_stores", in_folder(tmp_path), tmp_path),
            sl.connect(log, deadline=5.0) as connection,
        ):
            order(log, "york", "tea", 1)
            eventually(lambda: counts(log, "york") == [1])
            assert log.broker.describe_group("orders").members
            totals = connection.store("orders/totals")
            expected = 1
            for number in range(2, 20):
                expected += number
                order(log, "york", "tea", number)
                eventually(lambda all_=expected: counts(log, "york")[-1:] == [all_])
                assert totals["york"] == expected  # it is committed together with the output


@pytest.mark.parametrize("style", ["ascii", "utf-8"])
def test_tables_are_read_by_their_recorded_forms(
    tmp_path: Path, strandline: Command, style: str
) -> None:
    with changelog.open(tmp_path / "log") as log:
        create(log)
        for number, city in enumerate(CITIES):
            order(log, city, "tea", number)
            order(log, city, "oil", 10 * number, START_S + HOUR_S)
        total = {city: 11 * number for number, city in enumerate(CITIES)}
        with (
            worker("sample_stores", in_folder(tmp_path), tmp_path, JSON=style) as running,
            sl.connect(log) as connection,
        ):
            eventually(lambda: {c: counts(log, c)[-1:] for c in CITIES} == listed(total))
            check_queries(connection, total)
            check_commands(strandline, total)
            assert running.stop() == 0
        with sl.connect(log) as connection:
            check_queries(connection, total)
    checked = strandline("check", str(tmp_path / "log"))
    assert (checked.code, checked.out.splitlines()[-1]) == (0, "nothing is wrong")


def listed(total: dict[str, int]) -> dict[str, list[int]]:
    return {city: [count] for city, count in total.items()}


def check_queries(connection: sl.Connection, total: dict[str, int]) -> None:
    """Compare every table with the orders."""
    totals = connection.store("orders/totals")
    assert totals.to_dict() == total
    assert {city: totals[city] for city in CITIES} == total
    assert totals.get_many([*CITIES, "leeds"]) == total
    assert "leeds" not in totals
    with pytest.raises(InvalidRequest, match="no order"):
        totals.prefix("y")
    assert dict(zip(*totals.to_arrow().to_pydict().values(), strict=True)) == total

    last = {city: {"item": "oil", "count": 10 * n} for n, city in enumerate(CITIES)}
    latest = connection.store("orders/latest")
    assert latest.to_dict() == last
    assert set(latest.to_polars()["value"].struct.fields) == {"item", "count"}

    named = connection.store("orders/named")
    assert named.to_dict() == {c.encode(): str(10 * n).encode() for n, c in enumerate(CITIES)}
    assert named.get("york") == named.get(b"york") == b"0"
    assert [key for key, _ in named.prefix("y")] == [b"york"]
    unnamed = connection.store("orders/unnamed")
    assert unnamed.to_dict() == {city.encode(): 10 * n for n, city in enumerate(CITIES)}

    assert connection.store("orders/pairs").to_dict() == {
        (city, item): times * n
        for n, city in enumerate(CITIES)
        for item, times in [("tea", 1), ("oil", 10)]
    }
    hours = connection.store("orders/hours")
    windows = [(float(s), s + HOUR_S - 0.1) for s in (START_S, START_S + HOUR_S)]
    assert hours.to_dict() == {
        (city, window): times * n
        for n, city in enumerate(CITIES)
        for window, times in zip(windows, (1, 10), strict=True)
    }
    assert hours["hull", windows[1]] == 10

    with pytest.raises(InvalidConfig, match="json .keys. and pickle .values.*known to the app"):
        connection.store("orders/sealed").to_dict()
    stored = connection.store("orders/sealed", value=bytes).to_dict()
    assert set(stored) == set(CITIES)


def check_commands(strandline: Command, total: dict[str, int]) -> None:
    """Compare what the command line shows with the orders."""
    keys = {row["store"]: row["keys"] for row in strandline("stores", "list", "--json").json}
    assert keys["orders/totals"] == len(CITIES)
    assert keys["orders/hours"] == 2 * len(CITIES)
    for city in CITIES:
        assert strandline("stores", "get", "orders/totals", city).out == f"{total[city]}\n"
    assert strandline("stores", "get", "orders/totals", "leeds").code == 1
    pair = strandline("stores", "get", "orders/pairs", '["hull","oil"]', "--json")
    assert pair.json["value"] == 10
    scanned = strandline("stores", "scan", "orders/totals", "--json").lines
    assert {row["key"]: row["value"] for row in scanned} == total
    orders = strandline("stores", "scan", "orders/latest", "--json").lines
    assert {"item": "oil", "count": 0} in [row["value"] for row in orders]


def test_a_table_is_read_while_a_strandline_task_takes_what_its_agent_sends(tmp_path: Path) -> None:
    expected: Counter[str] = Counter()
    with ExitStack() as stack:
        log = stack.enter_context(changelog.open(tmp_path / "log"))
        create(log)
        running = stack.enter_context(worker("sample_stores", in_folder(tmp_path), tmp_path))
        app = sl.App("reports", log=log)
        outgoing = app.topic("outgoing", key=str, value=int, serde="json", partitions=2)
        highest = app.store("highest", key=str, value=int, default=0)

        @app.task(outgoing, stores=[highest])
        def report(record: sl.Record[str, int]) -> None:
            highest[record.key] = max(highest[record.key], record.value)

        reports = InThread(app, "report")
        with sl.connect(log) as connection:
            eventually(lambda: reports.numbers == [0, 1])
            eventually(lambda: log.broker.describe_group("orders").members)
            table, store = connection.store("orders/totals"), connection.store("reports/highest")
            for number in range(1, 30):
                city = CITIES[number % len(CITIES)]
                order(log, city, "tea", number)
                expected[city] += number
                for seen in (table.to_dict(), store.to_dict()):
                    assert all(count <= expected[key] for key, count in seen.items())
            eventually(lambda: store.to_dict() == expected)
            assert table.to_dict() == expected
        reports.stop()
        assert running.stop() == 0


def test_a_changed_serializer_is_refused_and_leaves_the_table_as_it_is(
    tmp_path: Path, strandline: Command
) -> None:
    with changelog.open(tmp_path / "log") as log:
        create(log)
        order(log, "york", "tea", 3)
        with worker("sample_stores", in_folder(tmp_path), tmp_path) as running:
            eventually(lambda: counts(log, "york") == [3])
            assert running.stop() == 0
        before = rows(log, "orders-totals-changelog")
        with worker("sample_stores", in_folder(tmp_path), tmp_path, TOTALS="pickle") as running:
            assert running.ended(60) != 0
            assert "store 'totals' is declared otherwise than it is stored" in running.text()
            assert "its values are JSON" in running.text()
            assert "strandline reset orders" in running.text()
            assert "upgrade=" not in running.text()
        with worker("sample_stores", in_folder(tmp_path), tmp_path, JSON="utf-8") as running:
            assert running.ended(60) != 0
            assert "its keys are JSON (ASCII, as Python's json writes it)" in running.text()
            assert "are declared as JSON (UTF-8, as orjson writes it)" in running.text()
        order(log, "york", "tea", 4)
        with worker("sample_stores", in_folder(tmp_path), tmp_path) as running:
            eventually(lambda: counts(log, "york") == [3, 7])
            assert running.stop() == 0
        assert rows(log, "orders-totals-changelog")[: len(before)] == before
        with worker("sample_stores", in_folder(tmp_path), tmp_path, TOTALS="bytes") as running:
            assert running.ended(60) != 0
        assert strandline("reset", "orders", "--yes").code == 0
        with worker("sample_stores", in_folder(tmp_path), tmp_path, TOTALS="bytes") as running:
            with sl.connect(log) as connection:
                eventually(lambda: "orders-totals-changelog" in {i.name for i in log.topics()})
                eventually(lambda: connection.store("orders/totals").to_dict() == {"york": b"1"})
            assert running.stop() == 0


def test_an_empty_table_is_changed_only_while_no_worker_runs(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "log") as log:
        create(log)
        with worker("sample_stores", in_folder(tmp_path), tmp_path) as running:
            eventually(lambda: log.broker.describe_group("orders").members)
            other = {"TOTALS": "pickle", "FAUST_DATADIR": str(tmp_path / "other")}
            with worker("sample_stores", in_folder(tmp_path), tmp_path, **other) as refused:
                assert refused.ended(60) != 0
                assert "'totals': its declaration is to be replaced" in refused.text()
            order(log, "york", "tea", 3)
            eventually(lambda: counts(log, "york") == [3])
            with sl.connect(log) as connection:
                assert connection.store("orders/totals").to_dict() == {"york": 3}
            assert running.stop() == 0
