"""A move, step by step. Whatever interrupts it, running it again goes on where it was.

Records are copied in transactions of the target that also say, in its journal, what was copied. The positions
of groups come last: with them the target is ready for use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.changelog.client.producer import Producer
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import InvalidRequest, TopicExists, UnknownTopic
from strandline.changelog.moving import groups, settings
from strandline.changelog.moving.copying import TopicCopy, check_same_history, copy
from strandline.changelog.moving.forms import BatchConversion, form_of
from strandline.changelog.moving.journal import (
    Journal,
    MoveBegun,
    TargetCreated,
    TopicState,
    TopicVerified,
)
from strandline.changelog.moving.reading import (
    Advance,
    Ends,
    GroupOffsets,
    committed_in,
    settled_ends,
)
from strandline.changelog.moving.report import MovedPartition, MovedTopic, MoveReport, Progress
from strandline.changelog.moving.selection import MovedLog, Selection, check_at_rest
from strandline.changelog.moving.verifying import check_unused, verify, verify_whole
from strandline.changelog.records import TopicInfo, TopicPartition

PRODUCER = "strandline-move"
"""Its transactional id: of two moves to one target the later one fences the other."""
TIMEOUT_MS = 60_000
"""Of the transactions in the target; each has what one fetch gave."""
PASSES = 10
"""So often a source is read on that has grown meanwhile."""


def move(
    source: MovedLog,
    target: MovedLog,
    selection: Selection | None = None,
    *,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> MoveReport:
    """Copy topics with all that is committed in them, and the positions of groups, to another log.

    The source stays as it is. Groups must be at rest, and nobody may write to these topics, here or
    there. Raises InvalidRequest (something is in use; UnknownTopic, InvalidTopic, TopicExists),
    CorruptLog (the copy is not what was read), and what the two logs raise. Afterwards, and after
    any crash, it may be called again: what was copied is not copied once more.
    """
    return _Move(source, target, selection, clock, progress).run()


def verify_only(
    source: MovedLog,
    target: MovedLog,
    selection: Selection | None = None,
    *,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> MoveReport:
    """Compare what was moved with what the target has; nothing is changed. Raises CorruptLog.

    Records that the target got later do not matter. Raises InvalidRequest for a topic that was not
    moved.
    """
    return _Move(source, target, selection, clock, progress).compare()


class _Move:
    def __init__(
        self,
        source: MovedLog,
        target: MovedLog,
        selection: Selection | None,
        clock: Clock | None,
        progress: Progress | None,
    ) -> None:
        self._source = source
        self._target = target
        self._selection = selection or Selection()
        self._clock = clock or SystemClock()
        self._progress = progress
        self._started = self._clock.monotonic()
        self._topics = self._selection.topics_in(source)
        self._reached: dict[TopicPartition, int] = {}
        """Where this run has come to in the source; behind what the journal says are markers only."""
        self._left_out: dict[str, settings.LeftOut] = {}

    def run(self) -> MoveReport:
        # 1  May it be? Nothing is at work in the source, and the target has a form for all values.
        for topic in self._topics:
            self._form(topic)
        self._check_source_at_rest()
        # 2  Whoever else moves to this target is fenced, and what was left open there has ended.
        with self._producer() as producer:
            self._journal = Journal(self._target.broker, self._clock)
            # 3  What is there of these topics is this copy, and nobody uses it.
            for topic in self._topics:
                self._check_target(topic)
            self._check_target_groups({group: {} for group in self._committed(self._source)})
            # 4  Topics that keep all.
            self._journal.make()
            works = [self._begun(topic, producer) for topic in self._topics]
            self._check_histories(works)
            for work in works:
                if not self._state(work).verified:
                    self._hold(work)
            # 5  Records, until there are no more.
            before = self._records()
            self._copy(works, producer)
            # 6  Read back and compared; only then the topics may let something go.
            self._verify(works, producer)
            # 7  Positions.
            self._check_source_at_rest()
            committed = self._commit(producer)
        return self._report(committed, self._records() - before)

    def compare(self) -> MoveReport:
        self._journal = Journal(self._target.broker, self._clock)
        works = [self._moved(topic) for topic in self._topics]
        total = sum(self._end_of(work, tp) for work in works for tp in work.partitions)
        advance = self._advancing("comparing", total)
        compared = {
            work.source.name: verify_whole(work, self._state(work), self._target.broker, advance)
            for work in works
        }
        return self._report(self._committed(self._target), 0, compared)

    # May it be? -----------------------------------------------------------------------

    def _check_source_at_rest(self) -> None:
        named = self._selection.groups or ()
        check_at_rest(self._source, sorted({*self._committed(self._source), *named}))

    def _check_target(self, topic: TopicInfo) -> None:
        present = self._in_target(topic.name)
        if present is None:
            return
        where = f"topic {topic.name!r} in {self._target.name}"
        state = self._journal.state.topics.get(topic.topic_id)
        if state is None or state.target_id not in ("", present.topic_id):
            raise TopicExists(
                f"{where} is there already, and is no copy of the one in {self._source.name}; it is "
                f"left as it is. Delete it there, or choose other topics with --topics"
            )
        if state.begun.schema_id != topic.schema_id or present.partitions > topic.partitions:
            raise InvalidRequest(
                f"{where} has other columns or partitions than the one in {self._source.name}, which "
                f"it is to be a copy of; delete it there, and move again"
            )
        check_unused(topic.name, present.partitions, state, self._target.broker, self._clock)

    def _check_histories(self, works: Sequence[TopicCopy]) -> None:
        """What was copied in an earlier run is still what the source has."""
        ends = self._ends([work.source for work in works])
        for work in works:
            check_same_history(work, self._state(work), ends)

    def _check_target_groups(self, offsets: GroupOffsets) -> None:
        """Nobody is at work there in the groups, which have committed nothing else than `offsets`."""
        present = set(self._target.broker.groups())
        check_at_rest(self._target, [group for group in offsets if group in present])
        groups.check_untouched(self._committed(self._target), self._journal, offsets)

    # Topics ---------------------------------------------------------------------------

    def _begun(self, topic: TopicInfo, producer: Producer) -> TopicCopy:
        """The topic in the target, made if need be."""
        form, broker = self._form(topic), self._target.broker
        present = self._in_target(topic.name)
        if present is None:
            # Said before it is made: a crash in between leaves a topic that is known to be ours.
            settled = tuple(end.settled_end for end in self._ends([topic]).values())
            begun = MoveBegun(topic.topic_id, topic.name, topic.schema_id, settled)
            self._journal.record(producer, begun)
            present = broker.create_topic(topic.name, topic.partitions, schema=form.schema)
        if present.partitions < topic.partitions:
            present = broker.alter_topic(topic.name, partitions=topic.partitions)
        if not self._journal.state.topics[topic.topic_id].target_id:
            made = TargetCreated(topic.topic_id, present.topic_id, settings.rules(present))
            self._journal.record(producer, made)
        return TopicCopy(topic, present, form)

    def _moved(self, topic: TopicInfo) -> TopicCopy:
        """A topic that was moved. Raises InvalidRequest if it was not."""
        present = self._in_target(topic.name)
        state = self._journal.state.topics.get(topic.topic_id)
        if present is None or state is None or state.target_id != present.topic_id:
            raise InvalidRequest(
                f"topic {topic.name!r} of {self._source.name} was not moved to {self._target.name}, so "
                f"there is nothing to compare"
            )
        return TopicCopy(topic, present, self._form(topic))

    # Records --------------------------------------------------------------------------

    def _copy(self, works: Sequence[TopicCopy], producer: Producer) -> None:
        for _ in range(PASSES):
            ends = self._ends([work.source for work in works])
            left = {work.source.name: self._left(work, ends) for work in works}
            behind = [work for work in works if left[work.source.name]]
            if not behind:
                return
            advance = self._advancing("copying", sum(left.values()))
            for work in behind:
                if self._state(work).verified:  # it has more since it was moved
                    self._hold(work)
                self._reached |= copy(
                    work, ends, self._source.broker, producer, self._journal, advance
                )
        raise InvalidRequest(
            f"{self._source.name} is still written to: there is more to copy after {PASSES} passes; stop "
            f"who writes, then run this again"
        )

    def _left(self, work: TopicCopy, ends: Ends) -> int:
        """How many offsets are still to be read."""
        state = self._state(work)
        return sum(
            max(
                0,
                ends[tp].last_stable_offset
                - max(
                    ends[tp].log_start,
                    state.partition(tp.partition).position,
                    self._reached.get(tp, 0),
                ),
            )
            for tp in work.partitions
        )

    def _hold(self, work: TopicCopy) -> None:
        broker, name = self._target.broker, work.source.name
        self._left_out[name] = settings.hold(broker, work.source, broker.topic(name))

    def _verify(self, works: Sequence[TopicCopy], producer: Producer) -> None:
        unverified = [work for work in works if not self._state(work).verified]
        total = sum(
            partition.end - partition.verified
            for work in unverified
            for partition in self._state(work).partitions.values()
        )
        advance = self._advancing("comparing", total)
        for work in works:
            if work in unverified:
                verify(work, self._state(work), self._target.broker, self._clock, advance)
                self._journal.record(producer, TopicVerified(work.source.topic_id))
            self._release(work)

    def _release(self, work: TopicCopy) -> None:
        broker, name = self._target.broker, work.source.name
        defaults = self._state(work).defaults
        left_out = settings.release(broker, work.source, broker.topic(name), defaults)
        self._left_out.setdefault(name, {}).update(left_out)

    # Positions ------------------------------------------------------------------------

    def _commit(self, producer: Producer) -> GroupOffsets:
        offsets = groups.translated(
            self._committed(self._source),
            self._topics,
            self._journal,
            self._target.broker,
            self._selection.metadata,
        )
        self._check_target_groups(offsets)
        groups.commit(offsets, producer, self._journal)
        return offsets

    # Looking --------------------------------------------------------------------------

    def _form(self, topic: TopicInfo) -> BatchConversion:
        return form_of(topic, self._target, self._selection.conversions)

    def _producer(self) -> Producer:
        return Producer(
            self._target.broker,
            transactional_id=PRODUCER,
            transaction_timeout_ms=TIMEOUT_MS,
            clock=self._clock,
        )

    def _in_target(self, topic: str) -> TopicInfo | None:
        try:
            return self._target.broker.topic(topic)
        except UnknownTopic:
            return None

    def _ends(self, topics: Sequence[TopicInfo]) -> Ends:
        partitions = [TopicPartition(t.name, n) for t in topics for n in range(t.partitions)]
        return settled_ends(self._source.broker, partitions, self._clock)

    def _committed(self, place: MovedLog) -> GroupOffsets:
        names = {topic.name for topic in self._topics}
        present = set(place.broker.groups())
        chosen = [group for group in self._selection.groups_in(self._source) if group in present]
        return committed_in(place.broker, chosen, names, self._clock)

    def _state(self, work: TopicCopy) -> TopicState:
        return self._journal.state.topics[work.source.topic_id]

    def _end_of(self, work: TopicCopy, tp: TopicPartition) -> int:
        return self._state(work).partition(tp.partition).end

    def _records(self) -> int:
        """Copied by now, in all runs."""
        states = [self._journal.state.topics.get(topic.topic_id) for topic in self._topics]
        return sum(p.whole.count for s in states if s is not None for p in s.partitions.values())

    def _advancing(self, doing: str, total: int) -> Advance:
        done = 0

        def advance(offsets: int) -> None:
            nonlocal done
            done = min(total, done + offsets)  # markers of the copy's own come on top
            if self._progress is not None:
                self._progress(doing, done, total)

        return advance

    def _report(
        self,
        committed: GroupOffsets,
        copied: int,
        compared: Mapping[str, bool] | None = None,
    ) -> MoveReport:
        compared = compared or {}
        topics = [
            MovedTopic(
                topic.name,
                self._partitions(topic),
                compared.get(topic.name, True),
                self._left_out.get(topic.name, {}),
            )
            for topic in self._topics
        ]
        return MoveReport(topics, committed, copied, self._clock.monotonic() - self._started)

    def _partitions(self, topic: TopicInfo) -> list[MovedPartition]:
        state = self._journal.state.topics[topic.topic_id]
        found = [(n, state.partition(n)) for n in range(topic.partitions)]
        return [MovedPartition(n, p.whole.count, p.whole.text, p.end) for n, p in found]
