"""Calls of a Faust worker to its log: which are on threads, which wait, and when commits begin."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faust.app import App

from strandline.changelog.client.partitioner import partition_for
from strandline.changelog.errors import RequestTimedOut, UnknownTopic
from strandline.changelog.groups import GroupMember
from strandline.framework.faust.address import FaustAddress
from strandline.framework.faust.commit import FaustCommit, commit
from strandline.framework.faust.failures import Interruptions
from strandline.framework.faust.ledger import Sent
from strandline.framework.faust.log_link import FaustLink
from strandline.framework.faust.record_event import RecordEvent


@pytest.fixture
async def link(tmp_path: Path) -> AsyncIterator[FaustLink]:
    made = FaustLink(FaustAddress(str(tmp_path / "log")))
    await made.acquire()
    yield made
    await made.release()


async def test_a_call_in_turns_returns_what_the_function_returns(link: FaustLink) -> None:
    assert await link.call_in_turns(divmod, 7, 3) == (2, 1)


async def test_a_call_in_turns_raises_what_the_function_raises(link: FaustLink) -> None:
    with pytest.raises(ZeroDivisionError):
        await link.call_in_turns(divmod, 1, 0)


async def test_agents_work_during_a_call_in_turns(link: FaustLink) -> None:
    turns, enough = 0, threading.Event()

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            if turns == 1_000:
                enough.set()
            await asyncio.sleep(0)

    agent = asyncio.ensure_future(work())
    assert await link.call_in_turns(enough.wait, 60.0)
    agent.cancel()


async def test_a_call_in_turns_that_is_cancelled_waits_for_nothing(link: FaustLink) -> None:
    begun, end = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        assert end.wait(60.0)
        raise ValueError("nobody asks for this any more")

    call = asyncio.ensure_future(link.call_in_turns(block))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    end.set()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
async def test_an_app_that_runs_finds_its_producer_without_waiting(
    tmp_path: Path, guarantee: str
) -> None:
    app: Any = App("app", broker=f"strandline://{tmp_path}/log", processing_guarantee=guarantee)
    producer = await app.maybe_start_producer()
    assert producer.started
    with pytest.raises(StopIteration) as found:
        app.maybe_start_producer().send(None)
    assert found.value.value is producer
    await app.producer.stop()


async def test_nothing_is_committed_before_the_source_is_read_from_its_committed_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets that this worker knows are those of an earlier assignment."""
    app: Any = App("app", broker=f"strandline://{tmp_path}/log", store="strandline://")
    consumer, ledger = app.consumer, app.consumer.link.ledger
    consumer._worker = SimpleNamespace(producer=None, member=None)
    ledger.send(ledger.loose(), "out", 0, b"k", b"v", 1, ())
    commits: list[Any] = []

    async def call(commit: Any, work: Any, *others: Any) -> dict[Any, Any]:
        commits.append(work)
        return {}

    monkeypatch.setattr(consumer.link, "call_in_turns", call)
    consumer._sought, app.consumer_generation_id = 1, 2
    assert not await consumer.force_commit()
    assert commits == []
    consumer._sought = 2
    assert await consumer.force_commit()
    assert len(commits[0].sent) == 1


async def test_a_call_is_cancelled_after_the_log_was_closed(tmp_path: Path) -> None:
    """A worker that is stopped while it starts still declares topics for its tables."""
    stopped = FaustLink(FaustAddress(str(tmp_path / "log")))
    await stopped.acquire()
    await stopped.release()
    with pytest.raises(asyncio.CancelledError):
        await stopped.call_patiently(stopped.ensure, "t", 1)
    await stopped.acquire()
    assert await stopped.call_patiently(stopped.ensure, "t", 1)
    await stopped.release()


async def test_changed_topics_are_seen_and_deleted_ones_are_not_created_again(
    link: FaustLink,
) -> None:
    for topic in ("grown", "deleted"):
        link.ensure(topic, 1)
    assert link.partition_of("grown", b"a") == 0
    link.broker.alter_topic("grown", partitions=64)
    link.broker.delete_topic("deleted")
    link.look_again()
    assert link.partition_of("grown", b"a") == partition_for(b"a", 64) > 0
    assert not link.ensure("deleted", 1)


class Silent:
    """A producer that gets no answer."""

    def begin_transaction(self) -> None:
        """Do nothing."""

    def append_batches(self, appends: object) -> object:
        """Raise RequestTimedOut, as a cluster does for a deleted topic."""
        raise RequestTimedOut("no answer")


async def test_a_commit_without_an_answer_names_the_deleted_topic(link: FaustLink) -> None:
    silent: Any = Silent()
    for topic in ("kept", "deleted"):
        link.ensure(topic, 1)
    sent = [Sent(0, topic, 0, b"a", b"b", 1_700_000_000_000, ()) for topic in ("kept", "deleted")]
    work, member = FaustCommit({}, sent, {}, {}), GroupMember("g", "m", 0)
    with pytest.raises(RequestTimedOut):
        commit(work, link, silent, member)
    link.broker.delete_topic("deleted")
    with pytest.raises(UnknownTopic, match="'deleted'"):
        commit(work, link, silent, member)


async def test_an_event_that_is_older_than_the_transport_is_delivered(link: FaustLink) -> None:
    """The module of an app may put values into a channel before the app has its transport."""
    app = App("early", broker="memory://")
    event = app.create_event(None, 1, {}, SimpleNamespace())
    assert not isinstance(event, RecordEvent)
    sensor = Interruptions(link)
    sensor.on_stream_event_in(None, 0, object(), event)
    sensor.on_stream_event_out(None, 0, object(), event)
