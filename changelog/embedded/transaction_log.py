"""Durable state of transactions: a compacted topic keyed by transactional id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from strandline.changelog.decoding import msgpack_decoder
from strandline.changelog.embedded.frame import encode_pairs
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.reading import view
from strandline.changelog.errors import REPAIR, UNREADABLE, CorruptLog
from strandline.changelog.layout import TRANSACTION_STATE
from strandline.changelog.records import ConsumerRecord

PRODUCER_IDS_KEY = b"\x00producer-ids"
"""Key of the record with the end of the reserved producer ids."""
PRODUCER_ID_BLOCK = 1000
"""Number of producer ids reserved at a time, durably (Kafka's ProducerIdsBlock)."""


class PreparedPartition(msgspec.Struct, array_like=True, frozen=True):
    """A partition of a prepared transaction. Its `end` (exclusive) was durable at the Prepare."""

    topic: str
    topic_id: str
    partition: int
    leader_epoch: int
    end: int


class TransactionRecord(msgspec.Struct, array_like=True, frozen=True):
    """The state of a transactional id.

    `empty` after init_producer, `prepare` from the commit point until every marker is durable,
    `complete` after that. Recovery aborts every transaction that is not prepared.
    """

    state: Literal["empty", "prepare", "complete"]
    producer_id: int
    epoch: int
    next_epoch: int
    timeout_ms: int
    partitions: tuple[PreparedPartition, ...] = ()


class TransactionalIdRecord(NamedTuple):
    """A decoded record of a transactional id."""

    transactional_id: str
    state: TransactionRecord | None
    """None if the record deletes the id."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(TransactionRecord).decode
_decode_int = msgpack_decoder(int).decode


class TransactionLog:
    """The partition of `__transaction_state`."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._next_producer_id = 0
        self._block_end = 0

    def load(self) -> dict[str, TransactionRecord]:
        """Return the last record of each transactional id. Raises CorruptLog."""
        states: dict[str, TransactionRecord] = {}
        for record in read_records(self.partition):
            entry = parsed(record)
            if isinstance(entry, int):
                self._next_producer_id = self._block_end = entry
            elif entry is not None and entry.state is None:
                states.pop(entry.transactional_id, None)
            elif entry is not None and entry.state is not None:
                states[entry.transactional_id] = entry.state
        return states

    def write(
        self, records: Iterable[tuple[str, TransactionRecord]], *, sync: bool = False
    ) -> None:
        """Append records in order, and with `sync` make them durable.

        Raises what Partition.append does.
        """
        self._append([(name.encode(), _encode(record)) for name, record in records])
        if sync:
            self.sync()

    def forget(self, transactional_ids: Iterable[str]) -> None:
        """Append tombstones for transactional ids."""
        self._append([(name.encode(), None) for name in transactional_ids])

    def skip_producer_ids(self, highest: int) -> None:
        """Assign no producer id up to `highest`, the highest one found in a partition."""
        if highest >= self._next_producer_id:
            self._next_producer_id = self._block_end = highest + 1

    def new_producer_id(self) -> int:
        """Return a producer id that was never assigned before."""
        if self._next_producer_id == self._block_end:
            self._append([(PRODUCER_IDS_KEY, _encode(self._block_end + PRODUCER_ID_BLOCK))])
            # Synced with any durability, because a producer id that is assigned twice loses data.
            self.partition.sync()
            self._block_end += PRODUCER_ID_BLOCK
        self._next_producer_id += 1
        return self._next_producer_id - 1

    def sync(self) -> None:
        """Make appended records durable, unless the log's durability is "os"."""
        if self.partition.context.durability == "fsync":
            self.partition.sync()

    def _append(self, pairs: list[tuple[bytes, bytes | None]]) -> None:
        append_pairs(self.partition, pairs)


def parsed(record: ConsumerRecord) -> TransactionalIdRecord | int | None:
    """Decode a record of the topic. Raises CorruptLog.

    Return an int for the end of a block of producer ids, None for a record without a key.
    """
    try:
        if record.key == PRODUCER_IDS_KEY:
            return _decode_int(record.value or b"")
        if record.key is None:
            return None
        state = None if record.value is None else _decode(record.value)
        return TransactionalIdRecord(record.key.decode(), state)
    except UNREADABLE as error:
        raise CorruptLog(
            f"{TRANSACTION_STATE} at offset {record.offset}: not a transaction record: {error}; "
            f"{REPAIR}"
        ) from error


def append_pairs(
    partition: Partition, pairs: Iterable[tuple[bytes, bytes | None]], **stamp: object
) -> int:
    """Append key/value pairs to a system partition; return the first one's offset."""
    payload = encode_pairs(pairs, partition.context.clock.now_ms())
    return partition.append(payload, **stamp).base_offset  # type: ignore[arg-type]


def read_records(partition: Partition) -> Iterator[ConsumerRecord]:
    """Iterate over the committed records of a system partition, while the log is being opened.

    Nothing else reads or changes the partition then, so no segment is deleted in between. Raises
    CorruptLog.
    """
    storage, offset = partition.context.storage, partition.log_start
    while offset < partition.last_stable_offset:
        seen = view(partition, offset, max_bytes=4 << 20, isolation="read_committed")
        yield from seen.records(storage)
        offset = seen.limit
