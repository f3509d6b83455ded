"""From a stretch of a changelog to its last record of each key, sorted: by columns.

Sorting is what a large restore would spend most of its time on. Byte strings are compared as
machine words: behind the prefix that all keys share, each key is cut into 8-byte big-endian
words, padded with zeros, and its length decides between keys that differ only in padding.
Most keys need one or two words. Longer ones are left to Arrow's sort, which is stable too.
"""

from __future__ import annotations

from itertools import takewhile

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Octets = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Order = npt.NDArray[np.int64]

MAX_WORDS = 4


def latest_per_key(keys: pa.Array, values: pa.Array) -> tuple[list[bytes], list[bytes | None]]:
    """The last value of each key, by ascending keys.

    >>> keys = pa.array([b"b", b"a", b"b"])
    >>> latest_per_key(keys, pa.array([b"1", b"2", None], pa.binary()))
    ([b'a', b'b'], [b'2', None])
    """
    if len(keys) < _SMALL:
        last = dict(zip(keys.to_pylist(), values.to_pylist(), strict=True))
        names = sorted(last)
        return names, [last[name] for name in names]
    keys = keys.cast(pa.binary()) if keys.type != pa.binary() else keys
    order = pa.array(_stable_order(keys))
    ordered = keys.take(order)
    is_last = pa.concat_arrays([pc.not_equal(ordered[:-1], ordered[1:]), pa.array([True])])
    if is_last.false_count:
        ordered, order = ordered.filter(is_last), order.filter(is_last)
    return ordered.to_pylist(), values.take(order).to_pylist()


def _stable_order(keys: pa.Array) -> Order:
    """Positions of the keys in ascending order, those of equal keys ascending too."""
    data, starts, lengths = _buffers(keys)
    skip = _shared_prefix(keys)
    starts, lengths = starts + skip, lengths - skip
    longest = int(lengths.max())
    if longest > 8 * MAX_WORDS:
        return np.asarray(pc.sort_indices(keys)).astype(np.int64)
    if int(lengths.min()) == longest:
        return _lexical(
            _words_of_one_length(data, int(starts[0]), skip + longest, longest, len(keys))
        )
    words = [_word(data, starts, lengths, at) for at in range(0, longest, 8)]
    return _lexical([*words, lengths.astype(np.uint64)])


def _lexical(words: list[Words]) -> Order:
    if len(words) <= 1:
        return np.argsort(words[0], kind="stable")
    return np.lexsort(words[::-1])


def _buffers(keys: pa.Array) -> tuple[Octets, Order, Order]:
    _, offset_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    wide = offsets.astype(np.int64)
    data = np.frombuffer(data_buffer or b"", np.uint8)
    return data if len(data) else np.zeros(1, np.uint8), wide[:-1], np.diff(wide)


def _shared_prefix(keys: pa.Array) -> int:
    """How many leading bytes all keys share: those that the least and the greatest do."""
    extremes = pc.min_max(keys)
    pairs = zip(extremes["min"].as_py(), extremes["max"].as_py(), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _words_of_one_length(
    data: Octets, start: int, stride: int, length: int, count: int
) -> list[Words]:
    """The words of `count` keys, each `length` bytes long and `stride` from the last."""
    padded = np.zeros((count, max(8, -(-length // 8) * 8)), np.uint8)
    for place in range(length):
        padded[:, place] = data[start + place :: stride][:count]
    return list(padded.view(">u8").astype(np.uint64).T)


def _word(data: Octets, starts: Order, lengths: Order, at: int) -> Words:
    """Bytes `at` … `at + 8` of each key as a number; zeros where it has ended."""
    word = np.zeros(len(starts), np.uint64)
    last = len(data) - 1
    for place in range(at, at + 8):
        byte = np.where(place < lengths, data[np.minimum(starts + place, last)], 0)
        word = (word << np.uint64(8)) | byte.astype(np.uint64)
    return word


_SMALL = 1_000
