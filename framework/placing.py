"""Placed stores: those with every key on the partition that the input's partitioner selects for it.

A query for one key of a placed store needs to ask only that partition. For other stores it must ask
all of them, because several may have the key. A store is *placed* in a partition while every key
ever put there hashes to that partition. Each commit checks this over the column of changed keys and
records it in the metadata of the committed offset. The record is therefore as of the same moment as
the state, and is known after a restart.

Only stores with `str` or `bytes` keys can be placed: other types have other bytes in a store than
in a topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from strandline.changelog.client.partitioner import partition_for, partitions_for
from strandline.changelog.errors import StrandlineError
from strandline.statestore.keys import key_codec
from strandline.statestore.reader import KeyRange
from strandline.statestore.store import AnyStore

_TAG_BYTES = 1
"""Bytes of the type tag before the key's own bytes."""


class Placed:
    """The placed stores of one task instance. Not thread-safe."""

    def __init__(
        self,
        partition: int,
        partitions: int,
        stores: Sequence[AnyStore],
        committed: Mapping[str, int],
    ) -> None:
        """Start with the stores that are empty or were placed as of the last commit.

        Args:
            partition: Number of the instance's partition.
            partitions: Number of partitions of the task's input.
            stores: The restored stores of the instance.
            committed: Placed stores as of the last commit (`positions.placed_of`).
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
        """Number of partitions over which each placed store's keys are hashed, by store name."""
        self._count()

    def check_changed(self, store: AnyStore, keys: pa.BinaryArray) -> None:
        """Check the changed keys of a store: one that hashes elsewhere ends its being placed."""
        if store.spec.name in self._names and not self._all_hash_here(keys):
            self._names.discard(store.spec.name)
            self._count()

    def _all_hash_here(self, keys: pa.BinaryArray) -> bool:
        """Return True if all keys, without their type tags, hash to this partition."""
        count = self._partitions
        if count == 1:
            return True
        found = partitions_for(keys, count, skip=_TAG_BYTES)
        return bool((found == self._partition).all())

    def _count(self) -> None:
        self.counts = dict.fromkeys(sorted(self._names), self._partitions)


def home(key: object, partitions: int) -> int | None:
    """Return the partition of a key in a placed store; None for a key that such stores cannot have.

    >>> home("foobar", 4), home(7, 4)
    (2, None)
    """
    try:
        data = key.encode() if isinstance(key, str) else key
    except UnicodeEncodeError:
        return None
    return partition_for(data, partitions) if isinstance(data, bytes) else None


def _is_empty(store: AnyStore) -> bool:
    try:
        page = store.reader.page(KeyRange(), 1)
    except StrandlineError:
        return False  # a task that reads the store gets the same error
    return page is not None and not page.entries and page.rest is None
