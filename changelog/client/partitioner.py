"""Selects the partition of a record, as Kafka's Java client does.

The partition of a key is `toPositive(murmur2(key)) % partitions` (Kafka's `Utils.murmur2` and
`BuiltInPartitioner`), so every producer sends a key to the same partition. Records without a key
go to one partition for about a batch, then to another one at random (KIP-480, KIP-794), which
results in few large batches instead of many small ones.

The array version hashes columns: four-byte word w of all keys at once, which costs a few numpy
passes per word. The words of keys of one length are read by stride; those of different lengths are
gathered, which takes about ten times as long. Once only few keys have words left, the rest of each
is hashed alone, so that a single huge key does not cost a numpy pass per word.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import as_numpy, of_numbers

Hashes = npt.NDArray[np.uint32]
Partitions = npt.NDArray[np.int32]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_WORD = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF


def murmur2(key: bytes) -> int:
    """Return Kafka's hash of `key`, as a signed 32-bit number.

    >>> murmur2(b"foobar"), murmur2(b"")
    (-790332482, 275646681)
    """
    hashed = _hash(key)
    return hashed - (1 << 32) if hashed > _POSITIVE else hashed


def partition_for(key: bytes, partitions: int) -> int:
    """Return the partition of `key` among `partitions`.

    >>> partition_for(b"foobar", 4)
    2
    """
    return (_hash(key) & _POSITIVE) % partitions


def murmur2_array(keys: pa.BinaryArray, *, skip: int = 0) -> Hashes:
    """Return the unsigned hashes of a column of keys; the hash of a null is undefined.

    The first `skip` bytes of each key are left out; all keys must have them.

    >>> murmur2_array(pa.array([b"foobar", b""], pa.binary())).astype("int32").tolist()
    [-790332482, 275646681]
    """
    if len(keys) <= _FEW_KEYS:
        found = [_hash((key or b"")[skip:]) for key in keys.to_pylist()]
        return np.array(found, dtype=np.uint32)
    hashes = np.empty(len(keys), dtype=np.uint32)
    offsets, data = _buffers(keys)
    # In pieces that fit the processor's cache.
    for start in range(0, len(keys), _PIECE_RECORDS):
        hashes[start : start + _PIECE_RECORDS] = _murmur2_piece(
            offsets[start : start + _PIECE_RECORDS + 1], data, skip
        )
    return hashes


def partitions_for(keys: pa.BinaryArray, partitions: int, *, skip: int = 0) -> Partitions:
    """Return the partition of each key; -1 for nulls.

    The first `skip` bytes of each key are left out; all keys must have them.

    >>> partitions_for(pa.array([b"foobar", None], pa.binary()), 4).tolist()
    [2, -1]
    """
    if partitions == 1:
        chosen = np.zeros(len(keys), dtype=np.int32)
    else:
        hashes = murmur2_array(keys, skip=skip) & np.uint32(_POSITIVE)
        chosen = (hashes % np.uint32(partitions)).view(np.int32)
    if keys.null_count:
        chosen[as_numpy(pc.is_null(keys))] = -1
    return chosen


def split(
    columns: pa.RecordBatch, partitions: npt.NDArray[np.integer[Any]]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each partition, in order, from a partition for each row.

    >>> rows = pa.record_batch({"n": [1, 2, 3]})
    >>> [(n, part["n"].to_pylist()) for n, part in split(rows, np.array([4, 0, 4], np.int32))]
    [(0, [2]), (4, [1, 3])]
    """
    counts = np.bincount(partitions)
    present = np.flatnonzero(counts)
    if len(present) == 1:
        yield int(present[0]), columns
        return
    small = partitions.astype(np.int16) if len(counts) < 1 << 15 else partitions  # sorted by radix
    ordered = columns.take(of_numbers(np.argsort(small, kind="stable")))
    start = 0
    for partition in present.tolist():
        count = int(counts[partition])
        yield partition, ordered.slice(start, count)
        start += count


class StickyPartitioner:
    """Selects partitions for the keyless records of one topic.

    It keeps one partition until `batch_bytes` were sent there or `batch_sent` is called, then
    changes to another. The sequence is pseudorandom, and the same for the same `seed`.
    """

    def __init__(self, partitions: int, batch_bytes: int, seed: str) -> None:
        self._partitions = partitions
        self._batch_bytes = batch_bytes
        self._seed = seed
        self._moves = 0
        self._current = self._drawn(partitions)
        self._room = batch_bytes

    def take(self, size: int) -> int:
        """Return the partition for the next record, which has `size` bytes."""
        if self._room <= 0:
            self.move_on()
        self._room -= size
        return self._current

    def take_many(self, count: int, total_bytes: int) -> Partitions:
        """Return the partitions of many records, in order: runs of about equal length.

        A run has a batch's bytes where the records suffice for that in every partition. Of fewer
        records each partition gets its share, as long as a run has LEAST_RUN_BYTES.
        """
        share = total_bytes // self._partitions
        run_bytes = max(min(share, self._batch_bytes), min(LEAST_RUN_BYTES, self._batch_bytes))
        runs = min(count, max(1, round(total_bytes / run_bytes)))
        if self._room <= 0:
            self.move_on()
        chosen = (self._current + np.arange(count) * runs // count) % self._partitions
        if runs > 1:
            self._current, self._room = int(chosen[-1]), self._batch_bytes
        self._room -= total_bytes // runs
        return chosen.astype(np.int32)

    def batch_sent(self, partition: int) -> None:
        """Change to another partition if `partition` is the current one."""
        if partition == self._current:
            self.move_on()

    def move_on(self) -> None:
        """Change to another partition."""
        self._room = self._batch_bytes
        if self._partitions > 1:
            step = 1 + self._drawn(self._partitions - 1)
            self._current = (self._current + step) % self._partitions

    def _drawn(self, below: int) -> int:
        """Return a number from 0 to `below` (exclusive), from the seed and the number of calls."""
        self._moves += 1
        return partition_for(f"{self._seed}/{self._moves}".encode(), below)


LEAST_RUN_BYTES = 1 << 14
"""Bytes of keyless records that stay together: Kafka's default for `batch.size`."""

_PIECE_RECORDS = 16_384
_FEW_KEYS = 16
"""Number of keys up to which hashing one by one is cheaper than numpy calls."""


def _hash(key: bytes) -> int:
    """Return the hash of a key, unsigned."""
    state = _mixed(_SEED ^ len(key), key)
    if len(key) & 3:
        state = (state ^ int.from_bytes(key[len(key) & ~3 :], "little")) * _M & _WORD
    state = (state ^ state >> 13) * _M & _WORD
    return state ^ state >> 15


def _mixed(state: int, words: bytes) -> int:
    """Return `state` after mixing in the whole four-byte words of a key."""
    for word in struct.unpack_from(f"<{len(words) >> 2}I", words):
        word = word * _M & _WORD
        state = (state * _M ^ (word ^ word >> 24) * _M) & _WORD
    return state


def _buffers(keys: pa.BinaryArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return the offsets of the keys (one more than keys), and the bytes that they refer to."""
    _, offsets, data = keys.buffers()
    if data is None:
        return np.zeros(len(keys) + 1, dtype=np.int32), np.empty(0, dtype=np.uint8)
    every_offset = np.frombuffer(offsets, dtype=np.int32, count=keys.offset + len(keys) + 1)
    return every_offset[keys.offset :], np.frombuffer(data, dtype=np.uint8)


def _murmur2_piece(
    offsets: npt.NDArray[np.int32], column: npt.NDArray[np.uint8], skip: int
) -> Hashes:
    data = column[offsets[0] : offsets[-1]]
    padded = np.zeros(len(data) + 4, dtype=np.uint8)
    padded[: len(data)] = data
    lengths = np.diff(offsets)
    if lengths.min() == lengths.max():
        return _murmur2_of_one_length(padded, len(lengths), int(lengths[0]), skip)
    words = _words_at_every_byte(padded)
    starts = (offsets[:-1] - offsets[0]).astype(np.intp)
    lengths -= skip
    starts += skip
    whole = lengths >> 2
    state: Hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    for word in range(int(whole.min())):
        _mix(state, words[starts + word * 4])
    _mix_longer(state, words, starts, whole, data)
    _finish_all(state, words[starts + (whole << 2)], (lengths & 3).astype(np.intp))
    return state


def _murmur2_of_one_length(
    padded: npt.NDArray[np.uint8], count: int, length: int, skip: int
) -> Hashes:
    hashed = length - skip
    whole = hashed >> 2
    by_word = np.ndarray(
        (whole + 1, count), dtype="<u4", buffer=padded, offset=skip, strides=(4, length)
    )
    words = np.ascontiguousarray(by_word, dtype=np.uint32)
    state: Hashes = np.full(count, _SEED ^ hashed, dtype=np.uint32)
    for word in words[:whole]:
        _mix(state, word)
    _finish_all(state, words[whole], hashed & 3)
    return state


def _finish_all(state: Hashes, tails: Hashes, rest: npt.NDArray[np.intp] | int) -> None:
    """Turn states after the whole words into hashes, given the word that has the last bytes.

    `rest` is the number of bytes of it that belong to the key, 0 to 3.
    """
    state ^= tails & _TAIL_MASK[rest]
    state *= _TAIL_FACTOR[rest]
    state ^= state >> np.uint32(13)
    state *= np.uint32(_M)
    state ^= state >> np.uint32(15)


def _words_at_every_byte(padded: npt.NDArray[np.uint8]) -> Hashes:
    """Return the four-byte word that begins at each byte, and at the end, of padded bytes.

    Overlapping words take four times the memory, but gathering them is five times as fast as
    gathering unaligned ones.
    """
    overlapping = np.ndarray(len(padded) - 3, dtype="<u4", buffer=padded, strides=(1,))
    return np.ascontiguousarray(overlapping, dtype=np.uint32)


def _mix(state: Hashes, word: Hashes) -> None:
    word *= np.uint32(_M)
    word ^= word >> np.uint32(24)
    word *= np.uint32(_M)
    state *= np.uint32(_M)
    state ^= word


def _mix_longer(
    state: Hashes,
    words: Hashes,
    starts: npt.NDArray[np.intp],
    whole: npt.NDArray[np.int32],
    data: npt.NDArray[np.uint8],
) -> None:
    """Mix in the words that only longer keys have."""
    word = int(whole.min())
    longer = np.flatnonzero(whole > word)
    while len(longer) > _FEW_KEYS:
        partial = state[longer]
        _mix(partial, words[starts[longer] + word * 4])
        state[longer] = partial
        word += 1
        longer = longer[whole[longer] > word]
    for index in longer.tolist():
        start = int(starts[index])
        rest = data[start + word * 4 : start + int(whole[index]) * 4].tobytes()
        state[index] = _mixed(int(state[index]), rest)


_TAIL_MASK = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], dtype=np.uint32)
_TAIL_FACTOR = np.array([1, _M, _M, _M], dtype=np.uint32)
