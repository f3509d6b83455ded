"""An app's connection to its log: one for its consumer, producers and tables.

Calls to the log block, so they run on threads: fetches on one, all others on a few more. What is
called on the event loop itself only reads cached descriptions of topics, and asks the log about a
topic that is used for the first time.

A Kafka cluster may be without a leader or a coordinator for seconds. Calls that can be repeated
without harm are repeated then (`call_patiently`), as long as a Strandline app would wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, ParamSpec, TypeVar

from strandline import changelog
from strandline.changelog.broker import Broker
from strandline.changelog.client.accumulator import TopicTarget, record_size
from strandline.changelog.client.partitioner import partition_for
from strandline.changelog.client.producer import Producer
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import (
    InvalidRecord,
    InvalidRequest,
    InvalidTopic,
    Retriable,
    StrandlineError,
    TopicExists,
    UnknownTopic,
)
from strandline.changelog.log import Log
from strandline.changelog.records import Headers, TopicInfo
from strandline.framework.faust.address import FaustAddress
from strandline.framework.faust.fetched_records import ReadHistories
from strandline.framework.faust.ledger import Ledger
from strandline.framework.patience import (
    FIRST_RETRY_PAUSE_S,
    LONGEST_RETRY_PAUSE_S,
    Patience,
)
from strandline.framework.store_declarations import StoreDeclarations

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("strandline")

SMALL_BYTES = 512
"""Bytes of a record up to which its size is left to the commit; a check takes microseconds."""
LAST_CALLS_S = 5.0
"""Maximum seconds for which the close of the log waits for calls on threads."""
CALL_THREADS = 4
"""Threads for calls other than fetches, such as commits and restores."""
TURN_EVERY_S = 0.001
"""Seconds of the agents' work between two turns of a thread (`call_in_turns`)."""
TURN_S = 0.00005
"""Seconds of a turn. A thread that needs the interpreter for longer keeps it."""


class FaustLink:
    """Connection of one app, opened when first used, and closed by its last user."""

    def __init__(self, address: FaustAddress) -> None:
        self.address = address
        self.clock: Clock = SystemClock()
        self.ledger = Ledger()
        self.histories = ReadHistories()
        self.log: Log | None = None
        self.declared: Mapping[str, StoreDeclarations] = {}
        """Declarations with which each changelog of the app's tables was compared."""
        self._users = 0
        self._is_closed = False
        """True after the last user has closed the log."""
        self._opening = asyncio.Lock()
        self._appender: Producer | None = None
        self._infos: dict[str, TopicInfo] = {}
        self._targets: dict[str, TopicTarget] = {}
        """Topics to which was sent, with their limits."""
        self._calls: ThreadPoolExecutor | None = None
        self._fetches: ThreadPoolExecutor | None = None

    # Opening and closing --------------------------------------------------------------

    @property
    def broker(self) -> Broker:
        """The open log. Raises InvalidRequest if the app does not run."""
        if self.log is None:
            raise InvalidRequest("the app does not run, so its log is not open; start it first")
        return self.log.broker

    async def acquire(self) -> None:
        """Count one more user; the first one opens the log. Raises the errors of opening a log."""
        self._users += 1
        async with self._opening:
            if self.log is None:
                self._is_closed = False
                # On a thread, because a cluster whose brokers do not answer takes seconds.
                loop = asyncio.get_running_loop()
                self.log = await loop.run_in_executor(None, changelog.open, self.address.log)
                self._calls = ThreadPoolExecutor(
                    CALL_THREADS, thread_name_prefix="strandline-faust"
                )
                self._fetches = ThreadPoolExecutor(1, thread_name_prefix="strandline-faust-fetch")

    async def release(self) -> None:
        """Count one user less; the last one closes the log."""
        self._users -= 1
        if self._users > 0 or self.log is None:
            return
        log, self.log, self._is_closed = self.log, None, True
        appender, self._appender = self._appender, None
        calls, fetches = self._calls, self._fetches
        assert calls is not None
        assert fetches is not None
        loop = asyncio.get_running_loop()
        if appender is not None:
            await loop.run_in_executor(calls, appender.close)
        fetches.shutdown(wait=False, cancel_futures=True)
        # A call that was cut off by the stop may still write to the log.
        end_calls = functools.partial(calls.shutdown, cancel_futures=True)
        last_calls = loop.run_in_executor(None, end_calls)
        await asyncio.wait({last_calls}, timeout=LAST_CALLS_S)
        await loop.run_in_executor(None, log.close)

    # Calls on threads -----------------------------------------------------------------

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function that blocks on a thread."""
        self.broker  # noqa: B018 - raises if the app does not run
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._calls, functools.partial(function, *args, **kwargs))

    async def call_in_turns(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function on a thread that gets turns of the interpreter while agents work.

        The event loop releases Python's lock whenever it looks for events, but it takes the lock again
        within microseconds, before a thread on another processor has woken up. Agents that always
        have records would delay a commit of milliseconds by up to seconds.
        """
        self.broker  # noqa: B018 - raises if the app does not run
        assert self._calls is not None
        called = self._calls.submit(function, *args, **kwargs)
        result = asyncio.wrap_future(called)
        try:
            while not result.done():
                await asyncio.wait({result}, timeout=TURN_EVERY_S)
                wait({called}, timeout=TURN_S)
        finally:
            result.cancel()  # if this call was cancelled
        return result.result()

    async def call_patiently(
        self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call a function on a thread, and again while it raises Retriable (`Patience`).

        The call is cancelled if the log is closed, because the app stops while it is starting.
        """
        patience, pause = Patience(self.clock), FIRST_RETRY_PAUSE_S
        while True:
            patience.ask()
            try:
                result = await self.call(function, *args, **kwargs)
            except StrandlineError as error:
                if self._is_closed:
                    raise asyncio.CancelledError("the app stops, and its log is closed") from error
                if not isinstance(error, Retriable) or not patience.failed(error):
                    raise
            else:
                patience.answered()
                return result
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_RETRY_PAUSE_S)

    async def fetch(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function on the thread of fetches."""
        self.broker  # noqa: B018 - raises if the app does not run
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._fetches, functools.partial(function, *args, **kwargs)
        )

    def appender(self) -> Producer:
        """Return the producer for records that are sent outside of agents."""
        if self._appender is None:
            self._appender = Producer(self.broker, clock=self.clock)
        return self._appender

    # Topics ---------------------------------------------------------------------------

    def is_known(self, topic: str) -> bool:
        """Return True if `info` answers without asking the log."""
        return topic in self._infos

    def info(self, topic: str) -> TopicInfo | None:
        """Return the description of a topic; None if it does not exist."""
        known = self._infos.get(topic)
        if known is None:
            try:
                known = self.broker.topic(topic)
            except UnknownTopic:
                return None
            if known.schema is not None:
                raise InvalidTopic(
                    f"topic {topic!r} has typed columns, and Faust reads and writes bytes; use a "
                    "topic without a schema between Faust agents and Strandline tasks"
                )
            self._infos[topic] = known
        return known

    def look_again(self) -> None:
        """Read the descriptions of known topics again, which others may have changed.

        A topic that was deleted keeps its description, so that nothing creates it again.
        """
        for topic, known in list(self._infos.items()):
            with contextlib.suppress(UnknownTopic):
                found = self.broker.topic(topic)
                if found != known:
                    self._infos[topic] = found
                    self._targets.pop(topic, None)

    def ensure(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> bool:
        """Create a topic if it does not exist; return True if it was created."""
        if self.info(topic) is not None:
            return False
        try:
            self.broker.create_topic(topic, partitions, config=config or {})
        except TopicExists:
            return False
        self.info(topic)
        return True

    def keep_latest(self, topic: str) -> None:
        """Let compaction alone delete records of a topic, whatever their age and size."""
        info = self.info(topic)
        if info is not None and (info.effective.delete or not info.effective.compact):
            self._infos[topic] = self.broker.alter_topic(topic, {"cleanup.policy": "compact"})
            self._targets.pop(topic, None)

    def partition_of(self, topic: str, key: bytes | None) -> int | None:
        """Return the partition of a key; None for no key or an unknown topic."""
        info = self.info(topic)
        if info is None or key is None:
            return None
        return partition_for(key, info.partitions)

    def check(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> None:
        """Raise the error with which the log would refuse the commit of a record.

        Nothing is raised for a small record with a key, of now and without headers, for a topic
        that does not exist, or while the log does not answer.

        Raises:
            InvalidRecord: The topic is compacted and the record has no key, or its time is not
                allowed.
            RecordTooLarge: The record exceeds the topic's `max.message.bytes`.
        """
        is_plain = key is not None and timestamp_ms is None and not headers
        if is_plain and len(key or b"") + len(value or b"") <= SMALL_BYTES:
            return
        now = self.clock.now_ms()
        when, size = now if timestamp_ms is None else timestamp_ms, record_size(key, value, headers)
        try:
            self._check(topic, key, when, size, now)
        except InvalidRecord:
            # The settings may have been changed since they were read.
            del self._targets[topic], self._infos[topic]
            with contextlib.suppress(Retriable):
                self._check(topic, key, when, size, now)

    def _check(self, topic: str, key: bytes | None, when: int, size: int, now: int) -> None:
        target = self._targets.get(topic)
        if target is None:
            info = self.info(topic)
            if info is None:
                return
            target = TopicTarget(info, 0, "", earliest_ms=self.broker.earliest_ms)
            self._targets[topic] = target
        target.check_record(key, when, size)
        target.check_time(when, now)


_links: weakref.WeakKeyDictionary[Any, FaustLink] = weakref.WeakKeyDictionary()


def link_of(app: Any, address: FaustAddress) -> FaustLink:
    """Return the connection of a Faust app, which its transports share."""
    found = _links.get(app)
    if found is None or found.address.log != address.log:
        found = _links[app] = FaustLink(address)
    return found


def link_for(app: Any) -> FaustLink | None:
    """Return the connection of a Faust app; None if its broker is none of ours."""
    return _links.get(app)
