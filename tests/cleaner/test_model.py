"""The cleaner against a plain model, for any sequence of appends, transactions, passes and deaths.

Every pass is watched. A whole pass must have done exactly what the model says: the records that
stay, the horizons of tombstones, the end of the clean part. A pass that was cut short may have done
a part of it.

STRANDLINE_CLEANER_EXAMPLES=10000 sets the number of examples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from strandline.changelog.embedded.checking.findings import Severity
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.cleaning import look, rewriting, schedule
from strandline.changelog.embedded.cleaning import marks as marking
from strandline.changelog.embedded.cleaning.passes import PassResult
from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.errors import (
    DiskFull,
    InvalidRecord,
    InvalidTopic,
    OutOfOrderSequence,
    ProducerFenced,
    StorageFailed,
    StrandlineError,
)
from strandline.changelog.layout import CONSUMER_OFFSETS
from strandline.changelog.records import (
    HEADERS_TYPE,
    Append,
    Appended,
    CommittedOffset,
    ConsumerRecord,
    Isolation,
    PartitionOffsets,
    TopicPartition,
)
from tests.cleaner.model import PLAIN, Fate, PartitionModel, Written, on_disk
from tests.crash.twin import Died, Hook
from tests.forms import by_form
from tests.log.kit import Client
from tests.log.power import PowerWorld, failing, stopping_after, taking_turns

EXAMPLES = int(os.environ.get("STRANDLINE_CLEANER_EXAMPLES", by_form("15", "100")))
PARTITIONS = 2
TIMEOUT_MS = 800_000
REFUSED = "the disk says no"
DAY_MS = 24 * 60 * 60 * 1000
KEYS = [b"a", b"b", b"c", b"d", b"e" * 40]
GROUPS = ["g", "h"]

WHO = st.integers(0, 1)
PARTITION = st.integers(0, PARTITIONS - 1)
SHARE = st.floats(0, 1)
ROWS = st.lists(
    st.tuples(
        st.integers(0, len(KEYS) - 1),
        st.sampled_from(["value", "value", "tombstone", "headers", "long"]),
    ),
    min_size=1,
    max_size=5,
)
TIMES = st.sampled_from([1, 1, 1, 12])
"""Number of repetitions of a batch's rows: few rows are kept as rows, many as columns."""


@dataclass
class Sent:
    """A batch that the log has accepted."""

    sequence: int
    columns: pa.RecordBatch
    schema_id: int
    appended: Appended


class Sender(Client):
    """A producer that remembers its batches, by partition."""

    def __init__(self, world: PowerWorld, transactional_id: str | None = None) -> None:
        super().__init__(world, transactional_id, TIMEOUT_MS)
        self.sent: dict[TopicPartition, list[Sent]] = {}

    def send(
        self,
        tp: TopicPartition,
        columns: pa.RecordBatch,
        schema_id: int,
        sequence: int | None = None,
    ) -> Appended:
        base = self.sequences.get(tp, 0) if sequence is None else sequence
        request = Append(
            *tp, columns, self.identity, base, self.transactional_id is not None, schema_id
        )
        [appended] = self.world.owner.append([request])
        if sequence is None:
            self.sequences[tp] = base + columns.num_rows
            self.sent.setdefault(tp, []).append(Sent(base, columns, schema_id, appended))
        return appended

    def ended(self) -> None:
        """Forget the batches, because the next transaction starts at sequence 0."""
        self.sent = {}


class Endless(BaseException):
    """Raised when passes do not come to an end."""


class CleaningMachine(RuleBasedStateMachine):
    schemas: tuple[pa.Schema, ...] = ()
    """Schemas of a typed topic. The second one is added later."""

    @initialize(
        segment=st.sampled_from([4096, 4096, 10_000, 1 << 20]),
        policy=st.sampled_from(["compact", "compact", "compact,delete"]),
        ratio=st.sampled_from([0.0, 0.5]),
        retention=st.sampled_from([0, 1_000, 60_000]),
        delay=st.sampled_from([0, 60_000]),
        compression=st.sampled_from(["none", "none", "lz4"]),
        large=st.sampled_from([400, 1 << 19]),
        memory=st.sampled_from([1, 60, 150, 1 << 16]),
        marks=st.sampled_from([1, 3, 100]),
    )
    def start(
        self,
        segment: int,
        policy: str,
        ratio: float,
        retention: int,
        delay: int,
        compression: str,
        large: int,
        memory: int,
        marks: int,
    ) -> None:
        self.patches = ExitStack()
        self.patches.enter_context(patch.object(look, "MAX_BITS_PER_BYTE", marks))
        self.patches.enter_context(patch.object(marking, "FRAME_BITS", 1))
        self.patches.enter_context(patch.object(schedule, "clean", self._watched(schedule.clean)))
        self.patches.enter_context(patch.object(schedule._log, "warning"))
        self.patches.enter_context(patch.object(LogContext, "in_parallel", taking_turns))
        self.patches.enter_context(patch.object(rewriting, "LARGE_BYTES", large))
        self.patches.enter_context(patch.object(rewriting, "MERGED_BYTES", 2 * large))
        self.memory, self.retention, self.policy = memory, retention, policy
        self.passes, self.schema_id = 0, min(1, len(self.schemas))
        self.problem: Exception | None = None
        self.idle: set[int] = set()
        self.interrupted: tuple[int, int, int, int] | None = None
        self.world = PowerWorld()
        self.models = [PartitionModel(n) for n in range(PARTITIONS)]
        config = {
            "cleanup.policy": policy,
            "segment.bytes": str(segment),
            "min.cleanable.dirty.ratio": str(ratio),
            "delete.retention.ms": str(retention),
            "file.delete.delay.ms": str(delay),
            "compression.type": compression,
            "index.interval.bytes": "300",
            "retention.ms": "300000",
        }
        schema = self.schemas[0] if self.schemas else None
        self.world.owner.create_topic("t", PARTITIONS, config=config, schema=schema)
        self.plain = [Sender(self.world) for _ in range(2)]
        self.transactional = [Sender(self.world, f"tx-{n}") for n in range(2)]
        self.fates, self.deadlines = [Fate(), Fate()], [0, 0]
        self.pending: list[dict[tuple[str, TopicPartition], tuple[int, int]]] = [{}, {}]
        self.offsets: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
        self.count = 0
        self.touched = set(range(PARTITIONS))

    def teardown(self) -> None:
        if hasattr(self, "patches"):
            self.patches.close()
            self.world.storage.crash()
            report = check_log(self.world.storage, clock=self.world.clock).report
            wrong = [f for f in report.findings if f.severity > Severity.NOTE]
            assert not [f for f in wrong if f.kind != "group offset"], wrong

    # Writing --------------------------------------------------------------------------

    @rule(who=WHO, partition=PARTITION, rows=ROWS, times=TIMES)
    def append(self, who: int, partition: int, rows: list[tuple[int, str]], times: int) -> None:
        self._append(self.plain[who], partition, rows * times, PLAIN)

    @rule(who=WHO, partition=PARTITION, rows=ROWS, times=TIMES)
    def append_in_transaction(
        self, who: int, partition: int, rows: list[tuple[int, str]], times: int
    ) -> None:
        self._begins(who)
        self._append(self.transactional[who], partition, rows * times, self.fates[who])

    @rule(who=WHO, partition=PARTITION, rows=ROWS)
    def append_without_keys(self, who: int, partition: int, rows: list[tuple[int, str]]) -> None:
        if "compact" in self.policy:
            with pytest.raises(InvalidRecord):
                self._append(self.plain[who], partition, rows, PLAIN, keyless=True)
        else:
            self._append(self.plain[who], partition, rows, PLAIN, keyless=True)

    def _append(
        self,
        client: Sender,
        partition: int,
        rows: list[tuple[int, str]],
        fate: Fate,
        *,
        keyless: bool = False,
    ) -> None:
        written = [self._written(key, kind, fate) for key, kind in rows]
        if keyless:
            written[-1].key = None
        appended = client.send(
            TopicPartition("t", partition), self._columns(written), self.schema_id
        )
        for n, record in enumerate(written):
            record.offset, record.batch_end = appended.base_offset + n, appended.last_offset
        self.models[partition].records += written
        self.touched.add(partition)

    def _written(self, key: int, kind: str, fate: Fate) -> Written:
        self.count += 1
        time = self.world.clock.now_ms() - self.count % 3 * 700
        heads = [("h", b"%d" % self.count), ("n", None)] if kind == "headers" else []
        value = None if kind == "tombstone" else self._value(long=kind == "long")
        return Written(0, time, KEYS[key], value, tuple(heads), fate, 0)

    def _value(self, *, long: bool) -> Any:
        if not self.schemas:
            return b"%d" % self.count + bytes(900 if long else 0)
        return (
            {"n": self.count, "x": "x" * long * 900} if self.schema_id == 2 else {"n": self.count}
        )

    def _columns(self, written: list[Written]) -> pa.RecordBatch:
        value = pa.struct(list(self.schemas[self.schema_id - 1])) if self.schemas else pa.binary()
        columns = {
            "timestamp": pa.array([r.timestamp for r in written], pa.int64()),
            "key": pa.array([r.key for r in written], pa.binary()),
            "value": pa.array([r.value for r in written], value),
        }
        if any(r.headers for r in written):
            pairs = [[{"key": k, "value": v} for k, v in r.headers] for r in written]
            columns["headers"] = pa.array(pairs, HEADERS_TYPE)
        return pa.record_batch(columns)

    @rule(who=WHO, partition=PARTITION, back=st.integers(1, 5))
    def send_again(self, who: int, partition: int, back: int) -> None:
        client, tp = self.plain[who], TopicPartition("t", partition)
        sent = client.sent.get(tp, [])
        if len(sent) >= back:
            again = sent[-back]
            if again.columns.column("key").null_count and "compact" in self.policy:
                return  # the log would not accept it now
            repeated = client.send(tp, again.columns, again.schema_id, again.sequence)
            assert repeated.duplicate
            assert repeated[:2] == again.appended[:2]

    @rule(who=WHO, partition=PARTITION, rows=ROWS)
    def leave_a_gap(self, who: int, partition: int, rows: list[tuple[int, str]]) -> None:
        client, tp = self.plain[who], TopicPartition("t", partition)
        if client.sent.get(tp):
            columns = self._columns([self._written(key, kind, PLAIN) for key, kind in rows])
            with pytest.raises(OutOfOrderSequence):
                client.send(tp, columns, self.schema_id, client.sequences[tp] + 1)

    # Transactions ---------------------------------------------------------------------

    def _begins(self, who: int) -> None:
        if not self.deadlines[who]:
            self.deadlines[who] = self.world.clock.now_ms() + TIMEOUT_MS

    @rule(who=WHO, commit=st.booleans())
    def end(self, who: int, *, commit: bool) -> None:
        client = self.transactional[who]
        with self._marking():
            client.commit() if commit else client.abort()
            self._ended(who, committed=commit)

    @rule(who=WHO, partition=PARTITION)
    def restart_producer(self, who: int, partition: int) -> None:
        old = self.transactional[who]
        with self._marking():
            self.transactional[who] = Sender(self.world, f"tx-{who}")
            self._ended(who, committed=False)
        columns = self._columns([self._written(0, "value", PLAIN)])
        with pytest.raises(ProducerFenced):
            old.send(TopicPartition("t", partition), columns, self.schema_id)

    def _ended(self, who: int, *, committed: bool) -> None:
        self.fates[who].state = "committed" if committed else "aborted"
        if committed:
            self._commits(self.pending[who])
        self.fates[who], self.pending[who], self.deadlines[who] = Fate(), {}, 0
        self.transactional[who].ended()

    def _marking(self) -> ExitStack:
        """Note the range of offsets for markers of transactions that end in this block."""
        open_ = [fate for fate in self.fates if fate.state == "open"]
        before = self._ends()

        def note() -> None:
            for n, end in enumerate(self._ends()):
                self.touched.add(n)
                for fate in open_:
                    fate.markers[n] = before[n].high_watermark, end.high_watermark - 1
                    mine = [r for r in self.models[n].records if r.fate is fate]
                    if mine:
                        low = max(fate.markers[n][0], mine[-1].offset + 1)
                        fate.markers[n] = low, fate.markers[n][1]

        stack = ExitStack()
        stack.callback(note)
        return stack

    # Offsets of groups ----------------------------------------------------------------

    @rule(group=st.sampled_from(GROUPS), partition=PARTITION, offset=st.integers(0, 99))
    def commit_offset(self, group: str, partition: int, offset: int) -> None:
        tp = TopicPartition("t", partition)
        self.world.owner.commit_offsets(group, {tp: CommittedOffset(offset)})
        self._commits({(group, tp): (self._last_commit(), offset)})

    @rule(who=WHO, group=st.sampled_from(GROUPS), partition=PARTITION, offset=st.integers(0, 99))
    def add_offset(self, who: int, group: str, partition: int, offset: int) -> None:
        tp, client = TopicPartition("t", partition), self.transactional[who]
        self._begins(who)
        self.world.owner.add_offsets(client.identity, group, {tp: CommittedOffset(offset)})
        self.pending[who][(group, tp)] = self._last_commit(), offset

    def _last_commit(self) -> int:
        return self._partition_of(CONSUMER_OFFSETS).log_end - 1

    def _commits(self, changes: dict[tuple[str, TopicPartition], tuple[int, int]]) -> None:
        for key, change in changes.items():
            self.offsets[key] = max(self.offsets.get(key, change), change)

    # Settings and time ----------------------------------------------------------------

    @rule(policy=st.sampled_from(["compact", "delete", "compact,delete"]))
    def set_policy(self, policy: str) -> None:
        self.policy = policy
        self.world.owner.alter_topic("t", config={"cleanup.policy": policy})

    @rule(low=st.sampled_from(["0", "2000"]), high=st.sampled_from([None, "20000"]))
    def set_lags(self, low: str, high: str | None) -> None:
        lags = {"min.compaction.lag.ms": low, "max.compaction.lag.ms": high}
        self.world.owner.alter_topic("t", config=lags)

    @rule(retention=st.sampled_from([0, 1_000, 60_000]))
    def set_retention(self, retention: int) -> None:
        self.retention = retention
        self.world.owner.alter_topic("t", config={"delete.retention.ms": str(retention)})

    @rule()
    def extend_schema(self) -> None:
        if len(self.schemas) == 2:
            self.world.owner.alter_topic("t", schema=self.schemas[1])
            self.schema_id = 2

    @rule(ms=st.sampled_from([100, 1_000, 15_000, 61_000, 400_000, DAY_MS + 1]))
    def wait(self, ms: int) -> None:
        until = self.world.clock.now_ms() + ms
        for who, deadline in enumerate(self.deadlines):
            if deadline and deadline < until:
                self.end(who, commit=False)
        idle = [self._known_producers(n) for n in range(PARTITIONS)]
        self.world.clock.advance(ms)
        with self._retaining():
            self.world.owner.tick()
        if ms > DAY_MS:  # idle producers are forgotten, though an old snapshot may have them
            for n in range(PARTITIONS):
                self.idle |= set(idle[n])
            self.plain = [Sender(self.world) for _ in range(2)]

    @rule(partition=PARTITION, share=SHARE)
    def delete_records(self, partition: int, share: float) -> None:
        end = self._ends()[partition].high_watermark
        tp = TopicPartition("t", partition)
        if self.policy == "compact":
            with pytest.raises(InvalidTopic, match="only compacted"):
                self.world.owner.delete_records(tp, int(end * share))
            return
        start = self.world.owner.delete_records(tp, int(end * share))
        model = self.models[partition]
        assert start == max(model.log_start, int(end * share))
        model.log_start = start
        self.touched.add(partition)

    def _retained(self, partition: Partition) -> None:
        """Follow the partition's log start, which only retention may have moved."""
        number = partition.topic_partition.partition
        model = self.models[number]
        assert partition.log_start == model.log_start or "delete" in self.policy
        model.log_start = partition.log_start
        self.touched.add(number)

    def _retaining(self) -> ExitStack:
        """Follow the log starts after this block, which only retention may move."""

        def note() -> None:
            for n in range(PARTITIONS):
                self._retained(self._partition(n))

        stack = ExitStack()
        stack.callback(note)
        return stack

    @rule(partition=PARTITION)
    def roll(self, partition: int) -> None:
        log = self._partition(partition)
        if log.segments and log.segments[-1].size:
            log.roll()
        self.touched.add(partition)

    # Cleaning -------------------------------------------------------------------------

    @rule(everything=st.booleans(), memory=st.sampled_from([1, 60, 150, 1 << 16]))
    def clean(self, *, everything: bool, memory: int) -> None:
        self.memory = memory
        before = self._ends()
        self._clean(everything=everything)
        for n, ends in enumerate(self._ends()):
            # Cleaning closes and syncs a segment, so records of open transactions become visible.
            assert ends.high_watermark >= before[n].high_watermark
            seen = replace(before[n], high_watermark=ends.high_watermark)
            assert ends == cleaned(seen, ends)

    def _clean(self, *, everything: bool) -> None:
        if "compact" in self.policy or everything:
            self.world.owner.clean(None if everything else ["t"])
            for status in self.world.owner.cleaning():
                assert status.reason in ("", REFUSED)

    @rule(count=st.integers(0, 40), death=st.sampled_from(["kill", "power"]))
    def clean_until_death(self, count: int, death: str) -> None:
        self.world.storage.hook = stopping_after(count)
        with suppress(Died):
            self._clean(everything=True)
        self._reopen(death, lost=())

    @rule(
        count=st.integers(0, 25),
        kind=st.sampled_from(["append", "fsync", "create", "rename", "sync_dir", "unlink"]),
        full=st.booleans(),
    )
    def clean_on_a_bad_disk(self, count: int, kind: Any, *, full: bool) -> None:
        full = full and "sync" not in kind  # a sync never fails for lack of space
        error = DiskFull if full else StorageFailed
        self.world.storage.hook = _after(count, failing(kind, error=error(REFUSED), times=1))
        with suppress(StrandlineError):
            self.world.owner.clean(["t"] if "compact" in self.policy else None)
        self.world.storage.hook = None
        partitions = list(self.world.owner._log.partitions())
        if not all(one.gate.usable and not one._manifest_in_doubt for one in partitions):
            self._reopen("kill", lost=())

    def _watched(self, clean: Callable[..., PassResult]) -> Callable[..., PassResult]:
        def watched(partition: Partition, *, now_ms: int, **given: Any) -> PassResult:
            given["memory"] = self.memory
            if partition.topic_partition.topic != "t":
                return clean(partition, now_ms=now_ms, **given)
            self.passes += 1  # since the last step
            self._retained(partition)
            if self.passes > 1_000:
                raise Endless
            number = partition.topic_partition.partition
            ends, (start, end) = partition.offsets(), self._bounds(partition, now_ms)
            try:
                done = clean(partition, now_ms=now_ms, **given)
            except BaseException:
                self._cut_short(partition, start, end, now_ms)
                raise
            with self._noting_problems():
                assert partition.offsets() == cleaned(ends, partition.offsets())
                assert done.start == start
                assert done.end == end if done.whole else start < done.end < end
                self._check_pass(partition, done, now_ms)
            self.touched.add(number)
            return done

        return watched

    @contextmanager
    def _noting_problems(self) -> Iterator[None]:
        """Keep an error to raise it later, because the cleaner handles errors of a pass itself."""
        try:
            yield
        except Exception as error:
            self.problem = error
            raise

    def _bounds(self, partition: Partition, now_ms: int) -> tuple[int, int]:
        """Return the range that a pass may clean: from the first dirty offset to the end
        (exclusive)."""
        model = self.models[partition.topic_partition.partition]
        stable = max(model.log_start, min(model.first_open, partition.high_watermark))
        lag = partition.config.min_compaction_lag_ms
        young = [
            segment.base_offset
            for segment in partition.segments[:-1]
            if lag and now_ms - segment.max_timestamp < lag
        ]
        start = model.start(partition.log_end)
        end = min([stable, partition.segments[-1].base_offset, *young])
        return start, max(start, end)

    def _check_pass(self, partition: Partition, done: PassResult, now_ms: int) -> None:
        model = self.models[partition.topic_partition.partition]
        if not done.whole:
            assert model.keys(done.start, done.end)
        counts = model.clean(done.start, done.end, now_ms, self.retention)
        manifest, tally = partition.manifest, done.tally
        assert manifest.clean_end == done.end
        found = {one.record.offset: one for one in on_disk(partition)}
        for r in model.records:
            if model.log_start <= r.offset < done.end:
                self._check_left(model, r, found.get(r.offset) is not None)
                if r.offset in found and r.value is None:
                    assert found[r.offset].header.delete_horizon == r.horizon
        if model.log_start == 0:
            assert manifest.purged_end == model.purged_end
            told = tally.tombstones, tally.keyless, tally.superseded
            assert told == tuple(counts[k] for k in ("tombstone", "keyless", "superseded"))
            assert 0 <= tally.aborted - counts["aborted"] <= counts["perhaps"]
        else:  # records below the log start may have been purged as well
            assert model.purged_end <= manifest.purged_end <= max(model.purged_end, model.log_start)
            model.purged_end = manifest.purged_end

    @staticmethod
    def _check_left(model: PartitionModel, r: Written, there: bool) -> None:
        if r in model.fates(0, 0, 0):
            return
        perhaps = r.fate.state == "aborted" and model.uncommitted()[1]
        if not (perhaps and r.offset in perhaps):
            assert there == (not r.gone), r

    def _cut_short(self, partition: Partition, start: int, end: int, now_ms: int) -> None:
        """Note an interrupted pass: its changes must be a part of the expected ones."""
        self.interrupted = partition.topic_partition.partition, start, end, now_ms
        if not partition._manifest_in_doubt and not self.world.storage._dead:
            with self._noting_problems():
                self._finalize_interrupted()

    def _finalize_interrupted(self) -> None:
        """Find out the changes of a pass that was cut short."""
        if self.interrupted is None:
            return
        (number, start, end, now_ms), self.interrupted = self.interrupted, None
        partition, model = self._partition(number), self.models[number]
        manifest = partition.manifest
        assert manifest.clean_end == model.clean_end or start <= manifest.clean_end <= end
        found = {one.record.offset: one.header for one in on_disk(partition)}
        for r, fate in model.fates(start, end, now_ms).items():
            if r.offset in found:
                if r.value is None:
                    horizon = found[r.offset].delete_horizon
                    assert horizon in (r.horizon, now_ms + self.retention)
                    r.horizon = horizon
            else:
                assert fate != "stamped"
                r.gone = True
                if fate == "tombstone":
                    model.purged_end = max(model.purged_end, r.offset + 1)
        for r in model.records:
            if r.offset >= model.log_start and not r.gone and r.fate.state == "committed":
                assert r.offset in found
        assert manifest.purged_end >= model.purged_end
        model.purged_end = manifest.purged_end
        if manifest.clean_end != model.clean_end:
            assert not set(model.fates(start, manifest.clean_end, now_ms).values()) & {
                "superseded",
                "keyless",
                "aborted",
            }
            model.clean_end = manifest.clean_end
        self.touched.add(number)

    # Deaths and openings --------------------------------------------------------------

    @rule(
        how=st.sampled_from(["close", "kill", "power"]),
        lost=st.sampled_from([(), (".producers",), (".aborted",), (".index",)]),
        some=st.booleans(),
    )
    def reopen(self, how: str, lost: tuple[str, ...], *, some: bool) -> None:
        self._reopen(how, lost, some=some)

    def _reopen(self, how: str, lost: tuple[str, ...], *, some: bool = False) -> None:
        world, storage = self.world, self.world.storage
        known = [self._known_producers(n) for n in range(PARTITIONS)]
        if how == "close":
            world.owner.close()
        elif how == "kill":
            storage.crash()
        else:
            storage.power_cut()
        for suffix in lost:
            for path in storage.paths("topics", suffix)[:: 2 if some else 1]:
                storage.lose(path)
        aborting = [fate for fate in self.fates if fate.state == "open"]
        world.open()
        for n, ends in enumerate(self._ends()):
            self._forget_what_is_gone(n, aborting)
            for fate in aborting:
                mine = [r for r in self.models[n].records if r.fate is fate]
                low = mine[-1].offset + 1 if mine else 0
                fate.markers[n] = low, ends.high_watermark - 1
        for who in range(2):
            self.transactional[who] = Sender(world, f"tx-{who}")
            self._ended(who, committed=False)
        self._finalize_interrupted()
        self.touched = set(range(PARTITIONS))
        for n, before in enumerate(known):
            self._check_producers(n, before, lost=bool(lost))
        self._forget_what_was_lost(lost=bool(lost), power=how == "power")

    def _forget_what_is_gone(self, n: int, aborting: list[Fate]) -> None:
        """Drop records of open transactions that a power cut has taken."""
        model, found = self.models[n], {one.record.offset for one in on_disk(self._partition(n))}
        lost = [r for r in model.records if r.fate in aborting and r.offset not in found]
        assert not [r for r in lost if r.offset < model.clean_end]
        model.records = [r for r in model.records if r not in lost]

    def _known_producers(self, partition: int) -> dict[int, tuple[int, list[Any], bool]]:
        entries = self._partition(partition).producers.entries
        return {p: (e.epoch, list(e.batches), e.open_since >= 0) for p, e in entries.items()}

    def _check_producers(
        self, n: int, before: dict[int, tuple[int, list[Any], bool]], *, lost: bool
    ) -> None:
        entries = self._partition(n).producers.entries
        for producer, (epoch, batches, open_) in before.items():
            entry = entries.get(producer)
            if entry is None:
                gone = self.models[n].log_start > 0 or producer in self.idle
                assert open_ or (lost and gone)
            elif not open_ and not (lost and producer in self.idle):
                assert entry.epoch == epoch
                assert entry.batches[-1:] == batches[-1:]
                assert lost or entry.batches == batches

    def _forget_what_was_lost(self, *, lost: bool, power: bool) -> None:
        """Adapt to lost files: without a snapshot only the last batch is known, if its segment
        exists."""
        for client in self.plain:
            for tp, sent in client.sent.items():
                if lost:
                    del sent[:-1]
                if lost and sent[-1].appended.last_offset < self.models[tp.partition].log_start:
                    self.plain = [Sender(self.world) for _ in range(2)]
                    return

    # Invariants -----------------------------------------------------------------------

    @rule(partition=PARTITION, share=SHARE, size=st.sampled_from([1, 1 << 20]))
    def fetch_from_anywhere(self, partition: int, share: float, size: int) -> None:
        model, ends = self.models[partition], self._ends()[partition]
        span = ends.last_stable_offset - ends.log_start
        offset = ends.log_start + int(span * share)
        expected = [r for r in model.committed() if r.offset >= offset]
        assert self._read(partition, offset, "read_committed", size) == self._seen(
            partition, expected
        )

    @rule(partition=PARTITION, share=SHARE)
    def look_for_a_time(self, partition: int, share: float) -> None:
        records = self.models[partition].committed()
        if records:
            time = records[int(share * (len(records) - 1))].timestamp + 1
            found = self.world.owner.offset_for_time(TopicPartition("t", partition), time)
            assert found == next((r.offset for r in records if r.timestamp >= time), None)

    @rule(partition=PARTITION, batches=st.integers(1, 4))
    def follow(self, partition: int, batches: int) -> None:
        self._follow(partition, batches)

    @rule(partition=PARTITION)
    def follow_to_the_end(self, partition: int) -> None:
        self._follow(partition, 1 << 30)
        model = self.models[partition]
        follower = model.follower
        assert self._full(follower.state) == self._full(
            model.folded(follower.began, model.first_open)
        )

    def _follow(self, partition: int, batches: int) -> None:
        tp, follower = TopicPartition("t", partition), self.models[partition].follower
        for _ in range(batches):
            follower.looks(self._ends()[partition])
            fetched = self.world.owner.fetch({tp: follower.position}, max_bytes=1)[tp]
            for batch in fetched.batches:
                for record in batch.records():
                    follower.takes(record)
            if fetched.next_offset == follower.position:
                return
            follower.position = fetched.next_offset

    @invariant()
    def passes_did_what_the_model_says(self) -> None:
        self.passes = 0
        if self.problem is not None:
            raise self.problem

    @invariant()
    def readers_see_what_the_model_says(self) -> None:
        for n in self.touched:
            model, ends = self.models[n], self._ends()[n]
            stable = max(model.log_start, min(model.first_open, ends.high_watermark))
            assert ends.last_stable_offset == stable
            assert ends.log_start == model.log_start
            assert self._read(n, ends.log_start) == self._seen(n, model.committed())
            self._check_prefix(model, stable)
            self._check_prefix(model, min(ends.superseding_end, stable))
            there, perhaps = model.uncommitted()
            durable = [r for r in there if r.offset < ends.high_watermark]
            seen = self._read(n, ends.log_start, "read_uncommitted")
            assert [r for r in seen if r.offset not in perhaps] == self._seen(
                n, [r for r in durable if r.offset not in perhaps]
            )
        self.touched = set()

    @staticmethod
    def _check_prefix(model: PartitionModel, end: int) -> None:
        """Check that no record below the end was removed because of a record at or after it."""
        folded = {r.key: r.value for r in model.committed() if r.offset < end and r.key is not None}
        alive = {key: value for key, value in folded.items() if value is not None}
        assert alive == model.folded(model.log_start, end)

    @invariant()
    def offsets_are_those_of_the_later_record(self) -> None:
        for group in GROUPS:
            committed = self.world.owner.committed(group, require_stable=False)
            found = {(group, tp): one.offset for tp, one in committed.items()}
            assert found == {k: v[1] for k, v in self.offsets.items() if k[0] == group}

    # Helpers --------------------------------------------------------------------------

    def _ends(self) -> list[PartitionOffsets]:
        tps = [TopicPartition("t", n) for n in range(PARTITIONS)]
        found = self.world.owner.offsets(tps)
        return [found[tp] for tp in tps]

    def _partition(self, number: int) -> Partition:
        return self._partition_of("t", number)

    def _partition_of(self, topic: str, number: int = 0) -> Partition:
        return self.world.owner._log.catalog.get(topic).partition(number)

    def _read(
        self,
        partition: int,
        position: int,
        isolation: Isolation = "read_committed",
        size: int = 1500,
    ) -> list[ConsumerRecord]:
        tp, records = TopicPartition("t", partition), list[ConsumerRecord]()
        while True:
            fetched = self.world.owner.fetch({tp: position}, isolation=isolation, max_bytes=size)[
                tp
            ]
            for batch in fetched.batches:
                assert len(batch) > 0
                records += batch.records()
            if fetched.next_offset == position:
                return records
            position = fetched.next_offset

    def _seen(self, number: int, written: list[Written]) -> list[ConsumerRecord]:
        return [
            ConsumerRecord(
                "t", number, r.offset, r.timestamp, r.key, self._full_value(r.value), r.headers
            )
            for r in written
        ]

    def _full(self, state: dict[bytes, Any]) -> dict[bytes, Any]:
        return {key: self._full_value(value) for key, value in state.items()}

    def _full_value(self, value: Any) -> Any:
        """Return a value as read with the latest schema."""
        if value is None or not self.schemas:
            return value
        return {**({"x": None} if self.schema_id == 2 else {}), **value}


def cleaned(before: PartitionOffsets, after: PartitionOffsets) -> PartitionOffsets:
    """Return the ends of a partition after cleaning that has come as far as in `after`."""
    return replace(
        before,
        purged_end=after.purged_end,
        clean_end=after.clean_end,
        superseding_end=after.superseding_end,
    )


def _after(count: int, hook: Hook) -> Hook:
    """Return a hook that begins after `count` operations."""
    left = [count]

    def later(operation: Any) -> None:
        left[0] -= operation.kind != "read"
        if left[0] < 0:
            hook(operation)

    return later


class TypedCleaningMachine(CleaningMachine):
    """The same machine on a typed topic whose schema is extended."""

    schemas = (
        pa.schema([pa.field("n", pa.int64())]),
        pa.schema([pa.field("n", pa.int64()), pa.field("x", pa.string())]),
    )


SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestCleaning = CleaningMachine.TestCase
TestCleaning.settings = SETTINGS
TestTypedCleaning = TypedCleaningMachine.TestCase
TestTypedCleaning.settings = SETTINGS
