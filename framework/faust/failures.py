"""Records whose agent raised or was stopped: nothing of them is committed by accident.

Faust acknowledges such a record when it closes the agent's stream. This module marks it first:

    fail           the worker stops; the record is handled again by the next one
    skip           its effects are dropped, and it counts as done
    dead_letter    as skip, and a copy goes to `<topic>.dead-letter` in the same transaction
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from faust.exceptions import DecodeError
from faust.sensors.base import Sensor
from faust.streams import current_event

from strandline.framework.declarations import KEEP_FOREVER, dead_letter_config
from strandline.framework.faust.ledger import Unit
from strandline.framework.faust.log_link import FaustLink

DEAD_LETTER = "{topic}.dead-letter"
"""Name of the topic of records that could not be handled."""


class Interruptions(Sensor):
    """Notices records that are acknowledged because their agent's stream is closed."""

    def __init__(self, link: FaustLink) -> None:
        super().__init__()
        self._link = link

    def on_stream_event_out(
        self, tp: Any, offset: int, stream: Any, event: Any, state: Any = None
    ) -> None:
        """Mark the record if its stream was closed before the agent asked for the next one."""
        # Faust calls this from a `finally`, so the exception that closes the stream is visible.
        if isinstance(sys.exc_info()[1], (GeneratorExit, asyncio.CancelledError)):
            unit = self._link.ledger.unit_of(event.message)
            if unit is not None and not unit.resolved:
                unit.interrupted = True


def settle_failure(app: Any, link: FaustLink, error: BaseException) -> bool:
    """Apply the policy to the record whose agent has raised; False if the worker must stop."""
    if isinstance(error, DecodeError):
        return True  # `settle_undecodable` decides
    event: Any = current_event()
    unit = None if event is None else link.ledger.unit_of(event.message)
    if unit is None or (unit.message is not None and unit.message.acked):
        # A record that was dropped is handled again. Without a record, the batch is unknown.
        return event is not None and unit is None
    agents = len(app.topics._tp_index.get(event.message.tp, ()))
    policy = link.address.on_error
    if policy == "fail" or agents > 1 or not link.ledger.undo(unit):
        unit.interrupted = True
        return False
    if policy == "dead_letter":
        _send_dead_letter(link, unit, event.message, f"{type(error).__name__}: {error}")
    unit.resolved = True
    return True


def settle_undecodable(link: FaustLink, unit: Unit, message: Any) -> bool:
    """Apply the policy to a record that cannot be decoded; False if the worker must stop."""
    policy = link.address.on_error
    if policy == "dead_letter":
        _send_dead_letter(link, unit, message, "the record cannot be decoded")
    return policy != "fail"


def _send_dead_letter(link: FaustLink, unit: Unit, message: Any, error: str) -> None:
    topic = DEAD_LETTER.format(topic=message.topic)
    info = link.info(message.topic)
    if info is not None:
        link.ensure(topic, info.partitions, {**KEEP_FOREVER, **dead_letter_config([info])})
    headers = (*(message.headers or ()), *_described(message, error))
    when = int(message.timestamp * 1000)
    link.ledger.send(unit, topic, message.partition, message.key, message.value, when, headers)


def _described(message: Any, error: str) -> list[tuple[str, bytes]]:
    return [
        ("strandline.error", error.encode()),
        ("strandline.topic", message.topic.encode()),
        ("strandline.partition", str(message.partition).encode()),
        ("strandline.offset", str(message.offset).encode()),
    ]
