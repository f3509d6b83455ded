"""The listeners beside the log's front: queries, metrics, and the driver of workers on Spark.

Peers that prove nothing take bounded threads, and never keep a peer from being served.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from strandline.changelog.hosts import HostPort
from strandline.framework import metrics, peers
from strandline.framework.peers import Newcomers
from strandline.framework.querying.connections import Connections
from strandline.framework.querying.endpoint import QueryEndpoint
from strandline.framework.querying.listener import NETWORK_LIMITS
from strandline.framework.querying.messages import CountKeys, KeyCounts
from strandline.framework.spark.slot_link import DriverLink
from strandline.framework.spark.slot_listener import SPARE_PEERS, SlotListener
from strandline.framework.spark.slot_messages import SlotHello, encoded_message, proof
from tests.metrics.scraping import scrape

Eventually = Callable[..., None]
TOKEN, SECRET = "a token of enough letters", "secret"
SILENT = 30
"""Number of addresses from which silent peers connect."""


class Opened(NamedTuple):
    """A listener, and a peer that has something to ask."""

    address: tuple[str, int]
    ask: Callable[[], object]
    threads: int
    """Largest number of threads that peers without a proof may take."""


@pytest.fixture(params=["queries", "metrics", "slots"])
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    with contextlib.ExitStack() as end:
        if request.param == "queries":
            endpoint = QueryEndpoint(None, "tcp://127.0.0.1:0", TOKEN)
            end.callback(endpoint.close)
            endpoint.start(lambda _request: KeyCounts({1: 1}))
            url = endpoint.urls[-1]
            friend = Connections(TOKEN)
            end.callback(friend.close)
            yield Opened(
                ("127.0.0.1", int(url.rpartition(":")[2])),
                lambda: friend.ask(url, CountKeys("x", [1]), KeyCounts, 10.0),
                NETWORK_LIMITS.unknown,
            )
        elif request.param == "metrics":
            url = end.enter_context(metrics.served("127.0.0.1:0", list))
            port = int(url.split(":")[2].partition("/")[0])
            yield Opened(("127.0.0.1", port), lambda: scrape(url), metrics.MAX_CLIENTS)
        else:
            listener = SlotListener("127.0.0.1", 0, SECRET, 2)
            end.callback(listener.close)
            yield Opened(
                ("127.0.0.1", listener.port), lambda: connected(listener), 2 * 2 + SPARE_PEERS
            )


def connected(listener: SlotListener) -> None:
    """Connect a slot, and wait until the driver knows it."""
    with DriverLink.connected(HostPort("127.0.0.1", listener.port), SECRET, 0, 0, "here"):
        while not isinstance(listener.events.get(timeout=10).message, SlotHello):
            pass


def held(address: tuple[str, int], source: str) -> socket.socket:
    try:
        return socket.create_connection(address, 10, source_address=(source, 0))
    except OSError:
        pytest.skip("this system has one loopback address")


def test_peers_that_hold_their_connections_keep_no_other_from_being_served(
    opened: Opened, eventually: Eventually
) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as end:
        for number in range(SILENT):
            for _ in range(3):
                end.enter_context(held(opened.address, f"127.0.1.{number + 1}"))
            if number % 10 == 0:
                opened.ask()
        opened.ask()
        for _ in range(SILENT):
            end.enter_context(held(opened.address, "127.0.0.1"))  # the address of the asking peer
        opened.ask()
        most = before + opened.threads + 4
        eventually(lambda: threading.active_count() <= most, what="the end of refused peers")
    eventually(lambda: threading.active_count() <= before + 4, what="the end of the threads")


def test_a_listener_goes_on_when_no_thread_can_be_started(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, list[str]()

    def no_more(thread: threading.Thread) -> None:
        if getattr(getattr(thread, "_target", None), "__name__", "") == "_serve":
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", no_more)
    with socket.create_connection(opened.address, 10) as peer:
        assert peer.recv(1) == b""
    assert refused
    monkeypatch.undo()
    opened.ask()


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff\n",
        b"[" * 4_000 + b"\n",
        b'{"type":"hello","worker":0,"attempt":0,"host":"h","proof":"\\ud800"}\n',
        b'{"type":"hello","worker":0,"attempt":0,"host":"\xff","proof":""}\n',
        b'{"type":"hello","worker":' + b"9" * 4_000 + b',"attempt":0,"host":"","proof":""}\n',
        b'{"type":"end","records":1,"failure":"","is_permanent":true}\n',
        encoded_message(SlotHello(0, 0, "here", proof("another", "challenge"))),
    ],
)
def test_no_hello_ends_a_thread_of_the_driver_with_an_error(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = list[threading.ExceptHookArgs]()
    monkeypatch.setattr(threading, "excepthook", errors.append)
    listener = SlotListener("127.0.0.1", 0, SECRET, 2)
    with (
        contextlib.closing(listener),
        socket.create_connection(("127.0.0.1", listener.port), 10) as peer,
    ):
        assert peer.recv(100)
        peer.sendall(sent)
        assert peer.recv(100) == b""
    assert not errors
    assert listener.events.empty()


# The rule --------------------------------------------------------------------------------------


class Held:
    """A connection that leaves when it is ended, as a thread that waits for it does."""

    def __init__(self, newcomers: Newcomers, *, leaves: bool = True) -> None:
        self.here, self.there = socket.socketpair()
        self._newcomers = newcomers
        if leaves:
            threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        with contextlib.suppress(OSError):
            self.here.recv(1)
        self._newcomers.leave(self.here)

    @property
    def is_ended(self) -> bool:
        self.there.setblocking(False)
        try:
            return self.there.recv(1) == b""
        except BlockingIOError:
            return False


def test_a_newcomer_displaces_the_oldest_of_the_network_that_has_the_most() -> None:
    newcomers = Newcomers(total=4, each=3)
    many = [Held(newcomers) for _ in range(3)]
    one, other = Held(newcomers), Held(newcomers)
    assert all(newcomers.enter(each.here, "many") for each in many)
    assert newcomers.enter(one.here, "one")
    assert [each.is_ended for each in [*many, one]] == [False] * 4
    assert newcomers.enter(other.here, "other")  # the total is reached
    assert [each.is_ended for each in [*many, one]] == [True, False, False, False]
    more = [Held(newcomers) for _ in range(2)]
    assert all(newcomers.enter(each.here, "many") for each in more)
    assert [each.is_ended for each in [*many, one, other]] == [True, True, True, False, False]


def test_a_displaced_connection_is_no_longer_to_be_served() -> None:
    newcomers = Newcomers(total=1, each=1)
    first, second = Held(newcomers, leaves=False), Held(newcomers)
    assert newcomers.enter(first.here, "a")
    found = list[bool]()
    threading.Timer(0.1, lambda: found.append(newcomers.leave(first.here))).start()
    assert newcomers.enter(second.here, "b")
    assert found == [False]
    assert newcomers.leave(second.here)


def test_a_thread_that_does_not_end_costs_a_refusal_and_no_more_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "DISPLACED_S", 0.1)
    newcomers = Newcomers(total=1, each=1)
    stuck, next_one = Held(newcomers, leaves=False), Held(newcomers)
    assert newcomers.enter(stuck.here, "a")
    assert not newcomers.enter(next_one.here, "b")
    newcomers.leave(stuck.here)
    assert newcomers.enter(next_one.here, "b")


def test_a_network_has_a_limit_of_its_own() -> None:
    newcomers = Newcomers(total=9, each=2)
    connections = [Held(newcomers) for _ in range(3)]
    assert all(newcomers.enter(each.here, "a") for each in connections)
    assert [each.is_ended for each in connections] == [True, False, False]
