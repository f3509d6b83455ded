"""Cleaning on request, while passes run and other threads ask for the cleaner's state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.changelog.embedded.cleaning import cleaner, schedule
from strandline.changelog.embedded.cleaning.passes import PassResult
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.embedded.write_gate import WriteGate
from strandline.changelog.errors import StorageFailed
from strandline.changelog.local_storage import LocalStorage
from tests.log.kit import Client, World
from tests.log.test_threads import BOUND, RealWorld

CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1.0"}
"""Settings with which nothing is cleaned except on request."""


class Gate:
    """Holds each pass at its end until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self._open = threading.Semaphore(0)
        self.error: Exception | None = None

    def clean(self, *given: Any, **named: Any) -> PassResult:
        done = cleaner.clean(*given, **named)
        self.reached.release()
        assert self._open.acquire(timeout=BOUND)
        if self.error is not None:
            raise self.error
        return done

    def let_pass(self, error: Exception | None = None) -> None:
        self.error = error
        self._open.release()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A log with the compacted topic `t`, cleaned on threads of its own."""
    world = RealWorld(LocalStorage(tmp_path / "log"))
    world.owner.create_topic("t", config=CONFIG)
    yield world
    world.owner.close()


@pytest.mark.parametrize("error", [None, StorageFailed("the disk fails")], ids=["done", "failed"])
def test_a_request_made_during_a_pass_is_served_by_another_one(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
    error: Exception | None,
) -> None:
    gate, client = Gate(), Client(world)
    monkeypatch.setattr(schedule, "clean", gate.clean)
    client.append(b"1")
    world.owner.clean(["t"])
    assert gate.reached.acquire(timeout=BOUND)
    client.append(b"2")
    client.append(b"3")
    world.owner.alter_config({"log.cleaner.backoff.ms": "1"})
    world.owner.clean(["t"])  # the pass has scanned already
    gate.let_pass(error)
    assert gate.reached.acquire(timeout=BOUND), "nothing came of the second request"
    gate.let_pass()
    eventually(lambda: state_of(world.owner) == "idle")
    assert world.values() == [b"3"]


def failing(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Let the first passes fail. Returns the list of the passes that have begun."""
    begun: list[int] = []

    def clean(*given: Any, **named: Any) -> None:
        begun.append(len(begun))
        if len(begun) <= times:
            raise StorageFailed("the disk fails")
        cleaner.clean(*given, **named)

    monkeypatch.setattr(schedule, "clean", clean)
    return begun


def test_a_request_whose_pass_fails_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    begun, client = failing(monkeypatch, 2), Client(world)
    world.owner.alter_config({"log.cleaner.backoff.ms": "1"})
    client.append(b"1")
    client.append(b"2")
    world.owner.clean(["t"])
    eventually(lambda: state_of(world.owner) == "idle")
    assert begun == [0, 1, 2]
    assert world.values() == [b"2"]


def test_a_new_request_after_a_failed_one_is_not_taken_for_failed(
    world: World, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    begun, client = failing(monkeypatch, 1), Client(world)
    world.owner.alter_config({"log.cleaner.backoff.ms": "3600000"})
    client.append(b"1")
    world.owner.clean(["t"])
    eventually(lambda: state_of(world.owner) == "failed")
    monkeypatch.setattr(schedule.Cleaners, "tick", lambda _self: None)
    world.owner.clean(["t"])
    assert state_of(world.owner) == "requested"
    monkeypatch.undo()
    failing(monkeypatch, 0)
    world.owner.clean(["t"])
    eventually(lambda: state_of(world.owner) == "idle")
    assert begun == [0]


def state_of(owner: Owner) -> str:
    [state] = [one.state for one in owner.cleaning() if one.topic == "t"]
    return state


def test_requests_from_several_threads_are_all_served(
    world: World, eventually: Callable[..., None]
) -> None:
    clients = [Client(world) for _ in range(4)]

    def work(client: Client) -> None:
        for number in range(20):
            client.append(b"%d" % number)
            world.owner.clean(["t"])

    threads = [threading.Thread(target=work, args=[client]) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    eventually(lambda: state_of(world.owner) == "idle")
    assert len(world.values()) == 1


def test_the_state_of_the_cleaner_can_be_requested_while_it_looks_for_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request adds partitions to a dict that the periodic tick iterates over."""
    world = World()
    for topic in ("t", "u"):
        world.owner.create_topic(topic, config=CONFIG)
        Client(world).append(b"1", topic=topic)
        if topic == "t":
            world.owner.clean(["t"])
    asking = threading.Thread(target=world.owner.cleaning)
    looked_up = WriteGate.retired

    def retired(gate: WriteGate) -> bool:
        if threading.current_thread() is threading.main_thread() and asking.ident is None:
            asking.start()
            asking.join(0.2)  # it adds a partition, unless it waits for the lock
        return bool(looked_up.__get__(gate))

    monkeypatch.setattr(WriteGate, "retired", property(retired))
    world.clock.advance(60_000)
    world.owner._log.cleaners.tick()
    asking.join(BOUND)
    assert {one.topic for one in world.owner.cleaning()} >= {"t", "u"}
