"""Commits of Faust's consumer: of what the ledger allows, in one transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from faust.types import TP

from strandline.changelog.errors import (
    Fenced,
    ProducerFenced,
    Retriable,
    StrandlineError,
    TransactionAborted,
)
from strandline.changelog.records import TopicPartition
from strandline.framework.faust.commit import FaustCommit, commit
from strandline.framework.faust.group_worker import GroupWorker
from strandline.framework.faust.ledger import CommitPlan
from strandline.framework.faust.positioned_consumer import PositionedConsumer
from strandline.framework.patience import Patience
from strandline.statestore.changelogged import ChangelogBatch

FINISH_S = 3.0
"""Seconds for which a rebalance or a stop waits for running handlers."""
LOOK_S = 0.05
"""Seconds between two looks at running handlers."""


class CommittingConsumer(PositionedConsumer):
    """Part of Faust's consumer that commits for its place in the group."""

    def __init__(self, transport: Any, callback: Any, *args: Any, **options: Any) -> None:
        super().__init__(transport, callback, *args, **options)
        self._worker: GroupWorker | None = None
        """Place in the group; None before joining and after leaving."""
        self._must_rewind = False
        """True after a commit that failed, until all partitions are read again."""
        self._must_rejoin = False
        """True if another producer has taken over the transactional id of the place."""
        self._commit_patience = Patience(self.link.clock)

    async def force_commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        """Commit all work that may be committed, in one transaction.

        Faust may ask for some topics only. Their work can depend on that of others, so all is taken.
        """
        sensor_state = self.app.sensors.on_commit_initiated(self)
        async with self._committing:
            done = await self._commit_once()
        self.app.sensors.on_commit_completed(self, sensor_state)
        return done

    async def _commit_once(self) -> bool:
        worker = self._worker
        if worker is None or self._must_rewind or not self._has_begun():
            return False
        plan = self.link.ledger.plan()
        if not plan:
            return False
        changes = self._changes(plan)
        batches = {part.changelog: batch for part, batch in changes.items()}
        positions = {part.changelog: part.position for part in changes}
        work = FaustCommit(plan.offsets or self._unchanged(), plan.sent, batches, positions)
        self._commit_patience.ask()
        try:
            appended = await self.link.call_in_turns(
                commit, work, self.link, worker.producer, worker.member
            )
        except (TransactionAborted, Fenced, Retriable) as error:
            await self._give_up(worker, error)
            return False
        except StrandlineError as error:
            self._must_rewind = True
            await self.app.crash(error)
            return False
        self._commit_patience.answered()
        for part, batch in changes.items():
            part.apply(batch, appended[part.changelog])
        self.link.ledger.settle(plan)
        self._note(plan.offsets)
        return True

    async def _give_up(self, worker: GroupWorker, error: StrandlineError) -> None:
        """Abort a commit that was refused or not answered; all records are read again.

        After one without an answer the log may have committed. The committed offsets tell, which
        are read after the transaction has ended.
        """
        self._must_rewind = True
        if isinstance(error, Retriable) and not self._commit_patience.failed(error):
            await self.app.crash(error)
            return
        self.log.warning("a commit failed, and its records are handled again: %s", error)
        self._must_rejoin = self._must_rejoin or isinstance(error, ProducerFenced)
        with contextlib.suppress(StrandlineError):
            await self.link.call(worker.abort)

    def _changes(self, plan: CommitPlan) -> dict[Any, ChangelogBatch]:
        parts = {
            part.overlay: part
            for table in self.app.tables.values()
            for part in getattr(table.data, "parts", {}).values()
        }
        return {
            parts[overlay]: parts[overlay].committing(changes)
            for overlay, changes in plan.changes.items()
            if overlay in parts
        }

    def _unchanged(self) -> dict[TopicPartition, int]:
        """Return offsets for a commit of work without records, such as expired windows.

        Kafka checks the membership only together with offsets. Chosen by the log, they would be the
        log start where nothing is committed, although this worker may have begun at the end.
        """
        if not self.link.address.is_kafka:
            return {}
        return {TopicPartition(*tp): offset for tp, offset in self._begun_at.items()}

    def _note(self, offsets: Mapping[TopicPartition, int]) -> None:
        committed = {TP(*tp): offset for tp, offset in offsets.items()}
        for tp in committed:
            self._acked.pop(tp, None)
            self._acked_index.pop(tp, None)
        self._committed_offset.update(committed)
        self._begun_at.update(committed)
        self.app.monitor.on_tp_commit(committed)

    async def wait_empty(self) -> None:
        """Let running handlers finish, for a limited time, then commit.

        A handler that does not finish leaves nothing: its record is handled again.
        """
        deadline = self.link.clock.monotonic() + FINISH_S
        while self.link.ledger.has_started():
            if self.link.clock.monotonic() > deadline:
                break
            await self.sleep(LOOK_S)
        await self.force_commit(start_new_transaction=False)

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        return await self.force_commit()
