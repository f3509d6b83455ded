"""The steps of a move. After any interruption, running it again continues where it stopped.

Records are copied in transactions of the target that also write the progress to the journal. The
offsets of groups are committed last: then the target is ready for use.
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
"""Transactional id of a move: of two moves to the same target the later one fences the other."""
TIMEOUT_MS = 60_000
"""Timeout of a transaction in the target, which has the records of one fetch."""
MAX_PASSES = 10
"""Maximum number of passes over a source that grows while it is copied."""


def move(
    source: MovedLog,
    target: MovedLog,
    selection: Selection | None = None,
    *,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> MoveReport:
    """Copy topics with all committed records, and the committed offsets of groups, to another log.

    The groups of apps are groups like others here: the state and the declarations that belong to
    their offsets are moved only if they are selected. `strandline.framework.moving.move` adds them.

    The source is not changed. Groups must have no members, and no process may write to these topics
    in either log. After success, and after any crash, the move may be repeated: it continues where
    it stopped.

    Args:
        source: The log to copy from.
        target: The log to copy to.
        selection: The topics and groups to move, and the conversion of values; by default all
            topics and groups, without conversion.
        clock: Clock of the process; the system's by default.
        progress: Called with the current step, the offsets done, and the total offsets.

    Returns:
        The topics in the target with their checksums, and the committed offsets.

    Raises:
        InvalidRequest: A topic or group is in use, or the copy cannot be continued. UnknownTopic,
            InvalidTopic and TopicExists are subclasses.
        CorruptLog: The copy differs from the records read.
        StrandlineError: Any other error of the two logs.
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
    """Compare moved topics with the target; change nothing.

    Records appended to the target after the move are ignored.

    Args:
        source: The log that was copied from.
        target: The log that was copied to.
        selection: The topics to compare; all by default.
        clock: Clock of the process; the system's by default.
        progress: Called with the current step, the offsets done, and the total offsets.

    Returns:
        The topics in the target with their checksums, and the committed offsets.

    Raises:
        CorruptLog: The target differs from what was moved.
        InvalidRequest: A topic was not moved.
    """
    return _Move(source, target, selection, clock, progress).compare()


class _Move:
    """One run of a move."""

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
        """Positions reached in the source by this run.

        They may be after those in the journal, if only transaction markers are between.
        """
        self._left_out: dict[str, settings.LeftOut] = {}

    def run(self) -> MoveReport:
        """Execute all steps."""
        # 1  Check that no group of the source is in use, and that the target can store all values.
        for topic in self._topics:
            self._form(topic)
        self._check_source_at_rest()
        # 2  Fence other moves to this target. Their open transactions are aborted.
        with self._producer() as producer:
            self._journal = Journal(self._target.broker, self._clock)
            # 3  Check that existing topics in the target are copies by this move, and not in use.
            for topic in self._topics:
                self._check_target(topic)
            self._check_target_groups({group: {} for group in self._committed(self._source)})
            # 4  Create the topics, with settings that keep all records.
            self._journal.create_topic_if_missing()
            works = [self._copy_of(topic, producer) for topic in self._topics]
            self._check_histories(works)
            for work in works:
                if not self._state(work).verified:
                    self._hold(work)
            # 5  Copy records until none are left.
            before = self._records()
            self._copy(works, producer)
            # 6  Read back and compare. Only then restore the settings, as retention and compaction
            #    would remove records that are still to be compared.
            self._verify(works, producer)
            # 7  Commit the groups' offsets.
            self._check_source_at_rest()
            committed = self._commit(producer)
        return self._report(committed, self._records() - before)

    def compare(self) -> MoveReport:
        """Compare the topics with the target."""
        self._journal = Journal(self._target.broker, self._clock)
        works = [self._moved_copy(topic) for topic in self._topics]
        total = sum(self._end_of(work, tp) for work in works for tp in work.partitions)
        advance = self._advancing("comparing", total)
        compared = {
            work.source.name: verify_whole(work, self._state(work), self._target.broker, advance)
            for work in works
        }
        return self._report(self._committed(self._target), 0, compared)

    # Preconditions --------------------------------------------------------------------

    def _check_source_at_rest(self) -> None:
        """Raise InvalidRequest if a group of the source has members."""
        named = self._selection.groups or ()
        check_at_rest(self._source, sorted({*self._committed(self._source), *named}))

    def _check_target(self, topic: TopicInfo) -> None:
        """Raise InvalidRequest unless the target topic is missing, or is this move's copy."""
        present = self._in_target(topic.name)
        if present is None:
            return
        where = f"topic {topic.name!r} in {self._target.name}"
        state = self._journal.state.topics.get(topic.topic_id)
        if state is None or state.target_id not in ("", present.topic_id):
            raise TopicExists(
                f"{where} exists and is not a copy of the one in {self._source.name}; nothing is "
                f"changed. Delete it there, or choose other topics with --topics"
            )
        if state.begun.schema_id != topic.schema_id or present.partitions > topic.partitions:
            raise InvalidRequest(
                f"{where} has other columns or partitions than the one in {self._source.name}, of "
                f"which it is a copy; delete it there, and move again"
            )
        check_unused(topic.name, present.partitions, state, self._target.broker, self._clock)

    def _check_histories(self, works: Sequence[TopicCopy]) -> None:
        """Raise InvalidRequest if the source has another history than in an earlier run."""
        ends = self._ends([work.source for work in works])
        for work in works:
            check_same_history(work, self._state(work), ends)

    def _check_target_groups(self, offsets: GroupOffsets) -> None:
        """Raise InvalidRequest if a group in the target has members or other offsets."""
        present = set(self._target.broker.groups())
        check_at_rest(self._target, [group for group in offsets if group in present])
        groups.check_untouched(self._committed(self._target), self._journal, offsets)

    # Topics ---------------------------------------------------------------------------

    def _copy_of(self, topic: TopicInfo, producer: Producer) -> TopicCopy:
        """Return the copy of a topic; create the target topic if it is missing."""
        form, broker = self._form(topic), self._target.broker
        present = self._in_target(topic.name)
        if present is None:
            # Before the topic is created, so that after a crash in between the journal shows that
            # this move has created it.
            settled = tuple(end.settled_end for end in self._ends([topic]).values())
            begun = MoveBegun(topic.topic_id, topic.name, topic.schema_id, settled)
            self._journal.record(producer, begun)
            present = broker.create_topic(topic.name, topic.partitions, schema=form.schema)
        if present.partitions < topic.partitions:
            present = broker.alter_topic(topic.name, partitions=topic.partitions)
        if not self._journal.state.topics[topic.topic_id].target_id:
            created = TargetCreated(topic.topic_id, present.topic_id, settings.rules(present))
            self._journal.record(producer, created)
        return TopicCopy(topic, present, form)

    def _moved_copy(self, topic: TopicInfo) -> TopicCopy:
        """Return the copy of a topic that was moved. Raises InvalidRequest if it was not."""
        present = self._in_target(topic.name)
        state = self._journal.state.topics.get(topic.topic_id)
        if present is None or state is None or state.target_id != present.topic_id:
            raise InvalidRequest(
                f"topic {topic.name!r} of {self._source.name} was not moved to {self._target.name}; "
                f"there is nothing to compare"
            )
        return TopicCopy(topic, present, self._form(topic))

    # Records --------------------------------------------------------------------------

    def _copy(self, works: Sequence[TopicCopy], producer: Producer) -> None:
        """Copy all topics, in passes until the source does not grow any more."""
        for _ in range(MAX_PASSES):
            ends = self._ends([work.source for work in works])
            remaining = {work.source.name: self._remaining_offsets(work, ends) for work in works}
            unfinished = [work for work in works if remaining[work.source.name]]
            if not unfinished:
                return
            advance = self._advancing("copying", sum(remaining.values()))
            for work in unfinished:
                if self._state(work).verified:  # moved before, and the source has grown since
                    self._hold(work)
                self._reached |= copy(
                    work, ends, self._source.broker, producer, self._journal, advance
                )
        raise InvalidRequest(
            f"{self._source.name} is still written to: there is more to copy after {MAX_PASSES} "
            f"passes; stop the writers, then run this again"
        )

    def _remaining_offsets(self, work: TopicCopy, ends: Ends) -> int:
        """Return the number of offsets still to be read."""
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
        """Give a target topic the settings that keep all records."""
        broker, name = self._target.broker, work.source.name
        self._left_out[name] = settings.hold(broker, work.source, broker.topic(name))

    def _verify(self, works: Sequence[TopicCopy], producer: Producer) -> None:
        """Compare all topics that are not verified, and give all their final settings."""
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
                self._journal.record(
                    producer, TopicVerified(work.source.topic_id, is_finished=False)
                )
            self._release(work)

    def _release(self, work: TopicCopy) -> None:
        """Give a target topic its final settings."""
        broker, name = self._target.broker, work.source.name
        defaults = self._state(work).defaults
        left_out = settings.release(broker, work.source, broker.topic(name), defaults)
        self._left_out.setdefault(name, {}).update(left_out)

    # Offsets --------------------------------------------------------------------------

    def _commit(self, producer: Producer) -> GroupOffsets:
        """Translate the groups' offsets and commit them in the target."""
        offsets = groups.translated(
            self._committed(self._source),
            self._topics,
            self._journal,
            self._target.broker,
            self._selection.metadata,
        )
        self._check_target_groups(offsets)
        groups.commit(offsets, self._topics, producer, self._journal)
        return offsets

    # Look-ups -------------------------------------------------------------------------

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
        """Return a topic of the target; None if it does not exist."""
        try:
            return self._target.broker.topic(topic)
        except UnknownTopic:
            return None

    def _ends(self, topics: Sequence[TopicInfo]) -> Ends:
        """Return the settled offsets of topics in the source."""
        partitions = [TopicPartition(t.name, n) for t in topics for n in range(t.partitions)]
        return settled_ends(self._source.broker, partitions, self._clock)

    def _committed(self, place: MovedLog) -> GroupOffsets:
        """Return the offsets that the selected groups have committed in one of the logs."""
        names = {topic.name for topic in self._topics}
        present = set(place.broker.groups())
        chosen = [group for group in self._selection.groups_in(self._source) if group in present]
        return committed_in(place.broker, chosen, names, self._clock)

    def _state(self, work: TopicCopy) -> TopicState:
        return self._journal.state.topics[work.source.topic_id]

    def _end_of(self, work: TopicCopy, tp: TopicPartition) -> int:
        return self._state(work).partition(tp.partition).end

    def _records(self) -> int:
        """Return the number of records copied so far, in all runs."""
        states = [self._journal.state.topics.get(topic.topic_id) for topic in self._topics]
        return sum(p.whole.count for s in states if s is not None for p in s.partitions.values())

    def _advancing(self, doing: str, total: int) -> Advance:
        """Return the function that reports progress of one step."""
        done = 0

        def advance(offsets: int) -> None:
            nonlocal done
            # At most the total, because markers of the copy's own transactions are read as well.
            done = min(total, done + offsets)
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
