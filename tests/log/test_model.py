"""The log against a plain model, for any sequence of appends, transactions, rolls and reopenings.

The model keeps, per partition, a list of (offset, value, state of its transaction). A
read_committed reader must always get the model's committed values in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from strandline.changelog.records import CommittedOffset, TopicPartition
from tests.forms import examples
from tests.log.kit import Client, World

PARTITIONS = 2


@dataclass
class Written:
    """A record in the model; `fate` is shared by all records of its transaction."""

    offset: int
    value: bytes
    fate: list[str]


class LogMachine(RuleBasedStateMachine):
    @initialize(durability=st.sampled_from(["fsync", "os"]))
    def start(self, durability: str) -> None:
        self.world = World(durability=durability)
        self.world.owner.create_topic("t", PARTITIONS, config={"segment.bytes": "4096"})
        self.records: list[list[Written]] = [[] for _ in range(PARTITIONS)]
        self.starts = [0] * PARTITIONS
        self.committed: dict[TopicPartition, int] = {}
        self.plain = [Client(self.world) for _ in range(2)]
        self.transactional = [Client(self.world, f"tx-{n}") for n in range(2)]
        self.fates: list[list[str]] = [["open"], ["open"]]
        self.pending: list[dict[TopicPartition, int]] = [{}, {}]
        self.count = 0

    def _values(self, size: int) -> list[bytes]:
        self.count += size
        return [b"%d" % n for n in range(self.count - size, self.count)]

    def _write(self, client: Client, partition: int, size: int, fate: list[str]) -> None:
        values = self._values(size)
        appended = client.append(*values, partition=partition)
        assert appended.last_offset == appended.base_offset + size - 1
        self.records[partition] += [
            Written(appended.base_offset + n, value, fate) for n, value in enumerate(values)
        ]

    @rule(who=st.integers(0, 1), partition=st.integers(0, 1), size=st.integers(1, 50))
    def append(self, who: int, partition: int, size: int) -> None:
        self._write(self.plain[who], partition, size, ["committed"])

    @rule(who=st.integers(0, 1), partition=st.integers(0, 1), size=st.integers(1, 50))
    def append_in_transaction(self, who: int, partition: int, size: int) -> None:
        self._write(self.transactional[who], partition, size, self.fates[who])

    @rule(who=st.integers(0, 1), partition=st.integers(0, 1), offset=st.integers(0, 1000))
    def add_offsets(self, who: int, partition: int, offset: int) -> None:
        tp = TopicPartition("t", partition)
        if tp in self.pending[1 - who]:
            # if two open transactions commit one offset the later record wins: tested elsewhere
            return
        self.world.owner.add_offsets(
            self.transactional[who].identity, "g", {tp: CommittedOffset(offset)}
        )
        self.pending[who][tp] = offset

    @rule(who=st.integers(0, 1), commit=st.booleans())
    def end(self, who: int, *, commit: bool) -> None:
        client = self.transactional[who]
        client.commit() if commit else client.abort()
        self._ended(who, committed=commit)

    def _ended(self, who: int, *, committed: bool) -> None:
        self.fates[who][0] = "committed" if committed else "aborted"
        if committed:
            self.committed.update(self.pending[who])
        self.fates[who], self.pending[who] = ["open"], {}

    @rule(who=st.integers(0, 1))
    def restart_producer(self, who: int) -> None:
        self.transactional[who] = Client(self.world, f"tx-{who}")
        self._ended(who, committed=False)

    @rule(clean=st.booleans())
    def reopen(self, *, clean: bool) -> None:
        self.world.reopen() if clean else self.world.crash()
        for who in range(2):
            self._ended(who, committed=False)
            self.transactional[who] = Client(self.world, f"tx-{who}")

    @rule(who=st.integers(0, 1), partition=st.integers(0, 1))
    def append_the_last_batch_again(self, who: int, partition: int) -> None:
        client, tp = self.plain[who], TopicPartition("t", partition)
        next_sequence = client.sequences.get(tp, 0)
        if next_sequence:
            client.append(b"again", partition=partition, sequence=next_sequence)
            self.records[partition].append(
                Written(self._last_offset(partition), b"again", ["committed"])
            )
            repeated = client.append(b"again", partition=partition, sequence=next_sequence)
            assert repeated.duplicate

    def _last_offset(self, partition: int) -> int:
        tp = TopicPartition("t", partition)
        return self.world.owner.offsets([tp])[tp].high_watermark - 1

    @rule(partition=st.integers(0, 1), share=st.floats(0, 1))
    def delete_records(self, partition: int, share: float) -> None:
        tp = TopicPartition("t", partition)
        end = self.world.owner.offsets([tp])[tp].last_stable_offset
        start = self.world.owner.delete_records(tp, int(end * share))
        self.starts[partition] = max(self.starts[partition], start)
        assert start == self.starts[partition]

    @invariant()
    def readers_see_what_the_model_says(self) -> None:
        for partition, records in enumerate(self.records):
            tp = TopicPartition("t", partition)
            ends = self.world.owner.offsets([tp])[tp]
            first_open = min((r.offset for r in records if r.fate[0] == "open"), default=None)
            visible = [
                record.value
                for record in records
                if record.fate[0] == "committed"
                and record.offset >= self.starts[partition]
                and (first_open is None or record.offset < first_open)
            ]
            assert self.world.values(partition=partition) == visible
            if first_open is not None:
                assert ends.last_stable_offset <= first_open
            else:
                assert ends.last_stable_offset == ends.high_watermark

    @invariant()
    def offsets_are_those_of_committed_transactions(self) -> None:
        committed = self.world.owner.committed("g", require_stable=False)
        assert {tp: offset.offset for tp, offset in committed.items()} == self.committed


LogMachine.TestCase.settings = settings(
    max_examples=examples(40), stateful_step_count=30, print_blob=True
)
TestLog = LogMachine.TestCase
