"""Faust's consumer: follows the group's assignment.

A rebalance runs in a task of its own, in the order in which Faust expects it:

    app.on_rebalance_start → on_partitions_revoked → commit → drop what is not committed
    → report to the group → tell Faust's assignor → on_partitions_assigned

Afterwards all partitions are read from their committed offsets. The same cycle follows a commit
that the log has refused because the worker's partitions had moved, and one that it did not answer.
A cycle that fails is begun again, because Faust stands still until its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

from faust.types import TP
from mode import Service

from strandline.changelog.errors import (
    InvalidConfig,
    MemberFenced,
    Retriable,
    StrandlineError,
)
from strandline.changelog.records import TopicPartition
from strandline.framework.faust.assignment import subscription, tell_assignor, workers_of
from strandline.framework.faust.declarations import record_tables, table_specs
from strandline.framework.faust.failures import Interruptions, settle_failure
from strandline.framework.faust.fetching_consumer import FetchingConsumer
from strandline.framework.faust.garbage import collect_less_often
from strandline.framework.faust.group_worker import GroupWorker
from strandline.framework.faust.record_event import current_iteration
from strandline.framework.faust.restarts import resume_on_last_streams
from strandline.framework.faust.settings import change_setting
from strandline.framework.moved_topics import check_moved
from strandline.framework.patience import PATIENCE_SECONDS, Patience

WATCH_S = 0.05
"""Seconds between two looks at the assignment."""
WORKERS_S = 2.0
"""Seconds between two looks at what other workers own."""
TOPICS_S = 30.0
"""Seconds between two looks at the topics, whose partitions may be added to."""
SESSION_MS = 10_000
"""Session timeout, unless the app sets broker_session_timeout."""
RECOVERY_S = PATIENCE_SECONDS + 100.0
"""Minimum of broker_request_timeout, which Faust allows for a step of its recovery. After it, Faust
ends the recovery for good and logs nothing. So it is longer than any step waits for the log."""
FAUSTS_SESSION_S = 60.0
"""Faust's default of broker_session_timeout."""


class FaustConsumer(FetchingConsumer):
    """Consumer of a Faust worker, or of a client that only waits for replies."""

    def __init__(self, transport: Any, callback: Any, *args: Any, **options: Any) -> None:
        options["commit_interval"] = transport.link.address.commit_ms / 1000
        super().__init__(transport, callback, *args, **options)
        self._joining: asyncio.Future[GroupWorker] | None = None
        """The last attempt to join the group."""
        self._topics: frozenset[str] = frozenset()
        """Topics that the group assigns."""
        self._copies: frozenset[TP] = frozenset()
        self._assigned_once = False
        self._rebalancing = False
        """True from the start of a rebalance until it has succeeded."""
        self._workers: dict[str, Any] = {}
        _allow_waits(self.app.conf)
        self._group_patience = Patience(self.link.clock)
        self.app.sensors.add(Interruptions(self.link))

    async def on_start(self) -> None:
        """Open the log."""
        _check_store(self.app)
        resume_on_last_streams(self.app)
        await super().on_start()
        await self.link.acquire()
        if not self.app.client_only:
            collect_less_often()

    async def on_stop(self) -> None:
        """Commit, leave the group, and close the log."""
        try:
            await super().on_stop()
        finally:
            self.link.ledger.discard()
            worker = await self._joined()
            if worker is not None:
                await self.link.call(worker.leave)
            await self.link.release()

    async def _joined(self) -> GroupWorker | None:
        """Return the member that must leave the group; a stop may come while it joins."""
        worker, self._worker = self._worker, None
        if worker is None and self._joining is not None:
            with contextlib.suppress(StrandlineError):
                worker = await self._joining
        self._joining = None
        return worker

    # Subscribing ----------------------------------------------------------------------

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics from the next rebalance on; create those that do not exist."""
        wanted = set(topics)
        conf = self.app.conf
        await self.link.call_patiently(check_moved, wanted, self.link.broker, self.link.clock)
        for topic in sorted(wanted):
            if conf.topic_allow_declare:
                await self.link.call_patiently(self.link.ensure, topic, conf.topic_partitions)
            elif await self.link.call_patiently(self.link.info, topic) is None:
                self.log.warning("topic %r does not exist, and is not read", topic)
                wanted.discard(topic)
        alone = {t for t in wanted if self.app.client_only or t.startswith(conf.reply_to_prefix)}
        self._private = frozenset(
            TP(topic, number)
            for topic in alone
            for number in range(self.topic_partitions(topic) or 0)
        )
        self._topics = frozenset(wanted - alone)
        if self.app.client_only:
            await self._seek_missing()

    # Rebalancing ----------------------------------------------------------------------

    @Service.task
    async def _follow_assignment(self) -> None:
        """Run a rebalance whenever the assignment or the subscription has changed."""
        looked, looked_at_topics = 0.0, self.link.clock.monotonic()
        while not self.should_stop:
            await self.sleep(WATCH_S)
            if self.should_stop:
                return  # `on_stop` leaves the group, and nothing may join it again
            if self.app.client_only or not (self._topics or self._private):
                continue
            self._group_patience.ask()
            try:
                await self._follow_once()
                self._group_patience.answered()
                self.app.topics.catch_up()
                now = self.link.clock.monotonic()
                if self._worker is not None and now - looked > WORKERS_S:
                    looked = now
                    await self._look_at_workers()
                if now - looked_at_topics > TOPICS_S:
                    looked_at_topics = now
                    await self.link.call(self.link.look_again)
            except MemberFenced as error:
                self.log.warning("this worker lost its partitions in a rebalance: %s", error)
                self._must_rejoin = True
            except Retriable as error:
                if not self._group_patience.failed(error):
                    await self.app.crash(error)
                    return
            except StrandlineError as error:
                await self.app.crash(error)
                return

    async def _follow_once(self) -> None:
        worker = self._worker
        if worker is None or self._must_rejoin or worker.topics != self._known(self._topics):
            await self._rebalance(rejoin=True)
            return
        try:
            active, copies = self._assigned_to(worker)
        except MemberFenced as error:
            self.log.warning("this worker lost its partitions, and joins again: %s", error)
            await self._rebalance(rejoin=True)
            return
        current = (self._owned - self._private, self._copies)
        private_changed = not self._private <= self._owned
        rewind = self._must_rewind or self.link.ledger.must_rewind
        if (active, copies) != current or private_changed or rewind or self._rebalancing:
            await self._rebalance(rejoin=False)

    def _known(self, topics: Iterable[str]) -> frozenset[str]:
        return frozenset(topic for topic in topics if self.link.info(topic) is not None)

    async def _rebalance(self, *, rejoin: bool) -> None:
        app = self.app
        self._rebalancing = True
        self._taken = None
        self.stop_flow()
        app.on_rebalance_start()
        before = self.assignment()
        if self._assigned_once:
            await self.on_partitions_revoked(before)
            await self.wait_empty()
        async with self._committing:
            if dropped := self.link.ledger.discard():
                self.log.info("%d records are handled again after the rebalance", dropped)
            self._must_rewind = False
            self._positions.clear()
            self._ahead.clear()
            app.consumer_generation_id += 1
        if rejoin:
            await self._join()
        worker = self._worker
        if worker is None:
            return  # the app stops
        if not worker.is_ready:
            await self.link.call(worker.renew)
        await self.link.call(self.link.look_again)  # added partitions cause a rebalance
        active, copies = self._assigned_to(worker)
        owned = {TP(*tp) for tp in active}
        if self._owned - self._private:
            await self.link.call(
                worker.report, frozenset(TopicPartition(*tp) for tp in self._owned & owned)
            )
            self._owned &= owned | self._private
        if not await self.link.call(worker.report, active):
            return  # the next look begins again
        self._owned = frozenset(owned | self._private)
        self._copies = frozenset(TP(*tp) for tp in copies)
        with contextlib.suppress(Retriable):  # looked up again in a moment
            self._workers = await self.link.call(workers_of, self.link.broker, app.conf.id)
        tell_assignor(app, self.link, self._owned, self._copies, self._workers)
        self._assigned_once = True
        self._taken = app.consumer_generation_id
        await self.on_partitions_assigned(self.assignment(), self._taken)
        self._rebalancing = False

    def _assigned_to(
        self, worker: GroupWorker
    ) -> tuple[frozenset[TopicPartition], frozenset[TopicPartition]]:
        """Return a worker's partitions, and the partitions of changelogs to keep copies of.

        A copy of any other topic would be taken for an assignment: two workers would be leaders.
        """
        active, copies = worker.assigned()
        changelogs = self.app.tables.changelog_topics
        return active, frozenset(tp for tp in copies if tp.topic in changelogs)

    async def _join(self) -> None:
        conf = self.app.conf
        worker, self._worker, self._joining = self._worker, None, None
        if worker is not None:
            self._owned = frozenset()
            await self.link.call(worker.leave)
        session_ms = int(conf.broker_session_timeout * 1000)
        if conf.broker_session_timeout == FAUSTS_SESSION_S:
            session_ms = SESSION_MS
        await self.link.call_patiently(record_tables, conf.id, table_specs(self.app), self.link)
        wanted = await self.link.call(subscription, self.app, self.link, self._topics, session_ms)
        max_poll_ms = int((conf.broker_max_poll_interval or 1000) * 1000)
        if self.should_stop:
            return
        joining = self.link.call(GroupWorker, self.link, conf.id, wanted, max_poll_ms)
        self._joining = asyncio.ensure_future(joining)
        # A stop cancels this task, and not the thread that joins.
        self._worker = await asyncio.shield(self._joining)
        self._must_rejoin = False

    async def _look_at_workers(self) -> None:
        """Learn what other workers own, so that views can send requests on to them."""
        found = await self.link.call(workers_of, self.link.broker, self.app.conf.id)
        if found != self._workers and not self.app.rebalancing:
            self._workers = found
            tell_assignor(self.app, self.link, self._owned, self._copies, found)

    def assignment(self) -> set[TP]:
        """Return the partitions that this worker reads, copies included."""
        return {*self._owned, *self._copies}

    async def on_task_error(self, exc: BaseException) -> None:
        """Apply the policy to the record whose agent has raised."""
        iteration = current_iteration.get()
        if iteration is not None:
            iteration.stream.agent_failed = True
        await self.settle(exc)

    async def settle(self, error: BaseException) -> None:
        """Apply the policy to the record that is handled now and has failed."""
        if not settle_failure(self.app, self.link, error):
            self.log.error("the worker stops at a record whose agent raised: %r", error)
            await self.app.crash(error)


def _allow_waits(conf: Any) -> None:
    """Let Faust's recovery wait for the log."""
    timeout = max(conf.broker_request_timeout, RECOVERY_S)
    change_setting(conf, "broker_request_timeout", timeout)


def _check_store(app: Any) -> None:
    """Raise InvalidConfig for exactly-once with tables that are changed before the commit."""
    if getattr(app.conf.processing_guarantee, "value", "") != "exactly_once":
        return
    for table in app.tables.values():
        store = str(table._store or app.conf.store)
        if not store.startswith("strandline:"):
            raise InvalidConfig(
                f"processing_guarantee='exactly_once' needs store='strandline://', got {store!r} "
                f"for table {table.name!r}: other stores are changed before the commit, and keep "
                "the changes of a record that fails"
            )
