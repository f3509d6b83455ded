"""`run`, `stores`, `reset` and `describe`: a small app from the command line."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import strandline as sl
from strandline.changelog.clock import SystemClock
from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition
from strandline.framework.cli import app_main, output
from strandline.framework.cli.stores import _print_entries as print_entries
from strandline.framework.querying import folded
from strandline.statestore.keys import key_codec
from strandline.statestore.values import ValueCodec
from tests.cli.conftest import Command
from tests.workers.threads import InThread

SHOP = "tests.cli.shop:app"


@pytest.fixture
def shop(log: Log, strandline: Command, monkeypatch: pytest.MonkeyPatch) -> Log:
    """A log in which the app has handled 30 orders."""
    monkeypatch.delitem(sys.modules, "tests.cli.shop", raising=False)
    log.create_topic("orders", 2)
    log.broker.topics()
    produce_orders(strandline)
    outcome = strandline("run", SHOP, "--until", "idle")
    assert outcome.code == 0, outcome.err
    assert "30 records handled" in outcome.err
    return log


def produce_orders(strandline: Command) -> None:
    lines = (f'{{"key": "k{n % 3}", "value": {{"n": {n}}}}}\n' for n in range(30))
    assert strandline("produce", "orders", stdin="".join(lines)).code == 0


# run ----------------------------------------------------------------------------------


def test_run_ends_after_a_number_of_records(
    log: Log, strandline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "tests.cli.shop", raising=False)
    log.create_topic("orders", 2)
    produce_orders(strandline)
    outcome = strandline("run", SHOP, "--count", "10", "--timeout", "60")
    assert (outcome.code, "10 records handled" in outcome.err) == (0, True)
    assert strandline("groups", "lag", "shop", "--json").json["lag"] == 20


ENDING = """
import strandline as sl

app = sl.App("ending")
orders = app.topic("orders", key=str, value=dict)
out = app.topic("out", key=str, value=int, partitions=1)


@app.task(orders, window_ms=3_600_000)
class Task:
    def process(self, record):
        sl.set_timer(record.key, record.timestamp + 3_600_000)

    def on_timer(self, name):
        out.send("timer", 1)

    def window(self):
        out.send("window", 1)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("until", "workers", "sent"),
    [
        ("idle", (), {"window"}),
        ("end", (), {"window", "timer"}),
        ("end", ("--workers", "2"), {"window", "timer"}),
    ],
)
def test_a_bounded_run_leaves_no_pending_work(
    strandline: Command,
    log: Log,
    tmp_path: Path,
    until: str,
    workers: tuple[str, ...],
    sent: set[str],
) -> None:
    path = tmp_path / f"ending_{until}.py"
    path.write_text(ENDING)
    log.create_topic("orders", 2)
    produce_orders(strandline)
    outcome = strandline("run", f"{path}:app", "--until", until, *workers)
    assert (outcome.code, "30 records handled" in outcome.err) == (0, True), outcome.err
    assert {key.decode() for key in log.read("out")["key"].to_pylist()} == sent


def test_a_folder_without_a_log_is_said_to_be_a_new_one(
    tmp_path: Path, strandline: Command
) -> None:
    path = tmp_path / "mistyped.py"
    path.write_text(ENDING)
    said = [
        strandline("run", f"{path}:app", "--until", "idle", "--log", str(tmp_path / "dtaa")).err
        for _ in range(2)
    ]
    assert f"runs on {tmp_path / 'dtaa'}, a new log; Ctrl-C" in said[0]
    assert f"runs on {tmp_path / 'dtaa'}; Ctrl-C" in said[1]


def test_a_failing_handler_is_reported_in_one_line(shop: Log, strandline: Command) -> None:
    strandline("produce", "orders", stdin='{"key": "k0", "value": {}}')
    outcome = strandline("run", SHOP, "--until", "idle")
    assert outcome.code == 1
    last = outcome.err.strip().splitlines()[-1]
    assert last.startswith("TaskFailed: ")
    assert "shop.py:" in last
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nowhere.at_all:app", "no module 'nowhere.at_all'"),
        ("tests.cli.shop:ap", "its apps: app"),
        ("tests.cli.conftest", "its apps: none"),
        (":", "no module"),
    ],
)
def test_a_missing_app_is_reported(strandline: Command, target: str, says: str) -> None:
    outcome = strandline("run", target)
    assert outcome.code == 1
    assert says in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_an_app_can_be_named_by_its_file(
    strandline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for folder, name in (("plain", "plain_orders"), ("package/inner", "packaged_orders")):
        path = tmp_path / folder / f"{name}.py"
        path.parent.mkdir(parents=True)
        path.write_text(f"import strandline as sl\nother = sl.App({name!r}, log='x')\n")
        if folder != "plain":
            for part in (path.parent, path.parent.parent):
                (part / "__init__.py").touch()
        described = strandline("describe", f"{path}:other", "--json").json
        assert described["app"] == name
    missing = strandline("run", str(tmp_path / "missing.py"))
    assert (missing.code, "there is no file" in missing.err) == (1, True)


# stores -------------------------------------------------------------------------------


def test_stores_are_listed(shop: Log, strandline: Command) -> None:
    rows = strandline("stores", "list", "--json").json
    assert [(row["store"], row["partitions"], row["keys"]) for row in rows] == [
        ("shop/routes", 2, 30),
        ("shop/totals", 2, 3),
    ]
    assert "shop/totals" in strandline("stores", "list").out


def test_a_key_is_looked_up_as_text_or_json(shop: Log, strandline: Command) -> None:
    assert strandline("stores", "get", "shop/totals", "k1").out.strip() == "145"
    found = strandline("stores", "get", "shop/routes", '["k1", 4]', "--json").json
    assert (found["key"], found["value"]) == (["k1", 4], {"mean": 4 / 3})


def test_numbers_have_separators_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*, terminal: bool) -> list[str]:
        monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
        output.line(output.cell(1_234_567))
        output.facts([("offset", 1_234_567)])
        output.table("", ["offset"], [[1_234_567]])
        print_entries([{"key": "a", "value": {"worst": 1_234.5678}}], parts=False)
        return [word for word in capsys.readouterr().out.split() if word[0].isdigit()]

    assert said(terminal=True) == [*["1,234,567"] * 3, "1,234.568"]
    assert said(terminal=False) == [*["1234567"] * 3, "1234.5678"]


def test_a_large_number_is_written_to_a_pipe_without_separators(
    log: Log, strandline: Command
) -> None:
    log.create_topic("shop-totals-changelog", config={"cleanup.policy": "compact"})
    key, value = key_codec(str).encode("a"), msgspec.msgpack.encode(1_234_567)
    log.append("shop-totals-changelog", [{"key": key, "value": value}])
    assert strandline("stores", "get", "shop/totals", "a").out == "1234567\n"


@pytest.mark.parametrize("text", ["1.0", "1", "1e0", "inf"])
def test_a_float_key_is_found_however_it_is_written(
    log: Log, strandline: Command, text: str
) -> None:
    log.create_topic("shop-totals-changelog", config={"cleanup.policy": "compact"})
    for key in (1.0, 2.0, float("inf")):
        encoded, value = key_codec(float).encode(key), msgspec.msgpack.encode(key != 2.0)
        log.append("shop-totals-changelog", [{"key": encoded, "value": value}])
    assert strandline("stores", "get", "shop/totals", text).out == "yes\n"


UTC_DAY = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("kind", "key", "written"),
    [
        (dt.date, dt.date(2025, 1, 1), ["2025-01-01", '"2025-01-01"']),
        (dt.datetime, UTC_DAY, ["2025-01-01T00:00:00Z", "2025-01-01T01:00:00+01:00", "2025-01-01"]),
        (bytes, b"\xff\x00", ['{"base64": "/wA="}']),
        (bytes, b"ab", ["ab", '{"utf8": "ab"}']),
        (int, 10**30, [str(10**30)]),
        (int, 10**400, [str(10**400)]),
        (tuple[int, str], (10**400, "a"), [f'[{10**400}, "a"]']),
        (tuple[str | None, int], (None, 1), ["[null,1]"]),
        (tuple[str, float], ("tea", 1.0), ['["tea",1]', '["tea",1.0]']),
        (tuple[bytes, int], (b"ab", 1), ['["ab",1]', '[{"base64": "YWI="}, 1]']),
        (tuple[str, dt.date], ("2025-01-01", dt.date(2025, 1, 1)), ['["2025-01-01","2025-01-01"]']),
        (tuple[str, tuple[bool, float]], ("a", (True, 1e300)), ['["a",[true,1e300]]']),
    ],
)
def test_a_key_of_any_type_is_found_as_it_is_written_and_as_a_scan_prints_it(
    log: Log, strandline: Command, kind: Any, key: Any, written: list[str]
) -> None:
    app = sl.App("shop", log=log)
    given = app.topic("given", value=str)
    store: Any = app.store("all", key=kind, value=int)

    @app.task(given, stores=[store])
    def keep(record: sl.Record[Any, str]) -> None:
        store[key] = 42

    given.append([("a", "x")])
    app.run(until="idle", progress=False)
    app.close()
    [row] = strandline("stores", "scan", "shop/all", "--json").lines
    printed = row["key"] if isinstance(row["key"], str) else json.dumps(row["key"])
    for text in [*written, printed]:
        outcome = strandline("stores", "get", "shop/all", text)
        assert (outcome.code, outcome.out.strip()) == (0, "42"), text
    for text in ('{"base64": "!"}', "9999-12-31T23:59:59-10:00", "0001-01-01T00:00:00+10:00"):
        outcome = strandline("stores", "get", "shop/all", text)
        assert (outcome.code, outcome.out) == (1, "")
        assert f"has no key {text}" in outcome.err


def test_a_store_is_scanned_in_the_order_of_its_keys(shop: Log, strandline: Command) -> None:
    rows = strandline("stores", "scan", "shop/totals", "--json").lines
    assert [(row["key"], row["value"]) for row in rows] == [("k0", 135), ("k1", 145), ("k2", 155)]
    rows = strandline(
        "stores", "scan", "shop/routes", "--prefix", "k2", "--max", "2", "--json"
    ).lines
    assert [row["key"] for row in rows] == [["k2", 2], ["k2", 5]]
    shown = strandline("stores", "scan", "shop/routes").out
    assert "mean" in shown
    assert "1.333" in shown


def test_expired_values_are_shown_only_on_request(log: Log, strandline: Command) -> None:
    log.create_topic("shop-carts-changelog", config={"cleanup.policy": "compact"})
    for ttl_ms, now, key in [
        (1, 0, "gone"),
        (3_600_000, SystemClock().now_ms(), "live"),
        (None, 0, "for ever"),
    ]:
        codec = ValueCodec(int, ttl_ms=ttl_ms, now=lambda now=now: now)  # type: ignore[misc]
        row = {"key": key_codec(str).encode(key), "value": codec.dumps(codec.hold(7))}
        log.append("shop-carts-changelog", [row])

    def keys(*options: str) -> list[str]:
        rows = strandline("stores", "scan", "shop/carts", "--json", *options).lines
        return [row["key"] for row in rows]

    assert keys() == ["for ever", "live"]
    assert keys("--expired") == ["for ever", "gone", "live"]
    assert strandline("stores", "get", "shop/carts", "live").out.strip() == "7"
    assert "no key gone" in strandline("stores", "get", "shop/carts", "gone").err
    assert strandline("stores", "get", "shop/carts", "gone", "--expired").out.strip() == "7"
    [listed] = strandline("stores", "list", "--json").json
    [every] = strandline("stores", "list", "--json", "--expired").json
    assert (listed["keys"], every["keys"]) == (2, 3)


@pytest.fixture
def bank(log: Log, tmp_path: Path, eventually: Callable[..., None]) -> Iterator[None]:
    """A running app that has handled 200 records, with a timer set."""
    app = sl.App("bank", log=log.broker, state_dir=tmp_path / "state", commit_interval_ms=10)
    sums = app.topic("sums", key=str, value=int, partitions=2)
    held = app.store("held", key=str, value=int, default=0)
    codes = app.store("codes", key=int, value=bytes)

    @app.task(sums, stores=[held, codes])
    def add(record: sl.Record[str, int]) -> None:
        held[record.key] += record.value
        codes[record.value] = record.key.encode()
        sl.set_timer("close", 2**62)

    @app.on_timer(add)
    def close(name: str) -> None:
        held[name] = 0

    sums.append([(f"k{n:03}", n) for n in range(200)])
    running = InThread(app, "add")
    eventually(lambda: has_handled_all(log), what="all handled")
    yield
    running.stop()


def has_handled_all(log: Log) -> bool:
    sums = [TopicPartition("sums", number) for number in range(2)]
    ends, done = log.broker.offsets(sums), log.broker.committed("bank", require_stable=False)
    return all(tp in done and done[tp].offset == ends[tp].last_stable_offset for tp in sums)


def test_the_workers_of_a_running_app_are_queried(
    bank: None, strandline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(folded, "restore_all", None)  # the changelogs cannot be read
        assert strandline("stores", "get", "bank/held", "k007").out.strip() == "7"
        assert strandline("stores", "get", "bank/codes", "7").json == {"utf8": "k007"}
        rows = strandline("stores", "scan", "bank/held", "--json").lines
        assert [(row["key"], row["value"]) for row in rows] == [(f"k{n:03}", n) for n in range(200)]
        assert {row["partition"] for row in rows} == {0, 1}
        found = strandline("stores", "scan", "bank/held", "--prefix", "k1", "--max", "3", "--json")
        assert [row["key"] for row in found.lines] == ["k100", "k101", "k102"]
        missing = strandline("stores", "get", "bank/held", "k999")
        assert (missing.code, "no key k999" in missing.err) == (1, True)
    # Timers are internal to the app, and workers do not return expired values.
    timers = strandline("stores", "scan", "bank/add-timers", "--parts", "--json").lines
    assert len(timers) == 2 * 2  # per partition the timer and the stream time
    rows = strandline("stores", "scan", "bank/held", "--json", "--expired").lines
    assert len(rows) == 200
    listed = strandline("stores", "list", "--json").json
    assert {row["store"]: row["keys"] for row in listed}["bank/held"] == 200


def test_a_missing_key_or_store_is_reported(shop: Log, strandline: Command) -> None:
    for arguments, says in {
        ("get", "shop/totals", "k9"): "no key",
        ("get", "shop/total", "k1"): "shop/totals",
        ("scan", "totals"): "shop/totals",
    }.items():
        outcome = strandline("stores", *arguments)
        assert (outcome.code, says in outcome.err) == (1, True)
    assert "no keys" in strandline("stores", "scan", "shop/totals", "--prefix", "x").err


# reset --------------------------------------------------------------------------------


def test_reset_without_confirmation_shows_its_plan_and_does_nothing(
    shop: Log, strandline: Command, folder: Path
) -> None:
    outcome = strandline("reset", "shop")
    assert outcome.code == 1
    for step in (
        "committed offsets in orders",
        "shop-totals-changelog",
        "state/shop",
        "--yes",
    ):
        assert step in outcome.err
    assert (folder / "state/shop").is_dir()
    assert strandline("groups", "lag", "shop", "--json").json["lag"] == 0


def test_an_app_starts_afresh_after_a_reset(shop: Log, strandline: Command, folder: Path) -> None:
    assert strandline("reset", "shop", "--yes").code == 0
    assert not (folder / "state/shop").exists()
    assert [info.name for info in shop.topics()] == ["orders", "sums"]
    assert shop.broker.committed("shop") == {}
    assert "30 records handled" in strandline("run", SHOP, "--until", "idle").err
    assert strandline("stores", "get", "shop/totals", "k1").out.strip() == "145"


def test_parts_are_reset_by_choice(shop: Log, strandline: Command, folder: Path) -> None:
    assert strandline("reset", "shop", "--state", "--yes", "--json").json["done"] is True
    assert not (folder / "state/shop").exists()
    assert len(shop.topics()) == 5
    outcome = strandline("reset", "shop", "--offsets", "--yes")
    assert "count a second time" in outcome.err
    assert strandline("run", SHOP, "--until", "idle").code == 0
    assert strandline("stores", "get", "shop/totals", "k1").out.strip() == "290"


def test_records_that_are_read_again_count_twice_after_a_repartition_topic_too(
    log: Log, strandline: Command
) -> None:
    """Before, the old rows in the repartition topic were handled again, besides the new ones."""
    app = sl.App("pages", log=log)
    views = app.topic("views", key=int, value=int, partitions=2)
    counts = app.counter("counts", key=int)
    by_digit = app.repartition(
        views, lambda view: view.value % 10, name="by-digit", key_type=int, partitions=2
    )

    @app.task(by_digit, stores=[counts])
    def count(view: sl.Record[int, int]) -> None:
        counts.add(view.key)

    views.append([(number, number) for number in range(50)])
    app.run(until="idle", progress=False)
    outcome = strandline("reset", "pages", "--offsets", "--yes")
    assert "committed offsets in views\n" in outcome.err
    app.run(until="idle", progress=False)
    assert app.query(counts).to_dict() == dict.fromkeys(range(10), 10)


def test_resetting_an_unknown_app_names_the_known_groups(shop: Log, strandline: Command) -> None:
    outcome = strandline("reset", "sho")
    assert (outcome.code, "groups: shop" in outcome.err) == (1, True)


def test_a_reset_does_not_touch_the_stores_of_an_app_with_a_longer_name(
    shop: Log, strandline: Command
) -> None:
    compact = {"cleanup.policy": "compact"}
    shop.create_topic("shop-eu-totals-changelog", config=compact)
    committed = shop.broker.committed("shop")
    shop.broker.commit_offsets("shop-eu", dict(committed))
    assert strandline("reset", "shop", "--yes").code == 0
    assert "shop-eu-totals-changelog" in [info.name for info in shop.topics()]


# describe -----------------------------------------------------------------------------


def test_an_app_is_described_without_a_log(strandline: Command) -> None:
    shown = strandline("describe", SHOP).out
    for word in ("shop", "count", "orders", "totals", "shop-totals-changelog", "exactly_once"):
        assert word in shown
    described = strandline("describe", SHOP, "--json").json
    assert [task["name"] for task in described["tasks"]] == ["count"]
    assert described["stores"][1]["key"] == "tuple[str, int]"


STREAMS = "tests.cli.flights:app"


def test_the_plan_of_an_app_s_streams_is_described(strandline: Command) -> None:
    shown = strandline("describe", STREAMS).out.splitlines()
    first = shown.index("streams") + 1
    assert shown[first : first + 8] == [
        "stage late-by-origin-repartition",
        "  source flights",
        "  filter col(delay) > 15",
        "  repartition by origin through airport-late-by-origin-repartition (origin)",
        "stage late-by-origin",
        "  source airport-late-by-origin-repartition",
        "  aggregate late-by-origin: by origin: n=count()",
        "  sink late by origin, updates",
    ]
    described = strandline("describe", STREAMS, "--json").json
    assert [stage["stage"] for stage in described["streams"]] == [
        "late-by-origin-repartition",
        "late-by-origin",
    ]
    assert strandline("describe", SHOP, "--json").json["streams"] == []


def test_the_plan_of_an_app_s_streams_is_drawn(strandline: Command) -> None:
    drawn = strandline("describe", STREAMS, "--mermaid").out
    assert drawn.startswith('flowchart TD\n  subgraph s1["stage late-by-origin-repartition"]')
    for target, said in (
        (SHOP, "app 'shop' has no streams to draw"),
        ("kafka://db:9092", "describe MODULE"),
    ):
        outcome = strandline("describe", target, "--mermaid")
        assert (outcome.code, said in outcome.err) == (1, True), outcome


def test_a_token_is_not_shown(strandline: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tests.cli.shop", raising=False)
    monkeypatch.setenv("STRANDLINE_LOG", "strandline://db:7361?token=secret")
    said = strandline("describe", SHOP).out
    assert "strandline://db:7361" in said
    assert "secret" not in said


def test_a_log_is_described(shop: Log, strandline: Command, folder: Path) -> None:
    described = strandline("describe", str(folder), "--json").json
    [group] = described["groups"]
    assert group == {
        "group": "shop",
        "reads": ["orders"],
        "lag": 0,
        "stores": ["routes", "totals"],
    }
    assert "sums" in strandline("describe", str(folder)).out


# app.main() ---------------------------------------------------------------------------


def test_an_app_has_a_command_line_of_its_own(
    shop: Log, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    app = sys.modules["tests.cli.shop"].app
    for arguments, code in {
        ("run", "--until", "idle"): 0,
        ("describe", "--json"): 0,
        ("reset", "--log", str(folder)): 1,
        ("produce",): 2,
    }.items():
        with pytest.raises(SystemExit) as exit_:
            app_main(app, arguments)
        assert exit_.value.code == code, capsys.readouterr().err


def test_an_app_run_as_a_program_shows_its_commands(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.shop", "--help"],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for word in ("run", "describe", "reset"):
        assert word in done.stdout


DEAD_LETTERS = """
import strandline as sl

app = sl.App("parsing")
raw = app.topic("raw", key=str, value=str, partitions=3)
numbers = app.topic("numbers", key=str, value=int)


@app.task(raw, on_error="dead_letter")
def parse(record):
    numbers.send(record.key, int(record.value, BASE))
"""


def test_dead_letters_are_listed_and_put_back(
    log: Log, tmp_path: Path, strandline: Command
) -> None:
    none = strandline("dead-letters", "list")
    assert (none.code, none.err.strip()) == (0, "no dead-letter topics")
    lines = "".join(f'{{"key": "k{n}", "value": "f{n}"}}\n' for n in range(9))
    for base in (10, 16):
        path = tmp_path / f"parsing_{base}.py"
        path.write_text(f"BASE = {base}\n{DEAD_LETTERS}")
        run = strandline("run", f"{path}:app", "--until", "idle")
        assert run.code == 0, run.err
        if base == 10:
            strandline("produce", "raw", stdin=lines)
            strandline("run", f"{path}:app", "--until", "idle")
            assert strandline("dead-letters", "list", "--json").json == [
                {"topic": "parsing-parse-dead-letter", "letters": 9}
            ]
            done = strandline("dead-letters", "retry", "parsing-parse-dead-letter")
            assert (done.code, done.out.strip()) == (0, "9 put back into raw")
    assert sorted(log.to_polars("numbers")["key"].to_list()) == [b"k%d" % n for n in range(9)]
    again = strandline("dead-letters", "retry", "parsing-parse-dead-letter")
    assert (again.code, again.out.strip()) == (0, "nothing to put back")
    refused = strandline("dead-letters", "retry", "raw")
    assert (refused.code, "is no dead-letter topic" in refused.err) == (1, True)
