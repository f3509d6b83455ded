"""Feeder: fetches records for the inputs of a worker's task instances.

A fetch brings at least one batch of each partition that has records, however large it is. If the
last fetches have brought more than the memory budget has for them (`MemoryBudget.input_bytes`), the
next ones ask for fewer partitions at a time, in turn.

Batch tasks whose records come one at a time get them together. A batch costs some milliseconds
however small it is, and its results become visible at the next commit. So a feeder that has read all
records pauses before it fetches again, until there is just time for one more batch before the next
commit. When the time left is too short for another batch, the worker need not wait for the commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from strandline.changelog.errors import OffsetOutOfRange
from strandline.changelog.records import Fetched, TopicPartition
from strandline.framework.container.commit_schedule import CommitSchedule
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.container.foreign_records import ForeignRecords
from strandline.framework.container.inputs import Input, groups
from strandline.framework.container.instance import TaskInstance
from strandline.framework.container.manager import TaskManager

MAX_LINGER_S = 0.05
"""Maximum seconds from the beginning of a batch to that of the next one, if records come one at a
time. It bounds what a long commit interval adds to the delay of calls to the outside."""
MAX_EARLY_S = 0.01
"""Maximum seconds by which a commit may come early, because no further batch fits before it."""
BATCH_FETCHES = 8
"""Factor by which a fetch for batch tasks is larger. A stage of streams takes some 25 ms for a batch
of few records, and 40 for one of 4 MiB: it would never have as many records as suit it."""
UNLIMITED_INPUTS = 1 << 20
"""Number of inputs to ask at a time that sets no limit, because no worker has as many."""

Group = Mapping[TopicPartition, list[Input]]
"""The inputs that one fetch serves, by partition."""


class Feeder:
    """Fetches for one worker. Not thread-safe."""

    def __init__(
        self, context: ContainerContext, tasks: TaskManager, schedule: CommitSchedule
    ) -> None:
        self._schedule = schedule
        self._broker = context.broker
        self._clock = context.clock
        self._options = context.options
        self._tasks = tasks
        self._foreign = ForeignRecords(context)
        self._most = UNLIMITED_INPUTS
        """Maximum number of inputs that may have fetched records at the same time."""
        self._round = 0
        """Number of rounds of fetches so far."""
        self._fed_at = 0.0
        """Monotonic time at which the last records were fetched."""
        self._took = 0.0
        """Seconds from that fetch until its records were handled."""

    def feed(self, wait: float) -> None:
        """Fetch for the inputs without pending records; wait only if nothing else can be done."""
        if not self._tasks.instances:
            self._pause(wait)
            return
        running = [one for one in self._tasks.instances if one.failure is None]
        at_work = any(one.has_input or one.is_busy for one in running)
        drained, is_whole = self._drained(running, 0 if at_work else 1)
        grouped = groups(drained)
        if at_work or not is_whole or len(grouped) != 1:
            wait = 0.0
        elif wait and self._gathers(running):
            wait -= self._linger(wait)
        for group in grouped:
            fetched = self._fetch(group, _positions(group), wait)
            self._adapt(fetched)
            _add(group, fetched)
            for tp, (source, *_) in group.items():
                self._foreign.look(tp, source.topic, fetched[tp].batches)
        self._fed_at = self._clock.monotonic()

    def note_handled(self) -> None:
        """Note the time since the last records were fetched, once they are handled."""
        self._took = self._clock.monotonic() - self._fed_at

    @property
    def has_last_batch(self) -> bool:
        """True if the records handled now are the last ones that the next commit can cover.

        Another batch would make the commit late, for the sake of the few records that have come
        since this one was fetched.
        """
        if self._schedule.seconds_left > min(self._took / 2, MAX_EARLY_S):
            return False
        return self._gathers([one for one in self._tasks.instances if one.failure is None])

    def _gathers(self, running: Sequence[TaskInstance]) -> bool:
        """Return True if records come one at a time, and are given to batch tasks only."""
        return all(
            one.spec.batch and all(s.read_to_end and not s.pending for s in one.inputs)
            for one in running
        )

    def _linger(self, wait: float) -> float:
        """Let records come together, until a batch can be handled just before the next commit.

        Returns:
            The seconds that this has taken, at most `wait`.
        """
        begun = self._clock.monotonic()
        seconds = min(self._schedule.seconds_left, MAX_LINGER_S) - self._took
        if seconds <= 0:
            return 0.0
        self._sleep(min(seconds, wait))
        return min(self._clock.monotonic() - begun, wait)

    @staticmethod
    def _sleep(seconds: float) -> None:
        threading.Event().wait(seconds)

    def _drained(self, running: Sequence[TaskInstance], least: int) -> tuple[list[Input], bool]:
        """Choose the inputs to fetch for, among those without pending records.

        If not all fit into memory, those of the instances that have waited longest are chosen, of
        at least `least` instances.

        Returns:
            The inputs, and True if these are all.
        """
        by_instance = [[s for s in one.inputs if not s.pending] for one in running]
        drained = [source for inputs in by_instance for source in inputs]
        room = self._most - sum([len(one.inputs) for one in running]) + len(drained)
        is_whole = room >= len(drained)
        if not is_whole:
            waiting = sorted(filter(None, by_instance), key=lambda inputs: inputs[0].asked)
            largest = max(map(len, waiting), default=1)  # none waits if all that fit are pending
            count = max(room // largest, least)
            drained = [source for inputs in waiting[:count] for source in inputs]
        self._round += 1
        for source in drained:
            source.asked = self._round
        return drained, is_whole

    def _adapt(self, fetched: Mapping[TopicPartition, Fetched]) -> None:
        """Choose the number of inputs of the next fetches, by the bytes of this one.

        The limit is half of the budget, because records are kept twice: as columns and decoded.
        """
        found = [one.batches for one in fetched.values() if one.batches]
        room = self._tasks.memory.input_bytes // 2
        brought = sum(batch.columns.nbytes for batches in found for batch in batches)
        if brought > room:
            self._most = max(1, len(found) * room // brought)
        elif brought < room // 2 and self._most < UNLIMITED_INPUTS:
            self._most *= 2

    def rest(self, seconds: float, is_needed: Callable[[], bool]) -> None:
        """Wait for records at most `seconds`, while nothing is pending.

        It ends early once `is_needed` returns True, which is asked after each fetch. Unlike `feed`,
        it does not look at every instance each time, so an idle worker of many partitions is cheap.
        """
        running = [one for one in self._tasks.instances if one.failure is None]
        sources = [source for instance in running for source in instance.inputs]
        grouped = groups(sources)
        is_busy = any(s.pending for s in sources) or any(one.is_busy for one in running)
        if len(grouped) != 1 or is_busy:
            return
        positions = _positions(grouped[0])
        until = self._clock.monotonic() + seconds
        seen: Mapping[TopicPartition, Fetched] | None = None
        while not is_needed() and (left := until - self._clock.monotonic()) > 0:
            fetched = self._fetch(grouped[0], positions, min(left, self._options.poll_ms / 1000))
            if fetched is seen:
                continue  # the log returns the same result while nothing has changed
            if any(one.batches or one.next_offset != positions[tp] for tp, one in fetched.items()):
                _add(grouped[0], fetched)
                return
            seen = fetched

    def _fetch(
        self, group: Group, positions: Mapping[TopicPartition, int], wait: float
    ) -> Mapping[TopicPartition, Fetched]:
        instances, most = self._tasks.instances, self._options.fetch_bytes
        if all(one.spec.batch for one in instances):
            most *= BATCH_FETCHES
        size = self._tasks.memory.fetch_bytes(len(instances), most)
        try:
            return self._broker.fetch(positions, max_bytes=size, timeout=wait)
        except OffsetOutOfRange:
            for tp, ends in self._broker.offsets(list(group)).items():
                for source in group[tp]:
                    # Each raises an error that says more.
                    source.check_topic(ends.topic_id)
                    source.check_present(ends.log_start)
            raise

    def _pause(self, seconds: float) -> None:
        """Wait up to `seconds` for restores to end, or just wait if none is under way."""
        if self._tasks.is_opening:
            self._tasks.wait(seconds)
        else:
            self._sleep(seconds)


def _positions(group: Group) -> dict[TopicPartition, int]:
    return {tp: sources[0].ahead for tp, sources in group.items()}


def _add(group: Group, fetched: Mapping[TopicPartition, Fetched]) -> None:
    for tp, sources in group.items():
        for source in sources:
            source.feed(fetched[tp])
