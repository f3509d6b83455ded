"""Queries of workers that are processes: killed, stopped, continued."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import strandline as sl
from strandline.changelog.errors import RequestTimedOut
from strandline.framework.placing import home
from strandline.framework.querying import workers as querying
from strandline.framework.querying.messages import FoundKeys, GetKeys
from strandline.statestore.keys import key_codec
from tests.queries.shop import PARTITIONS, Shop, Total, shop
from tests.workers.processes import Process, ending

Eventually = Callable[..., None]
NAMES = [f"shop-{n:02}" for n in range(20)]


class World:
    """A log that this process has open, workers as processes, and a store that is read."""

    def __init__(self, folder: Path, eventually: Eventually) -> None:
        self.path = folder / "log"
        self.made: Shop = shop(str(self.path))
        self.made.app.prepare()
        self.connection = sl.connect(self.made.app.broker())
        self.totals = self.connection.store("shop/totals", value=Total)
        self.processes: list[Process] = []
        self.sold = 0
        self._folder = folder
        self._eventually = eventually

    def start(self) -> Process:
        said = self._folder / f"worker-{len(self.processes)}.log"
        self.processes.append(Process(["tests.queries.shop", str(self.path)], said))
        return self.processes[-1]

    def shared(self, among: int) -> None:
        """Wait until `among` members own all partitions."""

        def is_shared() -> bool:
            members = self.made.app.broker().describe_group("shop").members
            return len(members) == among and sum(len(m.held) for m in members) == PARTITIONS

        self._eventually(is_shared, what=f"sharing among {among}")

    def sell(self) -> None:
        """Sell one more of each name. Wait until it can be read."""
        self.made.sales.append([(name, 1) for name in NAMES])
        self.sold += 1
        self._eventually(lambda: self.read() == {self.sold}, what=f"{self.sold} of each")

    def read(self) -> set[int]:
        """Return the distinct numbers sold."""
        totals = self.totals.get_many(NAMES)
        assert len(totals) == len(NAMES) or self.sold < 2
        assert all(total == Total(total.n, total.n) for total in totals.values())
        return {total.n for total in totals.values()} if len(totals) == len(NAMES) else set()

    def close(self) -> None:
        self.connection.close()
        self.made.app.close()


@pytest.fixture
def world(tmp_path: Path, eventually: Eventually) -> Iterator[World]:
    made = World(tmp_path, eventually)
    with ending(made.processes):
        yield made
        made.close()


def test_queries_wait_for_the_worker_that_replaces_a_killed_one(world: World) -> None:
    one, two = world.start(), world.start()
    world.shared(2)
    world.sell()
    for _ in range(3):
        one.kill()
        assert world.read() == {world.sold}, "not a moment is what was committed not there"
        world.sell()
        one, two = two, world.start()
        world.shared(2)
    assert [key for key, _ in world.totals.all()] == NAMES


@pytest.mark.long
def test_queries_read_the_changelogs_when_all_workers_are_killed(world: World) -> None:
    workers = [world.start(), world.start()]
    world.shared(2)
    world.sell()
    for process in workers:
        process.kill()
    assert world.read() == {1}
    assert len(dict(world.totals.all())) == len(NAMES)
    world.start()
    world.shared(1)
    world.sell()


def test_a_stalled_worker_is_named_while_the_others_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(querying, "ATTEMPT_SECONDS", 0.1)
    frozen, other = world.start(), world.start()
    world.shared(2)
    world.sell()
    members = world.made.app.broker().describe_group("shop").members
    [held] = [m.held for m in members if m.client.endswith(f"-{other.pid}")]
    numbers = {tp.partition for tp in held}
    there = [name for name in NAMES if home(name, PARTITIONS) in numbers]
    frozen.freeze()
    with sl.connect(world.made.app.broker(), deadline=0.5) as connection:
        totals = connection.store("shop/totals", value=Total)
        assert set(totals.get_many(there)) == set(there) != set(NAMES)
        named = rf"worker \S+-{frozen.pid} does not answer \(.*unix://"
        with pytest.raises(RequestTimedOut, match=named) as met:
            totals.get_many(NAMES)
    assert f"-{other.pid}" not in str(met.value)
    frozen.thaw()


@pytest.mark.long
def test_a_worker_stopped_past_its_session_returns_nothing_old(
    world: World, eventually: Eventually
) -> None:
    """It wakes up with its old partitions, while the other worker has continued."""
    frozen, _ = world.start(), world.start()
    world.shared(2)
    world.sell()
    members = world.made.app.broker().describe_group("shop").members
    before = {tuple(member.servers): {tp.partition for tp in member.held} for member in members}
    frozen.freeze()
    world.shared(1)
    world.sell()
    [left] = {tuple(m.servers) for m in world.made.app.broker().describe_group("shop").members}
    [(url,)] = before.keys() - {left}
    frozen.thaw()
    # Query it directly, without the positions that a client has seen.
    names = [key_codec(str).encode(name) for name in NAMES]
    request = GetKeys("totals", sorted(before[url,]), names, {})
    for _ in range(200):
        got = world.connection._connections.ask(url, request, FoundKeys, 10.0)
        values = [data for part in got.parts for data in part.values if data is not None]
        assert all(msgspec.msgpack.decode(data, type=Total).n == world.sold for data in values)
    world.shared(2)
    world.sell()
