"""Records whose agent raised or was stopped: nothing of them is committed by accident.

Faust acknowledges such a record when it closes the agent's stream. This module marks it first:

    fail           the worker stops; the record is handled again by the next one
    skip           its effects are dropped, and it counts as done
    dead_letter    as skip, and a copy goes to `<topic>.dead-letter` in the same transaction
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

from faust.channels import Channel
from faust.exceptions import DecodeError, PartitionsMismatch
from faust.sensors.base import Sensor
from faust.streams import current_event

from strandline.changelog.printable import printable
from strandline.changelog.records import TopicInfo
from strandline.framework.dead_letter_names import (
    FAUST_DEAD_LETTER,
    FAUST_ERROR,
    FAUST_ORIGIN,
    origin_headers,
)
from strandline.framework.faust.ledger import Unit
from strandline.framework.faust.log_link import FaustLink
from strandline.framework.faust.record_event import (
    Iteration,
    RecordEvent,
    current_iteration,
)
from strandline.framework.faust.table_partition import TableNotOwned
from strandline.framework.handlers import INFRASTRUCTURE_ERRORS
from strandline.framework.topic_creation import KEEP_FOREVER, dead_letter_config

_log = logging.getLogger("strandline")

NOT_OF_A_RECORD = (*INFRASTRUCTURE_ERRORS, PartitionsMismatch, TableNotOwned)
"""Errors of the log, or of the app's setup, which all records would have."""


class Interruptions(Sensor):
    """Notes which iterations deliver and acknowledge a record, and whether one was closed at it."""

    def __init__(self, link: FaustLink) -> None:
        super().__init__()
        self._link = link

    def on_stream_event_in(self, tp: Any, offset: int, stream: Any, event: Any) -> None:
        """Note the stream, for a block of the record that is left by an exception, and for acks."""
        current_iteration.set(Iteration(stream, asyncio.current_task()))
        if isinstance(event, RecordEvent):  # and not of a channel before the transport was made
            event.note_delivered(stream)

    def on_stream_event_out(
        self, tp: Any, offset: int, stream: Any, event: Any, state: Any = None
    ) -> None:
        """Note the ack; mark the record if its stream was closed before the agent went on."""
        if isinstance(event, RecordEvent):
            event.note_acked(stream)
        # Faust calls this from a `finally`, so the exception that closes the stream is visible.
        if isinstance(sys.exc_info()[1], (GeneratorExit, asyncio.CancelledError)):
            unit = self._link.ledger.unit_of(event.message)
            if unit is not None and not unit.resolved:
                unit.interrupted = True


def take_decode_errors(channel: Any, link: FaustLink) -> None:
    """Let the policy decide about records that a channel cannot decode.

    Faust raises the error in the agents of the channel, and one that takes batches never sees it and
    stands still. If several channels read the record, those that Faust has not tried yet get none.
    Here they get it. Replies are left to Faust, and so is a class of topics with methods of its own.
    """

    async def settle(error: Exception, message: Any) -> None:
        unit = link.ledger.unit_of(message)
        if unit is None:
            await channel.on_decode_error(error, message)
            await channel.throw(error)
            return
        try:
            event = await channel.decode(message, propagate=True)
        except DecodeError as own:
            text = printable(str(own))
            _log.error("%r cannot be decoded: %s", message, text, exc_info=own)
            unit.undecodable = str(own)
            await channel.on_decode_error(own, message)
        else:
            message.acked = False  # as Faust has acknowledged it for all channels
            message.incref()
            await channel.put(event)

    for name in ("on_key_decode_error", "on_value_decode_error"):
        if getattr(type(channel), name) is getattr(Channel, name):
            setattr(channel, name, settle)


def settle_failure(app: Any, link: FaustLink, error: BaseException) -> bool:
    """Apply the policy to the record that has failed; False if the worker must stop."""
    event: Any = current_event()
    if event is None:  # in a batch of several; or a topic of a class of its own raises
        return isinstance(error, DecodeError)
    policy = link.address.on_error
    message = event.message
    unit = link.ledger.unit_of(message)
    if unit is None and not message.acked:
        return True  # it was dropped, and is handled again
    if unit is None or (message.acked and unit.has_gone_on is None):
        return policy != "fail"  # it is done: the agent had acknowledged it
    agents = len(app.topics._tp_index.get(message.tp, ()))
    must_stop = policy == "fail" or agents > 1 or isinstance(error, NOT_OF_A_RECORD)
    if must_stop or not link.ledger.undo(unit):
        unit.interrupted = True
        return False
    if policy == "dead_letter":
        _send_dead_letter(link, unit, message, f"{type(error).__name__}: {error}")
    unit.resolved = True
    return True


def settle_undecodable(link: FaustLink, unit: Unit, message: Any) -> bool:
    """Apply the policy to a record that an agent cannot decode; False if the worker must stop."""
    policy = link.address.on_error
    if policy == "dead_letter":
        _send_dead_letter(link, unit, message, f"the record cannot be decoded: {unit.undecodable}")
    return policy != "fail"


def _send_dead_letter(link: FaustLink, unit: Unit, message: Any, error: str) -> None:
    topic = f"{message.topic}{FAUST_DEAD_LETTER}"
    info = link.info(message.topic)
    if info is not None:
        link.ensure(topic, info.partitions, {**KEEP_FOREVER, **dead_letter_config([info])})
    letters = link.info(topic)
    # The topic of the record may have got more partitions since.
    partition = message.partition % (letters.partitions if letters is not None else 1)
    headers = (*(message.headers or ()), *_described(message, info, error))
    when = int(message.timestamp * 1000)
    link.ledger.send(unit, topic, partition, message.key, message.value, when, headers)


def _described(message: Any, info: TopicInfo | None, error: str) -> list[tuple[str, bytes]]:
    topic_id = "" if info is None else info.topic_id
    at = message.partition, message.offset
    where = origin_headers(FAUST_ORIGIN, message.topic, topic_id, *at)
    return [(name, text.encode()) for name, text in {FAUST_ERROR: error, **where}.items()]
