"""A store keyed differently than its input: one partition's part is never returned as the whole."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import testing
from strandline.framework.cli import main
from strandline.framework.placing import home
from tests.workers.threads import InThread

Eventually = Callable[..., None]
PARTITIONS = 4
RECORDS = 1_000
WORDS = ("x", "y")
COUNT = RECORDS // len(WORDS)


class Words:
    """An app that counts words in records with other keys."""

    def __init__(self, log: Any, **options: Any) -> None:
        self.app = app = sl.App("words", log=log, **options)
        self.heard = app.topic("heard", key=str, value=str, partitions=PARTITIONS)
        self.plain = plain = app.store("plain", key=str, value=int, default=0)
        self.counter = counter = app.counter("counter")
        self.figures = figures = app.aggregates(
            "figures",
            n=sl.count(),
            total=sl.sum("size"),
            least=sl.min("size"),
            most=sl.max("size"),
            mean=sl.mean("size"),
        )
        self.by_input = by_input = app.store("by-input", key=str, value=int, default=0)

        @app.task(self.heard, stores=[plain, counter, figures, by_input])
        def count(record: sl.Record[str, str]) -> None:
            word = record.value
            plain[word] += 1
            counter.add(word)
            figures.add(word, size=int(record.key))
            by_input[record.key] += 1

    def records(self) -> list[tuple[str, str]]:
        return [(str(n), WORDS[n % len(WORDS)]) for n in range(RECORDS)]


def check_figures(figures: Any) -> None:
    """Check the figures of "x": 0, 2, 4 … 998."""
    sizes = range(0, RECORDS, 2)
    assert (figures.n, figures.total, figures.least, figures.most) == (COUNT, sum(sizes), 0, 998)
    assert figures.mean == sum(sizes) / COUNT


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Words]:
    """An app that has counted all records, and does not run."""
    words = Words(str(tmp_path_factory.mktemp("counted") / "log"), durability="os")
    words.heard.append(words.records())
    words.app.run(until="idle", progress=False)
    yield words
    words.app.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Words]:
    """Two running workers, each with two of the partitions, which have counted all records."""
    folder = tmp_path_factory.mktemp("running")
    first = Words(str(folder / "log"), durability="os", session_timeout_ms=2_000)
    second = Words(first.app.broker(), state_dir=folder / "state", session_timeout_ms=2_000)
    workers = [InThread(words.app, "count") for words in (first, second)]
    wait_for(lambda: [len(one.numbers) for one in workers] == [2, 2])
    first.heard.append(first.records())
    with sl.connect(first.app.broker()) as connection:
        by_input = connection.store("words/by-input")
        wait_for(lambda: len(list(by_input.all())) == RECORDS)
    yield first
    for one in workers:
        one.stop()
    first.app.close()


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait, with a bound, for a condition that other threads meet."""
    pause = threading.Event()
    for _ in range(6_000):
        if condition():
            return
        pause.wait(0.005)
    pytest.fail("it did not happen within 30 s")


READS: list[Callable[[Any], Any]] = [
    lambda store: store["x"],
    lambda store: store.get("x"),
    lambda store: store.get("x", 0),
    lambda store: "x" in store,
    lambda store: list(store.all()),
    lambda store: list(store.range("w", "z")),
]
STORE_READS = [
    *READS,
    lambda store: store.get_many(["y", "x"]),
    lambda store: list(store.prefix("x")),
    lambda store: list(store.all(reverse=True)),
    lambda store: store.to_dict(),
    lambda store: store.to_arrow(),
]
REFUSED = r"has key '[xy]' in several partitions \(0, 1, 2, 3\).*app\.repartition"


@pytest.mark.parametrize("read", STORE_READS)
def test_a_view_refuses_a_store_that_it_cannot_merge(
    counted: Words, read: Callable[[Any], Any]
) -> None:
    with pytest.raises(sl.KeyInSeveralPartitions, match=REFUSED):
        read(counted.app.query(counted.plain))


def test_a_view_merges_counters_and_aggregates(counted: Words) -> None:
    counter = counted.app.query(counted.counter)
    assert counter["x"] == counter.get("y") == COUNT
    assert counter.to_dict() == dict(counter.all()) == dict.fromkeys(WORDS, COUNT)
    assert counter.to_arrow().to_pylist() == [{"key": w, "value": COUNT} for w in WORDS]
    assert (counter.get("nowhere"), counter["nowhere"]) == (0, 0)
    figures = counted.app.query(counted.figures)
    check_figures(figures["x"])
    check_figures(figures.to_dict()["x"])


def test_a_view_of_one_partition_shows_its_part(counted: Words) -> None:
    parts = [counted.app.query(counted.plain, partition=n).to_dict() for n in range(PARTITIONS)]
    assert sum(part["x"] for part in parts) == COUNT
    assert len({part["x"] for part in parts}) > 1
    assert counted.app.query(counted.plain, partition=2)["x"] == parts[2]["x"]
    with pytest.raises(sl.InvalidRequest, match="partitions 0 to 3; there is no partition 4"):
        counted.app.query(counted.plain, partition=4)


@pytest.mark.parametrize("read", STORE_READS)
def test_a_query_refuses_a_store_that_it_cannot_merge(
    running: Words, read: Callable[[Any], Any]
) -> None:
    with sl.connect(running.app.broker()) as connection:
        with pytest.raises(sl.KeyInSeveralPartitions, match=REFUSED):
            read(connection.store("words/plain"))
        with pytest.raises(sl.KeyInSeveralPartitions, match=REFUSED):
            read(connection.store("words/plain", key=str, value=int))


def test_a_query_merges_counters_and_aggregates(running: Words) -> None:
    with sl.connect(running.app.broker()) as connection:
        for counter in (
            connection.store("words/counter"),
            connection.store("words/counter", key=str, value=int),
        ):
            assert counter["x"] == counter.get("y") == COUNT
            assert counter.get_many([*WORDS, "nowhere"]) == dict.fromkeys(WORDS, COUNT)
            assert list(counter.all()) == [(word, COUNT) for word in WORDS]
            assert list(counter.prefix("y", reverse=True)) == [("y", COUNT)]
            assert counter.get("nowhere") == 0
        figures = connection.store("words/figures")
        check_figures(figures["x"])
        check_figures(dict(figures.all())["x"])


def test_a_query_of_one_partition_returns_its_part(running: Words) -> None:
    with sl.connect(running.app.broker()) as connection:
        stores = [connection.store("words/plain", partition=n) for n in range(PARTITIONS)]
        parts = [store["x"] for store in stores]
        assert sum(parts) == COUNT
        assert [dict(store.all())["x"] for store in stores] == parts
        assert [store.get_many(["x"])["x"] for store in stores] == parts
        assert sum(store.approximate_num_entries() for store in stores) == PARTITIONS * len(WORDS)
        with pytest.raises(sl.InvalidRequest, match="there is no partition -1"):
            connection.store("words/plain", partition=-1)


@pytest.mark.parametrize("read", STORE_READS)
def test_a_query_without_workers_refuses_a_store_that_it_cannot_merge(
    counted: Words, read: Callable[[Any], Any]
) -> None:
    with (
        sl.connect(counted.app.broker()) as connection,
        pytest.raises(sl.KeyInSeveralPartitions, match=REFUSED),
    ):
        read(connection.store("words/plain"))


def test_a_query_without_workers_merges_counters_and_aggregates(counted: Words) -> None:
    """The recorded declaration of a store says what its values are."""
    with sl.connect(counted.app.broker()) as connection:
        view = counted.app.query(counted.counter)
        for types in ({}, {"key": str, "value": int}):
            counter = connection.store("words/counter", **types)
            assert counter["x"] == counter.get("y") == COUNT
            assert counter.get_many([*WORDS, "nowhere"]) == dict.fromkeys(WORDS, COUNT)
            assert counter.to_dict() == view.to_dict()
            assert counter.to_arrow() == view.to_arrow()
            assert counter["nowhere"] == counter.get("nowhere") == 0
            assert "nowhere" not in counter
        check_figures(connection.store("words/figures")["x"])


def test_a_counter_that_was_recorded_as_a_plain_store_is_merged_after_the_next_start(
    tmp_path: Path,
) -> None:
    """Earlier versions did not record which stores are counters."""

    def run(counter: bool) -> sl.App:
        app = sl.App("words", log=str(tmp_path / "log"), durability="os")
        heard = app.topic("heard", key=str, value=str, partitions=2)
        settings: dict[str, Any] = {"key": str}
        store = (
            app.counter("n", **settings)
            if counter
            else app.store("n", value=int, default=0, **settings)
        )
        app.task(heard, stores=[store], name="t")(
            lambda record: store.put("x", store.get("x", 0) + 1)
        )
        if not counter:
            heard.append([(str(n), "") for n in range(10)])
        app.run(until="idle", progress=False)
        return app

    run(counter=False).close()
    app = run(counter=True)
    with sl.connect(app.broker()) as connection:
        assert connection.store("words/n")["x"] == 10
    app.close()


def test_a_store_that_is_keyed_as_its_input_is_read_normally(running: Words) -> None:
    with sl.connect(running.app.broker()) as connection:
        store = connection.store("words/by-input")
        assert dict(store.all()) == store.get_many(map(str, range(RECORDS)))
        assert store["7"] == 1


def test_the_driver_refuses_and_merges_as_queries_do() -> None:
    words = Words("/nowhere")
    with testing.TestDriver(words.app) as driver:
        driver.run(words.records())
        with pytest.raises(sl.KeyInSeveralPartitions, match=REFUSED):
            driver.store(words.plain)
        assert driver.store(words.counter) == dict.fromkeys(WORDS, COUNT)
        check_figures(driver.store(words.figures)["x"])


# The command line -----------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[Any]:
    """Return the lines of JSON that a command prints."""
    with pytest.raises(SystemExit) as exit_:
        main([*arguments, "--json"])
    assert exit_.value.code == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("command", [["get", "words/plain", "x"], ["scan", "words/plain"]])
def test_the_command_line_refuses_and_shows_the_parts_on_request(
    running: Words, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    log = ["--log", str(running.app.log)]
    with pytest.raises(SystemExit) as exit_:
        main(["stores", *command, *log])
    assert exit_.value.code == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "has key 'x' in several partitions" in captured.err
    assert "--partition" in captured.err
    parts = [
        row for row in printed(capsys, "stores", *command, *log, "--parts") if row["key"] == "x"
    ]
    assert sum(row["value"] for row in parts) == COUNT
    assert [row["partition"] for row in parts] == list(range(PARTITIONS))
    [one] = [
        row
        for row in printed(capsys, "stores", *command, *log, "--partition", "2")
        if row["key"] == "x"
    ]
    assert one == parts[2]


@pytest.mark.parametrize("state", ["counted", "running"])
def test_the_command_line_merges_counters_and_aggregates(
    state: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    words: Words = request.getfixturevalue(state)
    log = ["--log", str(words.app.log)]
    [figures] = printed(capsys, "stores", "get", "words/figures", "x", *log)
    assert figures["value"]["n"] == COUNT
    [found] = printed(capsys, "stores", "get", "words/counter", "x", *log)
    assert (found["key"], found["value"]) == ("x", COUNT)
    rows = printed(capsys, "stores", "scan", "words/counter", *log)
    assert [(row["key"], row["value"]) for row in rows] == [(word, COUNT) for word in WORDS]


def test_the_list_of_stores_counts_each_key_once(
    counted: Words, capsys: pytest.CaptureFixture[str]
) -> None:
    [rows] = printed(capsys, "stores", "list", "--log", str(counted.app.log))
    keys = {row["store"]: (row["keys"], row["keys_in_several_partitions"]) for row in rows}
    assert keys == {
        "words/by-input": (RECORDS, 0),
        "words/counter": (2, 2),
        "words/figures": (2, 2),
        "words/plain": (2, 2),
    }


# Partitions read by a get ------------------------------------------------------------------


def asked(store: Any, key: str, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Return the partitions that a get of a key reads."""
    from strandline.framework.querying.workers import WorkerSource

    found: set[int] = set()
    read = WorkerSource.read

    def watched(self: Any, partitions: Any, keys: Any) -> Any:
        found.update(partitions)
        return read(self, partitions, keys)

    with monkeypatch.context() as patched:
        patched.setattr(WorkerSource, "read", watched)
        store.get(key)
    return found


def test_a_get_reads_one_partition_if_all_keys_are_placed_by_the_partitioner(
    running: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sl.connect(running.app.broker()) as connection:
        kept, counter = (connection.store(f"words/{name}") for name in ("by-input", "counter"))
        assert asked(kept, "7", monkeypatch) == {home("7", PARTITIONS)}
        assert asked(counter, "x", monkeypatch) == set(range(PARTITIONS))


def test_the_first_key_in_another_partition_is_detected(
    tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The knowledge survives a restart."""
    monkeypatch.setattr("strandline.framework.querying.placement.PLACED_SECONDS", 0.0)
    words = Words(str(tmp_path / "log"), durability="os")
    at_home = [(str(n), str(n)) for n in range(50)]
    elsewhere = ("99", next(w for w in map(str, range(9)) if _homes(w) != _homes("99")))
    one = InThread(words.app, "count")
    eventually(lambda: len(one.numbers) == PARTITIONS, what="at work")
    with sl.connect(words.app.broker()) as connection:
        counter = connection.store("words/counter")
        words.heard.append(at_home)
        eventually(lambda: len(list(counter.all())) == len(at_home), what="counted")
        assert asked(counter, "7", monkeypatch) == {_homes("7")}
        words.heard.append([elsewhere])
        eventually(lambda: counter[elsewhere[1]] == 2, what="the part elsewhere counted too")
        assert asked(counter, "7", monkeypatch) == set(range(PARTITIONS))
    one.stop()
    again = Words(words.app.broker(), state_dir=tmp_path / "state")
    two = InThread(again.app, "count")
    eventually(lambda: len(two.numbers) == PARTITIONS, what="at work")
    again.heard.append(at_home)
    with sl.connect(words.app.broker()) as connection:
        counter = connection.store("words/counter")
        eventually(lambda: counter[elsewhere[1]] == 3, what="counted again")
        assert asked(counter, "7", monkeypatch) == set(range(PARTITIONS))
    two.stop()
    words.app.close()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once", "at_most_once"])
def test_committed_offsets_record_the_placement_unless_changes_may_outlive_them(
    tmp_path: Path, guarantee: Any
) -> None:
    words = Words(str(tmp_path / "log"), durability="os", processing_guarantee=guarantee)
    words.heard.append(words.records())
    words.app.run(until="idle", progress=False)
    offsets = words.app.broker().committed("words").values()
    found = {offset.metadata for offset in offsets}
    assert found == {"" if guarantee == "at_least_once" else '{"placed":{"by-input":4}}'}
    words.app.close()


def _homes(key: str) -> int:
    return home(key, PARTITIONS)
