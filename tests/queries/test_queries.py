"""Queries from other processes read all committed values of a store, and nothing else."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.errors import RequestTimedOut
from strandline.changelog.log import Log
from strandline.framework.cli import main, stores
from tests.queries.shop import PARTITIONS, Running, Total, shop

Eventually = Callable[..., None]
NAMES = [f"shop-{n:02}" for n in range(30)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with changelog.open(tmp_path / "log", durability="os") as opened:
        yield opened


@pytest.fixture
def workers(log: Log, tmp_path: Path, eventually: Eventually) -> Iterator[list[Running]]:
    """Two workers, each with half of the partitions, after one sale to each of NAMES."""
    running = [Running(log, tmp_path / "state") for _ in range(2)]
    eventually(lambda: [len(one.numbers) for one in running] == [2, 2], what="sharing")
    running[0].made.sales.append([(name, n + 1) for n, name in enumerate(NAMES)])
    yield running
    for one in running:
        one.stop()


@pytest.fixture
def connection(log: Log) -> Iterator[sl.Connection]:
    with sl.connect(log, deadline=60) as made:
        yield made


def all_there(store: sl.ReadOnlyStore[str, Any]) -> bool:
    return len(store.get_many(NAMES)) == len(NAMES)


def test_every_way_to_read_finds_the_keys_of_two_workers(
    workers: list[Running], connection: sl.Connection, eventually: Eventually
) -> None:
    totals = connection.store("shop/totals", value=Total)
    eventually(lambda: all_there(totals), what="all sales counted")
    wanted = {name: Total(1, n + 1) for n, name in enumerate(NAMES)}
    assert {name: totals[name] for name in NAMES} == wanted
    assert totals.get_many([*NAMES, "nowhere"]) == wanted
    assert list(totals.all()) == sorted(wanted.items())
    assert list(totals.all(reverse=True)) == sorted(wanted.items(), reverse=True)
    assert [key for key, _ in totals.range("shop-05", "shop-08")] == NAMES[5:8]
    assert [key for key, _ in totals.range(upper="shop-03", reverse=True)] == NAMES[2::-1]
    assert [key for key, _ in totals.prefix("shop-1")] == NAMES[10:20]
    assert totals.approximate_num_entries() == len(NAMES)
    assert "shop-07" in totals
    assert "nowhere" not in totals


def test_keys_and_values_have_the_types_that_the_app_declared(
    workers: list[Running], connection: sl.Connection, eventually: Eventually
) -> None:
    totals = connection.store("shop/totals", value=Total)
    eventually(lambda: all_there(totals), what="all sales counted")
    assert totals["nowhere"] == totals.get("nowhere") == Total()
    assert totals.get("nowhere", 7) == 7
    with pytest.raises(
        sl.InvalidRecord, match="'shop/totals': a key of this store must be str, got 5"
    ):
        totals.get(5)
    assert connection.store("shop/raw")["shop-03"] == b"shop-03"
    plain = connection.store("shop/totals")
    assert plain["shop-03"] == {"n": 1, "amount": 4}
    assert plain["nowhere"] == {"n": 0, "amount": 0}
    own = connection.store(workers[0].made.totals)
    assert own["shop-03"] == Total(1, 4)
    assert own["nowhere"] == Total()
    assert dict(own.prefix("shop-03")) == {"shop-03": Total(1, 4)}

    by_day = connection.store("shop/by-day")
    assert [key for key, _ in by_day.prefix((3,))] == [(3, name) for name in NAMES[2::7]]
    assert by_day[3, "shop-02"] == 3
    assert by_day.get((3, "nowhere")) is None
    with pytest.raises(KeyError, match="nowhere"):
        by_day[3, "nowhere"]

    figures = connection.store("shop/figures")
    assert (figures["shop-04"].n, figures["shop-04"].mean) == (1, 5.0)
    with pytest.raises(sl.InvalidConfig, match=r"JsonSerde, which is known to the app only"):
        connection.store("shop/json").get("shop-03")
    json = connection.store("shop/json", value=sl.JsonSerde())
    assert json["shop-03"] == {"last": 4}


def test_the_error_about_a_wrong_name_lists_the_existing_ones(
    workers: list[Running], connection: sl.Connection, eventually: Eventually
) -> None:
    for name in ("shop/none", "none/totals", "totals", "shop/total", ""):
        with pytest.raises(sl.InvalidRequest, match=r"there is no store .*shop/totals"):
            connection.store(name)
    with pytest.raises(sl.InvalidRequest, match="did you mean shop/totals"):
        connection.store("shop/total")


def test_a_transaction_left_open_by_a_dead_worker_does_not_return_older_values(
    log: Log, tmp_path: Path
) -> None:
    made = shop(log, state_dir=tmp_path / "state")
    made.sales.append([("a", 1)])
    made.app.run(until="idle")
    with log.producer(transactional_id="dead") as dead, sl.connect(log, deadline=0.5) as connection:
        dead.begin_transaction()
        for number in range(PARTITIONS):
            record = {"key": b"Qdead", "value": b"x"}
            dead.append("shop-totals-changelog", [record], partition=number)
        made.sales.append([("a", 2)])
        made.app.run(until="idle")
        totals = connection.store("shop/totals", value=dict)
        with pytest.raises(RequestTimedOut, match="a transaction is open there"):
            totals.get("a")
        dead.abort_transaction()
        assert totals["a"] == {"n": 2, "amount": 3}


def test_changes_of_a_handler_that_raises_are_never_read(
    workers: list[Running], connection: sl.Connection, eventually: Eventually
) -> None:
    totals = connection.store("shop/totals", value=Total)
    eventually(lambda: all_there(totals), what="all sales counted")
    seen: set[Total] = set()
    for _ in range(200):
        workers[0].made.sales.append([("shop-00", -1), ("shop-00", 1)])
        seen |= {totals["shop-00"], *(v for k, v in totals.range("shop-00", "shop-01"))}
        if totals["shop-00"].n >= 50:
            break
    assert all(total.n == total.amount for total in seen), "shop-00 was sold 1 each time"


def test_changes_of_a_long_transaction_are_read_once_it_is_committed(
    workers: list[Running], connection: sl.Connection, eventually: Eventually
) -> None:
    totals = connection.store("shop/totals", value=Total)
    eventually(lambda: all_there(totals), what="all sales counted")
    workers[0].made.sales.append([("shop-01", 0)])
    eventually(
        lambda: any(one.made.waiting.is_set() for one in workers), what="the handler waits inside"
    )
    for _ in range(50):
        assert totals["shop-01"] == Total(1, 2)
        assert "seen only inside" not in totals
        assert len(list(totals.all())) == len(NAMES)
    for one in workers:
        one.made.gate.set()
    eventually(lambda: totals["shop-01"] == Total(2, 2), what="the commit")
    assert "seen only inside" not in totals


def test_a_partition_that_moves_is_always_readable_and_never_goes_back(
    log: Log, tmp_path: Path, connection: sl.Connection, eventually: Eventually
) -> None:
    """Workers join and leave, while one thread writes and four read."""
    first = Running(log, tmp_path / "state")
    eventually(lambda: len(first.numbers) == PARTITIONS, what="all at the first")
    first.made.sales.append([(name, 1) for name in NAMES])
    totals = connection.store("shop/totals", value=Total)
    eventually(lambda: all_there(totals), what="all sales counted")
    stop = threading.Event()
    wrong: list[str] = []
    reads = [0] * 4

    def read(reader: int) -> None:
        last: dict[str, int] = {}
        try:
            while not stop.is_set():
                reads[reader] += 1
                now = dict(totals.all()) if reader % 2 else totals.get_many(NAMES)
                assert set(now) == set(NAMES)
                back = {name for name, total in now.items() if total.n < last.get(name, 0)}
                assert not back, f"went back: {back}"
                last = {name: total.n for name, total in now.items()}
        except BaseException as error:
            wrong.append(repr(error))
            stop.set()

    threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    present, rounds = [first], 0
    while rounds < 4 and not stop.is_set():
        rounds += 1
        new = Running(log, tmp_path / "state")
        eventually(lambda new=new: len(new.numbers) == 2, what="sharing")
        new.made.sales.append([(name, 1) for name in NAMES])
        present.pop(0).stop()
        present.append(new)
        new.made.sales.append([(name, 1) for name in NAMES])
        eventually(lambda new=new: len(new.numbers) == PARTITIONS, what="all at the new one")
    eventually(lambda: totals["shop-00"].n == 1 + 2 * rounds, what="all counted")
    stop.set()
    for thread in threads:
        thread.join(30)
    for one in present:
        one.stop()
    assert wrong == []
    assert min(reads) > 3


def test_queries_read_the_changelogs_while_no_worker_runs(
    log: Log, tmp_path: Path, connection: sl.Connection, eventually: Eventually
) -> None:
    one = Running(log, tmp_path / "state")
    one.made.sales.append([(name, n + 1) for n, name in enumerate(NAMES)])
    totals = connection.store("shop/totals", value=Total)
    eventually(lambda: all_there(totals), what="all sales counted")
    one.stop()
    assert totals["shop-03"] == Total(1, 4), "how it was declared is known by now"
    fresh = connection.store("shop/totals")
    assert fresh["shop-03"] == {"n": 1, "amount": 4}
    assert [key for key, _ in fresh.range("shop-05", "shop-08")] == NAMES[5:8]
    assert fresh.approximate_num_entries() == len(NAMES)
    assert fresh.get("nowhere") is None
    typed = connection.store("shop/totals", key=str, value=Total)
    assert typed.get_many(["shop-03", "nowhere"]) == {"shop-03": Total(1, 4)}

    other = shop(log, state_dir=tmp_path / "state")
    other.sales.append([("shop-03", 10)])
    with other.app:
        other.app.run(until="idle", progress=False)
    assert typed["shop-03"] == totals["shop-03"] == Total(2, 14), "only what is new is read"


def test_an_unreadable_partition_is_named_after_the_deadline(
    workers: list[Running],
    log: Log,
    tmp_path: Path,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with sl.connect(log, deadline=0.3) as connection:
        totals = connection.store("shop/totals", value=Total)
        eventually(lambda: all_there(totals), what="all sales counted")
        stalled, held = workers[0], workers[0].numbers
        place = stalled.made.app.runner.worker._session.membership  # type: ignore[union-attr]
        monkeypatch.setattr(place, "is_certain", lambda: False)
        with pytest.raises(RequestTimedOut, match=r"store shop/totals, partition \d \(unix") as met:
            list(totals.all())
        assert f"partition {held[0]}" in str(met.value)
        with monkeypatch.context() as patched, pytest.raises(SystemExit):
            patched.setattr(stores, "connect", lambda _log: sl.connect(log, deadline=0.3))
            main(["stores", "scan", "shop/totals", "--log", str(tmp_path / "log")])
        said = capsys.readouterr().err
        assert "it is being restored: see `strandline groups members shop`" in said
        assert "--expired reads the changelogs instead" in said
        monkeypatch.undo()
        assert len(list(totals.all())) == len(NAMES)


def test_a_worker_without_heartbeats_for_a_session_is_not_certain_of_its_partitions(
    workers: list[Running], eventually: Eventually
) -> None:
    place = workers[0].made.app.runner.worker._session.membership  # type: ignore[union-attr]
    assert place is not None
    assert place.is_certain()
    place._confirmed_at -= 2.1  # type: ignore[attr-defined]
    place._session_s, before = 0.0, place._session_s  # type: ignore[attr-defined]
    assert not place.is_certain()
    place._session_s = before  # type: ignore[attr-defined]
    eventually(place.is_certain, what="the next beat")


def test_sockets_are_private_and_removed_at_the_end_or_by_the_next_worker(
    tmp_path: Path, eventually: Eventually
) -> None:
    path = Path("/tmp") / f"strandline-q{os.getpid()}"  # a socket's path must be short
    folder = path / "queries"
    try:
        one = Running(str(path), durability="os")
        eventually(lambda: len(one.numbers) == PARTITIONS, what="at work")
        [socket] = folder.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        one.stop()
        one.made.app.close()
        assert list(folder.iterdir()) == []
        import socket as sockets

        left = sockets.socket(sockets.AF_UNIX)
        left.bind(str(folder / "0123456789abcdef.sock"))
        left.close()  # as a killed worker leaves it
        two = Running(str(path), durability="os")
        eventually(lambda: len(two.numbers) == PARTITIONS, what="at work")
        assert "0123456789abcdef.sock" not in [file.name for file in folder.iterdir()]
        two.stop()
        two.made.app.close()
    finally:
        from strandline.changelog.local_storage import LocalStorage

        LocalStorage(path.parent).remove_tree(path.name)


def test_many_threads_use_one_connection(
    workers: list[Running], connection: sl.Connection, eventually: Eventually
) -> None:
    totals = connection.store("shop/totals", value=Total)
    eventually(lambda: all_there(totals), what="all sales counted")
    wrong: list[str] = []

    def read() -> None:
        for n, name in enumerate(NAMES * 5):
            found = totals[name]
            if found != Total(1, n % len(NAMES) + 1):
                wrong.append(f"{name}: {found}")

    threads = [threading.Thread(target=read) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_a_store_that_expires_reads_as_a_handler_does(
    log: Log, tmp_path: Path, connection: sl.Connection, eventually: Eventually
) -> None:
    app = sl.App("short", log=log, state_dir=tmp_path / "state", commit_interval_ms=5)
    words = app.topic("words", key=str, value=int, partitions=1)
    kept = app.store("kept", key=str, value=int, ttl_ms=300)

    @app.task(words, stores=[kept])
    def keep(record: sl.Record[str, int]) -> None:
        kept[record.key] = record.value

    words.append([("a", 1)])
    running = threading.Thread(target=app.run, kwargs={"progress": False})
    running.start()
    store = connection.store("short/kept")
    eventually(lambda: "a" in store, what="the word kept")
    eventually(lambda: "a" not in store, what="the word expired")
    assert list(store.all()) == []
    app.stop()
    running.join(30)
