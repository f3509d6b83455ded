"""Rebalances of a Faust worker, with recoveries and stops that come at the wrong moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faust.app import App
from faust.types import TP

from strandline.changelog.errors import OffsetOutOfRange
from strandline.changelog.records import TopicPartition

SOURCE = TP("source", 0)
HANDLED = 5
"""Position of a worker that has handled records and not committed them."""


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Any]:
    made: Any = App(
        "app", broker=f"strandline://{tmp_path}/log", store="strandline://", datadir=tmp_path
    )
    await made.consumer.link.acquire()
    made.consumer.link.broker.create_topic(SOURCE.topic, 1)
    yield made
    await made.consumer.link.release()


def assign(app: Any, generation: int) -> None:
    """Give the worker its partitions, as the end of a rebalance does."""
    app.consumer_generation_id = app.consumer._taken = generation
    app.consumer._owned = frozenset({SOURCE})


async def test_an_assignment_is_sought_once(app: Any) -> None:
    consumer = app.consumer
    assign(app, 1)
    assert await consumer.seek_to_committed() == {SOURCE: 0}
    consumer._positions[SOURCE] = HANDLED
    await consumer.perform_seek()
    assert consumer._positions == {SOURCE: HANDLED}
    assign(app, 2)
    assert await consumer.seek_to_committed() == {SOURCE: 0}


async def test_nothing_is_sought_before_the_partitions_are_taken(app: Any) -> None:
    """Another worker may commit until this one has reported the partitions."""
    consumer = app.consumer
    assign(app, 1)
    app.consumer_generation_id, consumer._taken = 2, None
    await consumer.perform_seek()
    assert consumer._positions == {}
    assert not consumer._has_begun()


async def test_a_seek_that_waits_for_a_commit_ends_with_its_assignment(app: Any) -> None:
    consumer = app.consumer
    assign(app, 1)
    async with consumer._committing:
        seek = asyncio.ensure_future(consumer.seek_to_committed())
        await asyncio.sleep(0)
        assign(app, 2)
    assert await seek == {}
    assert not consumer._has_begun()


async def test_a_late_recovery_neither_seeks_nor_lets_records_flow(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker has records that are handled and not committed, and a rebalance begins."""
    consumer, seen = app.consumer, []
    assign(app, 1)
    await consumer.seek_to_committed()
    consumer.resume_flow()
    consumer._positions[SOURCE] = HANDLED
    consumer._assigned_once = True

    async def recover(*_: Any) -> None:
        await consumer.perform_seek()
        consumer.resume_flow()
        seen.append((consumer.flow_active, dict(consumer._positions)))

    monkeypatch.setattr(consumer, "on_partitions_revoked", recover)
    monkeypatch.setattr(consumer, "on_partitions_assigned", recover)
    owned = frozenset({TopicPartition(*SOURCE)})
    consumer._worker = SimpleNamespace(
        is_ready=True,
        topics=frozenset(),
        assigned=lambda: (owned, frozenset()),
        report=lambda _: True,
        leave=lambda: None,
    )
    await consumer._rebalance(rejoin=False)
    assert seen == [(False, {SOURCE: HANDLED}), (True, {SOURCE: 0})]
    consumer._worker = None


async def test_no_records_are_returned_after_the_flow_has_stopped(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faust seeks if it gets any, even none at all, without a flow."""
    consumer = app.consumer
    assign(app, 1)
    consumer.resume_flow()
    monkeypatch.setattr(consumer, "_get_active_partitions", set)
    asyncio.get_running_loop().call_soon(consumer.stop_flow)
    records, _ = await consumer._wait_next_records(timeout=1.0)
    assert records is None


async def test_a_fetch_of_an_earlier_assignment_moves_no_position(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = app.consumer
    assign(app, 1)
    consumer._positions[SOURCE] = 7

    async def fetch(*_: Any, **limits: Any) -> None:
        consumer._positions[SOURCE] = 3  # a rebalance
        raise OffsetOutOfRange("offset 7 of source-0 is gone")

    monkeypatch.setattr(consumer.link, "fetch", fetch)
    await consumer._fetch({SOURCE: 7}, 0.0)
    assert consumer._positions[SOURCE] == 3


@pytest.mark.parametrize("stop_at", ["close", "_open"])
async def test_a_store_that_stops_during_a_rebalance_has_no_partitions(
    app: Any, monkeypatch: pytest.MonkeyPatch, stop_at: str
) -> None:
    table = app.Table("totals", partitions=3)
    store, stopped = table.data, []
    changelog = table.changelog_topic.get_topic_name()
    for number in (0, 1):
        await store._add(changelog, number, standby=False)
    first = list(store.parts.values())
    monkeypatch.setattr(app.assignor, "assigned_actives", lambda: {TP(changelog, 2)})
    monkeypatch.setattr(app.assignor, "assigned_standbys", set)
    call = store.link.call

    async def call_and_stop(function: Any, *args: Any, **options: Any) -> Any:
        result = await call(function, *args, **options)
        if function.__name__ == stop_at and not stopped:
            stopped.append(result)
            await store.stop()
        return result

    monkeypatch.setattr(store.link, "call", call_and_stop)
    await store.on_rebalance(set(), set(), set(), 1)
    assert len(stopped) == 1
    assert store.parts == {}
    opened = [part for part in stopped if part is not None]
    assert all(part._closed for part in first + opened)
