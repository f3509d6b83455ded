"""Programs that declare a store differently, at the same time: the first one decides."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog import moving
from strandline.changelog.clock import SystemClock
from strandline.changelog.log import Log
from strandline.framework.cli.reset import carry_out, plan_for
from strandline.framework.store_declarations import StoreDeclarations
from strandline.statestore.recorded import DeclarationLog, declarations_topic
from tests.systems import System
from tests.workers.threads import InThread

Eventually = Callable[..., None]


@pytest.fixture
def log(system: System) -> Log:
    return system.open(durability="os")


@dataclass
class Small:
    n: int


@dataclass
class Wide:
    n: int
    note: str = ""


class Shop:
    """A version of an app that counts in objects of its own type."""

    def __init__(
        self,
        system: System,
        log: Log,
        kind: Any,
        key: Any = str,
        *,
        task: str = "tally",
        **settings: Any,
    ) -> None:
        self.name = system.prefix + "shop"
        self.app = sl.App(
            self.name,
            log=log,
            state_dir=system.state,
            commit_interval_ms=10,
            session_timeout_ms=6_000 if system.is_kafka else 1_000,
        )
        self.sales = self.app.topic(system.prefix + "sales", key=str, value=int, partitions=4)
        self.totals: Any = self.app.store("totals", key=key, value=kind, **settings)

        @self.app.task(self.sales, stores=[self.totals], name=task)
        def tally(record: sl.Record[str, int]) -> None:
            self.totals[record.key] = kind(record.value)

    def recorded(self) -> DeclarationLog:
        return DeclarationLog(self.app.broker(), self.name, SystemClock())


@pytest.mark.long_on_kafka
def test_a_wider_program_can_run_next_to_an_older_one(
    system: System, log: Log, eventually: Eventually
) -> None:
    """The older worker keeps its partitions, and takes none that the newer worker had."""
    older, newer = Shop(system, log, Small), Shop(system, log, Wide)
    old = InThread(older.app, "tally")
    eventually(lambda: len(old.numbers) == 4, what="the older one's start")
    new = InThread(newer.app, "tally")
    eventually(lambda: len(old.numbers) == len(new.numbers) == 2, what="sharing")
    older.sales.append([(f"k{n}", n) for n in range(20)])
    eventually(lambda: len(dict(newer.app.query(newer.totals).all())) == 20, what="both at work")
    new.stop()
    eventually(lambda: old.error is not None, what="the older one's end", timeout=60)
    with pytest.raises(sl.InvalidConfig, match="field 'note' is not declared"):
        old.stop()
    last = InThread(Shop(system, log, Wide).app, "tally")
    eventually(lambda: len(last.numbers) == 4, what="the newer one's return", timeout=60)
    last.stop()


@pytest.mark.long_on_kafka
def test_a_program_that_the_group_refuses_leaves_the_declarations_as_they_were(
    system: System, log: Log, eventually: Eventually
) -> None:
    """The running program could otherwise not start again, although nothing wider was stored."""
    older = Shop(system, log, Small)
    worker = InThread(older.app, "tally")
    eventually(lambda: len(worker.numbers) == 4, what="the older one's start")
    before = older.recorded().read().stores
    with pytest.raises(sl.InvalidConfig, match="has another program as a member"):
        Shop(system, log, Wide, task="renamed").app.run(timeout=60, progress=False)
    assert older.recorded().read().stores == before
    worker.stop()
    again = Shop(system, log, Small)
    again.sales.append([(f"k{n}", n) for n in range(8)])
    assert again.app.run(until="idle", progress=False) == 8


@pytest.mark.long_on_kafka
def test_one_of_two_programs_that_start_at_once_begins(system: System, log: Log) -> None:
    """The first one decides. The other one has changed nothing."""
    shops = {"str": Shop(system, log, Small), "bytes": Shop(system, log, Small, bytes)}
    shops["str"].sales.append([(f"k{n}", n) for n in range(8)])
    gate = threading.Barrier(2)

    def start(shop: Shop) -> Any:
        gate.wait(30)
        try:
            return shop.app.run(until="idle", progress=False)
        except (sl.InvalidConfig, sl.TaskFailed) as error:
            # TaskFailed: the store of bytes came first, and the handler puts str keys. Nothing is in the
            # store then, so the other one may begin as soon as this one has left.
            return error

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(start, shops.values()))
    assert [one for one in outcomes if isinstance(one, Exception)], "both passed"
    [stored] = shops["str"].recorded().read().stores.values()
    if stored.key == "str":
        shops["str"].app.run(until="idle", progress=False)
        assert len(shops["str"].app.query(shops["str"].totals).to_dict()) == 8


@pytest.mark.long_on_kafka
def test_an_empty_store_changes_only_while_no_worker_runs(
    system: System, log: Log, eventually: Eventually
) -> None:
    first, second = Shop(system, log, Small), Shop(system, log, Small, bytes)
    worker = InThread(first.app, "tally")
    eventually(lambda: len(worker.numbers) == 4, what="the first one's start")
    with pytest.raises(sl.InvalidConfig, match="stop all of them first"):
        second.app.run(until="idle", progress=False)
    worker.stop()
    assert second.app.run(until="idle", progress=False) == 0
    [stored] = second.recorded().read().stores.values()
    assert stored.key == "bytes"


def test_a_change_is_decided_again_if_another_program_was_first(system: System, log: Log) -> None:
    mine, other = Shop(system, log, Small).recorded(), Shop(system, log, Small).recorded()
    seen: list[int] = []

    def decide(recorded: Any) -> dict[str, bytes | None]:
        seen.append(len(recorded.stores))
        if len(seen) == 2:  # it has fenced the others, and has not written yet
            other.change(lambda now: {} if "b" in now.stores else {"b": _some(int)})
        return {} if "a" in recorded.stores else {"a": _some(str)}

    recorded = mine.change(decide)
    assert set(recorded.stores) == {"a", "b"}
    assert seen[:4] == [0, 0, 1, 1], "what it had decided by then was void"
    assert set(other.read().stores) == {"a", "b"}


def _some(kind: Any) -> bytes:
    from strandline.statestore import StoreSpec
    from strandline.statestore.declaration import declaration_of

    return declaration_of(StoreSpec("x", key=kind, value=int)).to_bytes()


@pytest.mark.long_on_kafka
def test_a_reset_deletes_the_declaration(system: System, log: Log) -> None:
    shop = Shop(system, log, Small)
    shop.sales.append([("york", 1)])
    shop.app.run(until="idle", progress=False)
    assert shop.recorded().read().stores
    carry_out(log.broker, plan_for(log.broker, shop.name, system.url), yes=True, json=True)
    assert declarations_topic(shop.name) not in {info.name for info in log.broker.topics()}
    other = Shop(system, log, str)
    assert other.app.run(until="idle", progress=False) == 1
    assert other.app.query(other.totals).to_dict() == {"york": "1"}


@pytest.mark.long_on_kafka
def test_a_move_includes_the_declaration(system: System, log: Log, tmp_path: Any) -> None:
    shop = Shop(system, log, Small)
    shop.sales.append([("york", 1)])
    shop.app.run(until="idle", progress=False)
    with changelog.open(tmp_path / "target") as target:
        names = {
            system.prefix + "sales",
            shop.totals.changelog_topic,
            declarations_topic(shop.name),
        }
        here, there = (
            moving.MovedLog("source", log.broker),
            moving.MovedLog("target", target.broker),
        )
        moving.move(here, there, moving.Selection(names, [shop.name]), progress=lambda *_: None)
        moved = Shop(system, target, Small)
        assert moved.recorded().read().stores == shop.recorded().read().stores
        assert moved.app.query(moved.totals).to_dict() == {"york": Small(1)}
        wrong = Shop(system, target, str)
        with pytest.raises(sl.InvalidConfig, match="totals"):
            wrong.app.run(until="idle", progress=False)


@pytest.mark.long_on_kafka
def test_a_store_that_is_filled_during_a_change_of_its_declaration_keeps_it(
    system: System, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that fills it comes after the look at the group, and leaves before the next one."""
    first, second = Shop(system, log, Small), Shop(system, log, Small, bytes)
    assert first.app.run(until="idle", progress=False) == 0
    first.sales.append([(f"k{n}", n) for n in range(8)])
    look_at_members, looks, handled = StoreDeclarations._members, itertools.count(1), list[int]()

    def members(self: StoreDeclarations) -> str:
        found = look_at_members(self)
        if next(looks) == 2:  # the last one before the change is written
            handled.append(first.app.run(until="idle", progress=False))
        return found

    monkeypatch.setattr(StoreDeclarations, "_members", members)
    with pytest.raises(sl.InvalidConfig, match="another program filled"):
        second.app.run(until="idle", progress=False)
    assert handled == [8]
    [stored] = first.recorded().read().stores.values()
    assert stored.key == "str"
    assert len(first.app.query(first.totals).to_dict()) == 8


@pytest.mark.long_on_kafka
def test_a_worker_that_starts_during_a_change_of_declarations_keeps_its_own(
    system: System, log: Log, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    first, second = Shop(system, log, Small), Shop(system, log, Small, bytes)
    assert first.app.run(until="idle", progress=False) == 0
    look_at_members, looks = StoreDeclarations._members, itertools.count(1)
    workers: list[InThread] = []

    def members(self: StoreDeclarations) -> str:
        found = look_at_members(self)
        if next(looks) == 2:  # the last one before the change is written
            workers.append(InThread(first.app, "tally"))
            eventually(lambda: len(workers[0].numbers) == 4, what="the first one's start")
        return found

    monkeypatch.setattr(StoreDeclarations, "_members", members)
    with pytest.raises(sl.InvalidConfig, match="a worker of another program started"):
        second.app.run(until="idle", progress=False)
    [stored] = first.recorded().read().stores.values()
    assert stored.key == "str"
    first.sales.append([(f"k{n}", n) for n in range(8)])
    eventually(lambda: len(dict(first.app.query(first.totals).all())) == 8, what="all handled")
    workers[0].stop()
