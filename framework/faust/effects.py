"""The unit of work to which a send or a table write belongs."""

from __future__ import annotations

from typing import Any

from faust.agents.agent import current_agent
from faust.streams import current_event

from strandline.changelog.records import TopicPartition
from strandline.framework.faust.ledger import Ledger, Unit

DISCARDED = Unit(dead=True)
"""Unit of records that were dropped: its effects go nowhere."""


def current_unit(ledger: Ledger, generation: int) -> Unit | None:
    """Return the unit of the record that is handled now; None outside of agents.

    Args:
        ledger: Work of this app.
        generation: Number of the current assignment. A record of an earlier one is read again.
    """
    event: Any = current_event()
    agent: Any = current_agent()
    if event is None:
        return None if agent is None else ledger.batch(_topics_of(agent))
    message = event.message
    unit = ledger.unit_of(message)
    if unit is not None and not unit.sealed:
        return unit
    if message.offset >= 0 and unit is None and not message.acked:
        return DISCARDED
    if message.offset >= 0 and message.generation_id != generation:
        return DISCARDED
    return ledger.loose()  # from an in-memory channel, or work that outlives its record


def reading_unit(ledger: Ledger) -> Unit | None:
    """Return the unit of the record that is handled now, if it can depend on others."""
    event: Any = current_event()
    unit = None if event is None else ledger.unit_of(event.message)
    return None if unit is None or unit.sealed else unit


def _topics_of(agent: Any) -> Any:
    topics = frozenset(getattr(agent.channel, "topics", ()))

    def belongs(partition: TopicPartition) -> bool:
        return partition.topic in topics

    return belongs
