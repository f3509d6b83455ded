"""Faust's producer: records sent by an agent wait for the commit, others are sent at once.

A record that an agent sends while it handles a record belongs to that record's unit. Its offset is
not known before the commit, so its metadata has the offset -1. A record that is sent elsewhere, by
a timer, a task, a web view or another program, is appended at once and has its real offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import faust.transport.base
from faust.transport.consumer import TransactionManager
from faust.types import TP
from faust.types.tuples import FutureMessage, RecordMetadata
from mode import want_seconds

from strandline.changelog.client.accumulator import RecordMetadata as Acknowledged
from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.changelog.records import Headers
from strandline.framework.faust.effects import current_unit
from strandline.framework.faust.log_link import FaustLink

REPLY_TO = "Faust-Ag-ReplyTo"
"""Faust's header with the topic of the replies to a request."""


class FaustProducer(faust.transport.base.Producer):
    """Producer of a Faust app. Used by the thread of the event loop only."""

    link: FaustLink
    event_loop: asyncio.AbstractEventLoop | None = None
    """The running loop, once started. Python 3.11 asks the system for the process at each look."""

    def __post_init__(self) -> None:
        self.link = self.transport.link
        if self.app.conf.producer_threaded:
            raise InvalidConfig(
                "producer_threaded=True sends from another thread, outside of the commit of the "
                "record; leave it off with a Strandline broker"
            )

    async def on_start(self) -> None:
        """Open the log."""
        await super().on_start()
        self.event_loop = asyncio.get_running_loop()
        await self.link.acquire()

    async def on_stop(self) -> None:
        """Close the log, if nothing else of the app uses it."""
        await super().on_stop()
        await self.link.release()

    # Sending --------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp: float | None,
        headers: Any,
        *,
        transactional_id: str | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Send a record, or keep it for the commit; return a future of its metadata."""
        if not self.link.is_known(topic):
            await self.link.call_patiently(self._declare, topic)  # not on the event loop
        return self._send(topic, key, value, partition, timestamp, headers)

    async def send_and_wait(self, *args: Any, **options: Any) -> RecordMetadata:
        """Send a record and wait; a record that is kept for the commit is not waited for."""
        return await (await self.send(*args, **options))

    def send_soon(self, fut: FutureMessage) -> None:
        """Send a record from code that is not async."""
        message = fut.message
        channel = message.channel
        topic = channel if isinstance(channel, str) else channel.get_topic_name()
        table = self.app.tables._changelogs.get(topic)
        if table is not None and getattr(table.data, "keeps_its_changelog", False):
            # The store itself adds the change to the unit. Faust needs the partition only.
            tp = TP(topic, message.partition or 0)
            fut.set_result(RecordMetadata(topic, tp.partition, tp, -1))
            return
        sent = self._send(
            *(topic, message.key, message.value, message.partition),
            *(message.timestamp, message.headers),
        )

        def deliver(done: asyncio.Future[RecordMetadata]) -> None:
            if fut.done():
                return
            if (error := done.exception()) is not None:
                fut.set_exception(error)
                return
            fut.set_result(done.result())
            if message.callback:
                message.callback(fut)

        sent.add_done_callback(deliver)

    def _send(
        self,
        topic: str,
        key: Any,
        value: Any,
        partition: int | None,
        timestamp: float | None,
        headers: Any,
    ) -> asyncio.Future[RecordMetadata]:
        loop = self.event_loop or asyncio.get_running_loop()
        link = self.link
        self._declare(topic)
        key, value = _as_bytes(key, topic), _as_bytes(value, topic)
        pairs = self._announced(key, value, partition, timestamp, headers)
        when = int(timestamp * 1000) if timestamp else link.clock.now_ms()
        unit = None if self._is_request(pairs) else current_unit(link.ledger, self.app)
        if partition is None:
            partition = self._partition(topic, key)
        future: asyncio.Future[RecordMetadata] = loop.create_future()
        if unit is not None:
            # A record that the log would refuse raises here, and not in the commit.
            link.check(topic, key, value, when if timestamp else None, pairs)
            link.ledger.send(unit, topic, partition, key, value, when, pairs)
            tp = TP(topic, -1 if partition is None else partition)
            future.set_result(RecordMetadata(topic, tp.partition, tp, -1, when / 1000, 0))
            return future
        pending = link.appender().send(
            topic, value, key, partition=partition, timestamp=when, headers=pairs
        )

        def acknowledge(done: asyncio.Future[Acknowledged]) -> None:
            if future.done():
                return
            if (error := done.exception()) is not None:
                future.set_exception(error)
                return
            found = done.result()
            tp = TP(topic, found.partition)
            future.set_result(RecordMetadata(topic, tp.partition, tp, found.offset, when / 1000, 0))

        asyncio.wrap_future(pending, loop=loop).add_done_callback(acknowledge)
        return future

    def _declare(self, topic: str) -> None:
        """Create a topic if it does not exist. Raises InvalidConfig if the app may not."""
        if self.link.info(topic) is None:
            if not self.app.conf.topic_allow_declare:
                raise InvalidConfig(
                    f"topic {topic!r} does not exist, and topic_allow_declare=False forbids to "
                    "create it; create it with `strandline topics create`"
                )
            self.link.ensure(topic, self.app.conf.topic_partitions)

    def _announced(
        self, key: Any, value: Any, partition: int | None, timestamp: float | None, headers: Any
    ) -> Headers:
        """Return the headers, to which receivers of Faust's signal may have added some."""
        listed = list(_pairs(headers)) if headers else []
        self.app.on_produce_message.send(
            key=key, value=value, partition=partition, timestamp=timestamp, headers=listed
        )
        return _pairs(listed) if listed else ()

    def _is_request(self, headers: Headers) -> bool:
        """Return True for a request of this process (`ask`), whose agent waits for the reply.

        The record that is handled is not done before the reply has come, so the request must not
        wait for the commit of the record.
        """
        return any(
            name == REPLY_TO and value == self.app.conf.reply_to.encode() for name, value in headers
        )

    def _partition(self, topic: str, key: bytes | None) -> int | None:
        """Return the partition of a key by the app's partitioner, or by Kafka's."""
        if self.partitioner is None:
            return self.link.partition_of(topic, key)
        info = self.link.info(topic)
        everything = list(range(info.partitions if info is not None else 1))
        chosen: int = self.partitioner(key, everything, everything)
        return chosen

    async def flush(self) -> None:
        """Wait until all records that were sent at once are acknowledged."""
        if self.link.log is not None:
            await self.link.call(self.link.appender().flush)

    # Topics ---------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        partitions: int,
        replication: int,
        *,
        config: Mapping[str, Any] | None = None,
        timeout: Any = 30.0,
        retention: Any = None,
        compacting: bool | None = None,
        deleting: bool | None = None,
        ensure_created: bool = False,
    ) -> None:
        """Create a topic if it does not exist."""
        if not self.app.conf.topic_allow_declare:
            return
        settings = {name: str(value) for name, value in (config or {}).items()}
        policies = [name for name, on in (("compact", compacting), ("delete", deleting)) if on]
        if policies:
            settings.setdefault("cleanup.policy", ",".join(policies))
        if retention:
            settings.setdefault("retention.ms", str(int(want_seconds(retention) * 1000)))
        await self.link.call_patiently(self.link.ensure, topic, partitions, settings)

    def key_partition(self, topic: str, key: bytes) -> TP:
        """Return the partition of a key."""
        return TP(topic, self._partition(topic, key) or 0)

    def supports_headers(self) -> bool:
        """Return True."""
        return True

    # Transactions are the consumer's: there is nothing to begin, commit or abort here ----

    async def begin_transaction(self, transactional_id: str) -> None:
        """Do nothing."""

    async def commit_transaction(self, transactional_id: str) -> None:
        """Do nothing."""

    async def abort_transaction(self, transactional_id: str) -> None:
        """Do nothing."""

    async def stop_transaction(self, transactional_id: str) -> None:
        """Do nothing."""

    async def maybe_begin_transaction(self, transactional_id: str) -> None:
        """Do nothing."""


class OneTransaction(TransactionManager):
    """Faust's transaction manager, which leaves all transactions to the consumer's commit."""

    async def on_partitions_revoked(self, revoked: Any) -> None:
        """Do nothing: the consumer has committed."""

    async def on_rebalance(self, assigned: Any, revoked: Any, newly_assigned: Any) -> None:
        """Do nothing: one producer serves all partitions."""

    async def send(self, *args: Any, **kwargs: Any) -> Any:
        """Send by the app's producer."""
        return await self.producer.send(*args, **kwargs)

    async def send_and_wait(self, *args: Any, **kwargs: Any) -> Any:
        """Send by the app's producer."""
        return await self.producer.send_and_wait(*args, **kwargs)

    def send_soon(self, fut: FutureMessage) -> None:
        """Send by the app's producer."""
        self.producer.send_soon(fut)

    async def commit(self, offsets: Any, start_new_transaction: bool = True) -> bool:
        """Commit by the consumer."""
        return await self.consumer.commit(start_new_transaction=start_new_transaction)

    def key_partition(self, topic: str, key: bytes) -> TP:
        """Return the partition of a key."""
        return self.producer.key_partition(topic, key)


def find_promptly(app: Any) -> None:
    """Let an app find its producer without waiting, once the producer has started.

    Faust looks the producer up at each `send`, through a guard that costs three turns of the event
    loop (mode's `stampede`). They lengthen the time of a record by half.
    """
    start = app.maybe_start_producer

    async def producer() -> Any:
        if app.in_transaction:
            return app.consumer.transactions
        return app.producer if app.producer.started else await start()

    app.maybe_start_producer = producer


def _as_bytes(content: Any, topic: str) -> bytes | None:
    if content is None or isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode()
    raise InvalidRecord(
        f"topic {topic!r}: keys and values are bytes after serialization, got "
        f"{type(content).__name__} {content!r:.60}; set key_serializer= or value_serializer="
    )


def _pairs(headers: Any) -> Headers:
    found = headers.items() if isinstance(headers, Mapping) else headers or ()
    return tuple(
        (str(name), value.encode() if isinstance(value, str) else value) for name, value in found
    )
