"""The unit of work to which a send or a table write belongs."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from faust.agents.agent import current_agent
from faust.streams import current_event

from strandline.changelog.records import TopicPartition
from strandline.framework.faust.ledger import Ledger, Unit

DISCARDED = Unit(dead=True)
"""Unit of records that were dropped: its effects go nowhere."""

_expiring: ContextVar[Unit | None] = ContextVar("expiring", default=None)
"""Unit of the window that Faust's cleaning task has removed last."""


def current_unit(ledger: Ledger, app: Any) -> Unit | None:
    """Return the unit of the record that is handled now; None outside of the app's agents.

    An agent may send by another app, as to LiveCheck. The commit of its record does not reach that
    app's producer.

    Args:
        ledger: Work of this app.
        app: The app. A record of an earlier generation of its assignment is read again.
    """
    event: Any = current_event()
    agent: Any = current_agent()
    if event is None:
        if agent is None:
            return _closing_unit()
        return ledger.batch(_topics_of(agent)) if agent.app is app else None
    if event.app is not app:
        return None
    message = event.message
    unit = ledger.unit_of(message)
    if unit is not None and not unit.sealed:
        return unit
    if message.offset >= 0 and unit is None and not message.acked:
        return DISCARDED
    if message.offset >= 0 and message.generation_id != app.consumer_generation_id:
        return DISCARDED
    return ledger.loose()  # from an in-memory channel, or work that outlives its record


def expiring_unit(ledger: Ledger) -> Unit:
    """Return a new unit for the removal of an expired window.

    Faust calls `on_window_close` next, in the same task. What it sends before it waits for anything
    is committed together with the removal.
    """
    unit = ledger.loose()
    _expiring.set(unit)
    return unit


def _closing_unit() -> Unit | None:
    unit = _expiring.get()
    if unit is None or unit.sealed:
        return None
    return DISCARDED if unit.dead else unit


def reading_unit(ledger: Ledger, event: Any) -> Unit | None:
    """Return the unit of the record that is handled now, if it can depend on others.

    Args:
        ledger: Work of this app.
        event: Faust's event of the record; None outside of agents.
    """
    unit = None if event is None else ledger.unit_of(event.message)
    return None if unit is None or unit.sealed else unit


def _topics_of(agent: Any) -> Any:
    """Return a test for the partitions that an agent reads, also by `group_by` or `through`."""
    topics = set(getattr(agent.channel, "topics", ()))
    for actor in agent._actors:
        for stream in actor.stream.get_root_stream()._iter_ll_forwards():
            topics.update(getattr(stream.channel, "topics", ()))

    def belongs(partition: TopicPartition) -> bool:
        return partition.topic in topics

    return belongs
