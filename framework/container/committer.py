"""The commits of a worker, and the way back to the last one if a commit fails.

    commit      what was done since the last commit, and then the checkpoints that are due
    aborted     reset everything to the last commit and continue from it
    refused     the same, and then search for the step whose record the log refused
    fenced      membership or producer is lost: drop all uncommitted work, and join again
    disk full   pause, go back to the last commit, try again

Going back is done *in place*, in memory, if the transaction is known to be aborted and all engines
accept writes. Otherwise the stores are closed, and opened again from the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from strandline.changelog.errors import (
    DiskFull,
    InvalidRecord,
    MemberFenced,
    ProducerFenced,
    RebalanceInProgress,
    Retriable,
    SchemaMismatch,
    TransactionAborted,
)
from strandline.framework.container.commit import checkpoint_if_due, offsets_of
from strandline.framework.container.commit_schedule import CommitSchedule
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.container.instance import TaskInstance
from strandline.framework.container.manager import TaskManager
from strandline.framework.container.outage import Outage
from strandline.framework.container.session import WorkerSession

_log = logging.getLogger("strandline")

MAX_ABORTED_COMMITS = 10
"""Maximum number of consecutive aborted commits; after one more the worker raises the error."""


class Committer:
    """Commits the work of a worker's task instances. Used by the worker's thread alone."""

    def __init__(
        self,
        context: ContainerContext,
        tasks: TaskManager,
        session: WorkerSession,
        schedule: CommitSchedule,
    ) -> None:
        self.outage = Outage(context.clock)
        """The time for which the disk has been full."""
        self._context = context
        self._clock = context.clock
        self._tasks = tasks
        self._trial = tasks.trial
        self._session = session
        self._schedule = schedule
        self._intact = True
        """True if every engine accepts writes, so that a failure can be undone in place."""
        self._aborted_in_a_row = 0

    def commit(self) -> bool:
        """Commit the work since the last commit; go back to the last commit if that fails.

        Returns:
            True if all work is committed; False if it was undone.

        Raises:
            DiskFull: The disk is full; the caller must call `wait_for_space`.
        """
        is_committed = True
        if committing := self._committing():
            is_committed = False
            try:
                self._session.commit(committing)
                is_committed = True
                self._note_committed(committing)
                self._checkpoint()
                self.outage.end()
            except SchemaMismatch:
                raise  # no single record causes it, so there is none to search for
            except InvalidRecord as error:
                self._refused(error)
            except (MemberFenced, ProducerFenced) as error:
                self.fenced(error)
            except (TransactionAborted, Retriable) as error:
                self._aborted(error)
        self._schedule.restart()
        return is_committed

    def checkpoint_all(self) -> None:
        """Checkpoint all stores, so that the next start has nothing to restore."""
        self._intact = self._tasks.checkpoint(self._tasks.instances)

    def fenced(self, error: MemberFenced | ProducerFenced) -> None:
        """Drop uncommitted work and the membership: other workers may own the partitions now."""
        dropped = self._schedule.uncommitted
        self._drop()
        self._session.fenced(error, dropped)

    def wait_for_space(self, error: DiskFull, ended: Callable[[], bool]) -> None:
        """Wait for disk space, then go back to the last commit; raise the error if the run ends."""
        while True:
            self.outage.disk_full(error)
            if not self.outage.pause(ended):
                raise error
            try:
                return self._go_back()
            except DiskFull as again:
                error = again

    def _committing(self) -> list[TaskInstance]:
        """Return the instances to commit: those with uncommitted work, and those beside them.

        Tasks that read the same partition share its committed offset.
        """
        instances = self._tasks.instances
        numbers = {one.partition for one in instances if one.has_uncommitted}
        return [one for one in instances if one.partition in numbers]

    def _note_committed(self, committed: list[TaskInstance]) -> None:
        self._trial.committed()
        self._tasks.committed.update(offsets_of(committed))
        for source in [source for one in self._tasks.instances for source in one.inputs]:
            # The commit may have appended to it, so only the next fetch shows its end.
            source.stable = None
        self._aborted_in_a_row = self._schedule.uncommitted = 0

    def _checkpoint(self) -> None:
        # An engine whose write failed refuses all further writes until it is reopened. So if the
        # checkpoint raises, the flag stays False and the stores are dropped instead of rewound.
        self._intact = False
        stores = [store for instance in self._tasks.instances for store in instance.all_stores]
        self._tasks.memory.divide(stores, self._clock.monotonic())
        checkpoint_if_due(stores, self._clock)
        self._intact = True

    # Going back -----------------------------------------------------------------------

    def _aborted(self, error: TransactionAborted | Retriable) -> None:
        """Go back to the last commit after one that was aborted or may have been."""
        self._aborted_in_a_row += 1
        if self._aborted_in_a_row > MAX_ABORTED_COMMITS:
            raise error
        fields = self._log_fields(error)
        if isinstance(error, RebalanceInProgress):
            # On Kafka this is normal whenever a worker joins or leaves, so it is no warning.
            _log.info("a rebalance interrupted a commit, which is repeated", extra=fields)
        else:
            _log.warning(
                "a commit was aborted, going back to the last one: %s", error, extra=fields
            )
        self._go_back()

    def _refused(self, error: InvalidRecord) -> None:
        """Go back and search for the step whose record the log refused."""
        fields = self._log_fields(error)
        _log.info("a commit was refused, looking for the record: %s", error, extra=fields)
        instances = self._tasks.instances
        self._trial.refused(error, lambda: any(i.mark_refused(error) for i in instances))
        self._go_back(known_uncommitted=True)

    def _log_fields(self, error: Exception) -> dict[str, object]:
        return {
            "app": self._context.app,
            "records": self._schedule.uncommitted,
            "error": error,
        }

    def _go_back(self, *, known_uncommitted: bool = False) -> None:
        """Go back to the last commit: in place if possible, else by reading it from the log again.

        `known_uncommitted` says that outputs and changes are known not to be committed. Without it
        that is known only under exactly_once, where one transaction covers all of them.
        """
        guarantee = self._context.options.processing_guarantee
        known_uncommitted = known_uncommitted or guarantee == "exactly_once"
        try:
            aborted = known_uncommitted and self._intact and self._session.abort()
        except ProducerFenced as error:
            self.fenced(error)
            return
        if aborted:
            self._rewind()
        else:
            self._drop()
            self._session.renew()

    def _rewind(self) -> None:
        """Reset every instance in memory to the last commit."""
        self._stop_steps()
        for instance in self._tasks.instances:
            instance.rewind()

    def _drop(self) -> None:
        """Close all instances without committing; the worker opens them again from the log."""
        self._stop_steps()
        self._tasks.drop()
        self._intact = True

    def _stop_steps(self) -> None:
        """Let no step take effect, while its store is to be committed, and count none as handled."""
        for instance in self._tasks.instances:
            instance.stop_steps()
        self._trial.rewound()
        self._schedule.undo()
