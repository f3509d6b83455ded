"""Which stores of a task have every key on the partition where the input's partitioner puts it.

A query of one key may ask that one partition then; elsewhere it must ask all of them, because
several may have the key. A store is *placed* in a partition while every key that was ever put there
has that partition, by the hash that chose the partitions of the task's input. It is decided beside
each commit, over the column of changed keys, and goes into the metadata of the committed offset:
so it is of the same moment as what it is said of, and is known after a restart.

Only stores of `str` and `bytes` keys are placed: stores keep other types in other bytes than topics do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from strandline.changelog.client.partitioner import partition_for, partitions_for
from strandline.changelog.errors import StrandlineError
from strandline.statestore.keys import key_codec
from strandline.statestore.reader import KeyRange
from strandline.statestore.store import AnyStore

FEW = 32
"""Up to so many keys are hashed one at a time, which is faster than a handful of calls on a column."""


class Placed:
    """The stores of one task instance that are placed. Belongs to the worker's thread."""

    def __init__(
        self,
        partition: int,
        partitions: int,
        stores: Sequence[AnyStore],
        committed: Mapping[str, int],
    ) -> None:
        """Begin with the stores that are empty, or were placed as of the last commit.

        `stores` are restored; `committed` is what the last commit says (`positions.placed_of`).
        """
        self._partition = partition
        self._partitions = partitions
        self._names = {
            store.spec.name
            for store in stores
            if key_codec(store.spec.key).declared in (str, bytes)
            and (committed.get(store.spec.name) == partitions or _is_empty(store))
        }
        self.counts: Mapping[str, int] = {}
        """Number of partitions for which each placed store is, by the store's name."""
        self._count()

    def look(self, store: AnyStore, keys: pa.BinaryArray) -> None:
        """Note the changed keys of a store: one that belongs elsewhere ends its being placed."""
        if store.spec.name in self._names and not self._are_here(keys):
            self._names.discard(store.spec.name)
            self._count()

    def _are_here(self, keys: pa.BinaryArray) -> bool:
        count = self._partitions
        if count == 1:
            return True
        if len(keys) <= FEW:
            here = self._partition
            return all(partition_for(key[1:], count) == here for key in keys.to_pylist())
        found = partitions_for(_without_tags(keys), count)
        return bool((found == self._partition).all())

    def _count(self) -> None:
        self.counts = dict.fromkeys(sorted(self._names), self._partitions)


def home(key: object, partitions: int) -> int | None:
    """The partition that a key is on in a placed store; None for keys of which that is not known.

    >>> home("foobar", 4), home(7, 4)
    (2, None)
    """
    try:
        data = key.encode() if isinstance(key, str) else key
    except UnicodeEncodeError:
        return None
    return partition_for(data, partitions) if isinstance(data, bytes) else None


def _without_tags(keys: pa.BinaryArray) -> pa.BinaryArray:
    """The keys without the first byte of each."""
    _, offset_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[keys.offset :][: len(keys) + 1]
    kept = np.ones(offsets[-1] - offsets[0], np.bool_)
    kept[offsets[:-1] - offsets[0]] = False
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]][kept]
    ends = (offsets - offsets[0] - np.arange(len(offsets))).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(keys), buffers)


def _is_empty(store: AnyStore) -> bool:
    try:
        page = store.reader().page(KeyRange(), 1)
    except StrandlineError:
        return False  # whoever reads the store is told
    return page is not None and not page.entries and page.rest is None
