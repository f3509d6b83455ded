"""Rows of a store that is the state of a stream's aggregation: its groups, or its open windows.

Each partition is read as of one moment. Then the last closed window is read, so a window that is
closed in between is left out, and never returned with a part of its panes: a commit makes the last
closed window visible before it deletes panes (`stage_plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from strandline.changelog.errors import InvalidRecord
from strandline.framework.querying.committed import (
    FIRST_PAGE_ENTRIES,
    CommittedSource,
    entries,
)
from strandline.framework.querying.declared import StoreCodec
from strandline.framework.querying.workers import Source
from strandline.framework.streams.operators.panes import LAST_CLOSED
from strandline.framework.streams.stored_groups import Group, StoredGroups, WindowRange, closed_of
from strandline.statestore.keys import key_codec
from strandline.statestore.ordered import FIRST_KEY
from strandline.statestore.reader import KeyRange
from strandline.statestore.serdes import MessagePack

if TYPE_CHECKING:
    import polars as pl

ALL = WindowRange()
"""Range of all windows."""


@dataclass(frozen=True)
class GroupQuery:
    """Groups or windows that are wanted of a store."""

    form: StoreCodec
    """Codec of the store, whose keys have a declared type."""
    groups: StoredGroups
    """Layout of the store."""
    of: WindowRange = ALL
    """Range of the windows."""
    group: Group | None = None
    """The only group that is wanted; None for all."""

    def for_group(self, key: Any) -> GroupQuery:
        """Return the query for one group only. Raises InvalidRecord for a key of another type."""
        assert self.form.keys is not None
        kind = self.groups.group_kind(self.form.keys.declared)
        try:
            admitted = key_codec(kind).admit(key)
        except InvalidRecord as error:
            raise InvalidRecord(
                f"{self.form.name!r}: {error}. The key of a group is {', '.join(self.groups.keys)}"
            ) from None
        group = admitted if len(self.groups.keys) > 1 else (admitted,)
        return GroupQuery(self.form, self.groups, self.of, group)

    def read(self, partition: int, source: Source) -> dict[bytes, bytes]:
        """Return the entries of a partition that have the state, and perhaps others.

        Of one group the keys are looked up, if they are known and the range has many of others.
        """
        bounds = self._bounds()
        page, rest = source.page(partition, bounds, FIRST_PAGE_ENTRIES)
        if rest is None:
            return dict(page)
        names = self._lookups(partition, bounds, source)
        if names is None:
            found = entries(source, partition, rest)
            return {**dict(page), **{name: data for name, _, data in found}}
        values = source.read([partition], names).get(partition, [])
        pairs = zip(names, values, strict=True)
        return {name: data for name, data in pairs if data is not None}

    def states(self, found: Mapping[bytes, bytes], closed: int | None = None) -> pl.DataFrame:
        """Return the states in entries of one partition, for `StoredGroups.rows`.

        Args:
            found: Encoded keys and values, in the order of keys.
            closed: Last closed window; see `StoredGroups.states`.
        """
        group_of = self.groups.group_of
        pairs = [(self.form.key_of(name), data) for name, data in found.items()]
        if self.group is not None:
            pairs = [pair for pair in pairs if group_of(pair[0]) == self.group]
        states = [self.form.values.loads(data) for _, data in pairs]
        return self.groups.states([key for key, _ in pairs], states, closed)

    def _bounds(self) -> KeyRange:
        """Return the range of the store's keys that have the state."""
        codec = self.form.codec(())
        first: bytes = FIRST_KEY
        last: bytes | None = None
        if self.group is not None and self.groups.is_by_group:
            if not codec.is_tuple:  # the key of the store is the value of the only column
                name = codec.encode(self.group[0])
                return KeyRange(name, name + b"\x00")
            first, last = codec.prefix(self.group)
        lower, upper = self.groups.bounds(self.of, self.group)
        first = first if lower is None else codec.bound(lower)
        return KeyRange(first, last if upper is None else codec.bound(upper))

    def _lookups(self, partition: int, bounds: KeyRange, source: Source) -> list[bytes] | None:
        """Return all keys that the group may have in a range; None if the range must be read."""
        if self.group is None or self.groups.is_by_group:
            return None
        ends = []
        for reverse in (False, True):
            page, _ = source.page(partition, KeyRange(bounds.lower, bounds.upper, reverse), 1)
            ends += [self.form.key_of(name)[0] for name, _ in page[:1]]
        if len(ends) < 2:
            return []  # all of it has been deleted meanwhile
        beginnings = self.groups.lookups(*ends)
        if beginnings is None:
            return None
        return [self.form.key((*beginning, *self.group)) for beginning in beginnings]


class GroupReader:
    """Reads the groups and windows of one store. Thread-safe."""

    def __init__(
        self,
        name: str,
        committed: CommittedSource,
        partitions: range,
        source: Callable[[str], CommittedSource],
    ) -> None:
        """Create a reader.

        Args:
            name: Name of the app, a slash, name of the store.
            committed: Committed state of the store.
            partitions: Partitions to read.
            source: Returns the committed state of another store by its name.
        """
        self._name = name
        self._committed = committed
        self._partitions = partitions
        self._source = source
        self._closed: CommittedSource | None = None
        """Store of the last closed window; None until it is needed."""

    def frame(self, query: GroupQuery) -> pl.DataFrame:
        """Return the open windows, or without windows the groups, in order.

        Raises:
            InvalidRecord: A key or a state is not as declared.
            InvalidConfig: Windows cannot be merged without the functions of the app.
            KeyInSeveralPartitions: Parts of a group cannot be merged.
        """
        query.groups.check_readable()
        parts = [self._part(number, query) for number in self._partitions]
        return query.groups.rows(parts, query.of)

    def _part(self, partition: int, query: GroupQuery) -> pl.DataFrame:
        """Return the states of one partition."""
        found = self._committed.at_once(partition, partial(query.read, partition))
        if not query.groups.is_merged:
            return query.states(found)
        if self._closed is None:
            self._closed = self._source(closed_of(self._name))
        return query.states(found, last_closed(self._closed, partition))


def last_closed(source: Source, partition: int) -> int | None:
    """Return the last closed window of a partition, from the store of it; None if there is none."""
    values = source.read([partition], [key_codec(str).encode(LAST_CLOSED)]).get(partition, [None])
    return None if values[0] is None else MessagePack().loads(values[0])
