"""A worker's place in the group: its subscription, and its producer after a commit in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from faust.app import App

from strandline.changelog.errors import RequestTimedOut
from strandline.framework.faust.address import FaustAddress
from strandline.framework.faust.assignment import subscription
from strandline.framework.faust.group_worker import GroupWorker
from strandline.framework.faust.log_link import FaustLink
from tests.faust.faust_workers import FaustLog
from tests.systems import System

Eventually = Callable[..., None]


async def test_equal_partitions_of_all_topics_form_one_copartition_group(
    system: System, log: FaustLog
) -> None:
    """Also of topics of one size each: on Kafka, members without a group have no slot."""
    one, other = sorted(system.prefix + name for name in ("one", "other"))
    log.create("one", 4)
    log.create("other", 1)
    app = App("place", broker="strandline:///nowhere/log")
    async with linked(system) as link:
        wanted = subscription(app, link, {other, one, system.prefix + "missing"}, 10_000)
    assert wanted.together == [[one, other]]
    assert (wanted.topics, wanted.topics_differ) == ([one, other], True)


async def test_two_workers_have_transactional_ids_of_their_own(
    system: System, log: FaustLog, eventually: Eventually
) -> None:
    log.create("in", 2)
    app = App("place", broker="strandline:///nowhere/log")
    async with linked(system) as link:
        wanted = subscription(app, link, [system.prefix + "in"], 6_000)
        first = GroupWorker(link, system.prefix + "app", wanted, 60_000)
        joining = asyncio.ensure_future(
            link.call(GroupWorker, link, system.prefix + "app", wanted, 60_000)
        )
        while not joining.done():
            await link.call(first.report, first.assigned()[0])
        second = joining.result()
        for worker in (first, second, first):  # none of them is fenced
            with worker.producer.transaction() as producer:
                producer.append(system.prefix + "in", [{"value": b"x"}])
        for worker in (first, second):
            await link.call(worker.leave)
    eventually(lambda: len(log.rows("in")) == 3)


async def test_a_new_producer_settles_a_commit_without_an_answer(
    system: System, log: FaustLog, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    log.create("out", 1)
    app = App("place", broker="strandline:///nowhere/log")
    async with linked(system) as link:
        wanted = subscription(app, link, [system.prefix + "out"], 10_000)
        worker = GroupWorker(link, system.prefix + "app", wanted, 60_000)
        worker.producer.begin_transaction()
        worker.producer.append(system.prefix + "out", [{"value": b"1"}])
        monkeypatch.setattr(worker.producer._sender, "end_transaction", no_answer)
        with pytest.raises(RequestTimedOut):
            worker.producer.commit_transaction()
        worker.abort()
        assert not worker.is_ready
        worker.renew()
        assert worker.is_ready
        with worker.producer.transaction() as producer:
            producer.append(system.prefix + "out", [{"value": b"2"}])
        worker.leave()
    eventually(lambda: [value for *_, value in log.rows("out")] == [2])


def no_answer(**_: Any) -> None:
    raise RequestTimedOut("no answer")


@asynccontextmanager
async def linked(system: System) -> AsyncIterator[FaustLink]:
    """A connection to the log of a system, open during the block."""
    link = FaustLink(FaustAddress(system.url))
    await link.acquire()
    try:
        yield link
    finally:
        await link.release()
