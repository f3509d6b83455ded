"""One partition of a store whose values are columns, for tasks that handle whole batches.

`open_column_store` shows the layers in one expression. From the top:

    ColumnStore      Arrow columns of keys and values, and single ones as in `PartitionStore`
    SlotTable        keys with slots, and arrays of values by slot
    SlotChanges      slots changed by the running transaction, with an undo log
    Changelogged     committed changes that are not checkpointed yet
    Engine           everything up to the last checkpoint, with its changelog position

The changelog's records, checkpoints, restores, queries and files are those of a `PartitionStore`, so
a store can be opened as either of them. The module `store` describes what the worker calls.

A call costs time in proportion to its rows, and a commit to the keys that it changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.changelog.arrays import of_items, of_numbers
from strandline.changelog.clock import Clock
from strandline.changelog.errors import CorruptLog, InvalidConfig, InvalidRecord
from strandline.changelog.settings import LONG_MAX
from strandline.statestore.changelogged import ChangelogBatch, Changelogged
from strandline.statestore.committing import CommittingStore
from strandline.statestore.dirty import DirtyKeys
from strandline.statestore.engine import Entry
from strandline.statestore.exact_sums import SumOverflow, added
from strandline.statestore.key_columns import KeyColumns
from strandline.statestore.keys import Never
from strandline.statestore.layers import Above, Change
from strandline.statestore.memory import MemoryBudget
from strandline.statestore.name_index import SlotArray
from strandline.statestore.ranges import are_many
from strandline.statestore.scalar_columns import Block, Column
from strandline.statestore.slot_changes import SlotChanges
from strandline.statestore.slots import ABSENT, PRESENT, UNKNOWN, SlotRows, SlotTable, States
from strandline.statestore.spec import UNSET, StoreSpec
from strandline.statestore.store import OpenOptions, open_parts
from strandline.statestore.stored_columns import StoredColumns
from strandline.statestore.typed_store import StoreTypes
from strandline.statestore.value_columns import value_columns
from strandline.statestore.values import DELETED, ValueCodec

K = TypeVar("K")
V = TypeVar("V")

SCAN_ROWS = 65_536
"""Default number of entries that a scan by batches converts to columns at once."""


def open_column_store(
    spec: StoreSpec[K, V],
    folder: str | os.PathLike[str] | None = None,
    **options: Unpack[OpenOptions],
) -> ColumnStore[K, V]:
    """Open one partition of a store whose values are columns. See `open_store`.

    >>> store = open_column_store(StoreSpec("n", key=str, value=int, engine="memory"))
    >>> store.add_batch(pa.array(["LHR", "JFK", "LHR"])).to_pylist()
    [2, 1, 2]
    >>> store.get_batch(pa.array(["JFK", "CDG"])).to_pylist(), store["LHR"]
    ([1, None], 2)
    """
    types, engine, counters, clock, memory = open_parts(spec, folder, **options)
    changelogged = Changelogged(engine, counters, loose_bytes=LONG_MAX)
    return ColumnStore(types, changelogged, clock, memory)


class ColumnStore(CommittingStore[K, V]):
    """State of one partition: a sorted mapping that is read and written by columns.

    Keys and values are Arrow columns, of the types that `statestore.key_columns` and
    `statestore.value_columns` list. Values of a type without an Arrow column, such as dict, are
    Python lists instead. Ints have at most 64 bits.

    All methods for single keys work as in `PartitionStore`; they take longer.
    """

    __slots__ = ("_changed", "_key_columns", "_stored_columns", "_table")

    def __init__(
        self,
        types: StoreTypes[K, V],
        committed: Changelogged,
        clock: Clock,
        memory: MemoryBudget,
    ) -> None:
        # No values are held as objects: every look-up of a single key reaches `_load`.
        super().__init__(types, {}, committed, clock, memory)
        self.unchecked = Never
        self._key_columns = KeyColumns(types.keys, types.spec.name)
        self._stored_columns = StoredColumns(types.spec, types.values)
        limit = min(types.spec.limits.cache_bytes, self._share.cache_bytes)
        self._table = SlotTable(self._stored_columns.dtypes, limit)
        self._changed = SlotChanges(self._table)

    # Columns ----------------------------------------------------------------------------

    def get_batch(self, keys: pa.Array) -> Column:
        """Return the value of each key.

        Args:
            keys: Column of keys, in any order; the same key may be there several times.

        Returns:
            A column aligned with `keys`; a list if values have no Arrow type. A key without a value
            has the store's default, else null. A default factory is called once for the batch.

        Raises:
            InvalidRecord: A key is null or not of the declared type.
        """
        found = self._key_columns.distinct(keys)
        rows, valid = self._values_of(self._table.read(self._load_all(found.names)))
        self._age()
        if not found.are_rows:
            rows, valid = tuple(column[found.codes] for column in rows), valid[found.codes]
        return self._stored_columns.column(rows, valid)

    def contains_batch(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        """Return True for each key that has a value of its own, not a default.

        >>> store = open_column_store(StoreSpec("n", key=str, value=int, engine="memory"))
        >>> store.put("JFK", 1)
        >>> store.contains_batch(pa.array(["JFK", "CDG", "JFK"])).tolist()
        [True, False, True]

        Raises:
            InvalidRecord: A key is null or not of the declared type.
        """
        found = self._key_columns.distinct(keys)
        valid = self._valid(self._table.read(self._load_all(found.names)))
        self._age()
        return valid[found.codes]

    def put_batch(self, keys: pa.Array, values: Column) -> None:
        """Set the values of keys. Of equal keys the last value is kept.

        Args:
            keys: Column of keys.
            values: Column of values, aligned with `keys`; a list if they have no Arrow type.

        Raises:
            InvalidRecord: A key or value is null or not of the declared type, or the columns differ
                in length. Nothing is changed then.
        """
        self._writable()
        self._check_lengths(keys, values, "values")
        found = self._key_columns.distinct(keys)
        rows = self._stored_columns.block(values)
        if not found.are_rows:
            last = found.last_rows()
            rows = tuple(column[last] for column in rows)
        self._change_named(found.names, PRESENT, rows)

    def update_batch(self, keys: pa.Array, update: Callable[[Column], Column]) -> int:
        """Replace the values of distinct keys by what a function makes of them.

        Keys are looked up once, which `get_batch` and `put_batch` would do twice.

        Args:
            keys: Column of keys without repetitions.
            update: Called once with the values as `get_batch` returns them; returns the new values,
                aligned with `keys`. It must not use the store.

        Returns:
            Number of keys that had no value. A value that has expired counts as one until it is
            removed.

        Raises:
            InvalidRecord: A key is null, not of the declared type, or there twice; or a new value
                is null or not of the declared type. Nothing is changed then.

        >>> store = open_column_store(StoreSpec("n", key=str, value=int, engine="memory"))
        >>> store.update_batch(pa.array(["LHR"]), lambda old: old.fill_null(5))
        1
        >>> store["LHR"]
        5
        """
        self._writable()
        found = self._key_columns.distinct(keys)
        if not found.are_rows:
            raise InvalidRecord(
                f"store {self.spec.name!r}: {len(keys)} keys are {len(found.names)} distinct ones; "
                "update_batch() needs each key once"
            )
        before = self._table.read(self._load_all(found.names))
        values = update(self._stored_columns.column(*self._values_of(before)))
        self._check_lengths(keys, values, "values")
        self._change(before, PRESENT, self._stored_columns.block(values))
        return int((before.states != PRESENT).sum())

    def delete_batch(self, keys: pa.Array) -> None:
        """Remove keys, as far as they exist.

        Raises:
            InvalidRecord: A key is null or not of the declared type. Nothing is changed then.
        """
        self._writable()
        self._change_named(self._key_columns.distinct(keys).names, ABSENT, None)

    def add_batch(self, keys: pa.Array, by: pa.Array | int = 1) -> pa.Array:
        """Add numbers to the values of keys, in a store of ints.

        A key without a value begins with the store's default, else with 0.

        Args:
            keys: Column of keys; the numbers of equal keys are all added.
            by: Column of ints, aligned with `keys`; one int for all rows, by default 1.

        Returns:
            For each row the value of its key after the whole batch.

        Raises:
            InvalidRecord: A key or number is null or not an int, or a result has more than 64 bits.
                Nothing is changed then.
            InvalidConfig: The store's values are not declared as int.
        """
        self._writable()
        numbers = self._numbers(keys, by)
        found = self._key_columns.distinct(keys)
        before = self._table.read(self._load_all(found.names))
        rows, valid = self._values_of(before)
        try:
            new = added(np.where(valid, rows[0], 0), found.codes, numbers)
        except SumOverflow as error:
            key = self._keys.decode(found.names[error.code].as_py())
            raise InvalidRecord(f"store {self.spec.name!r}: key {key!r}: {error}") from error
        self._change(before, PRESENT, self._stored_columns.with_expiry((new,)))
        return of_numbers(new if found.are_rows else new[found.codes])

    def changed_rows(self) -> tuple[pa.Array, Column]:
        """Return the keys changed since the last commit, with their values as of now.

        Returns:
            A column of distinct keys in the order of their first changes, and a column of their
            values: null where the key was deleted.
        """
        latest = self._changed.latest()
        values = self._stored_columns.column(latest.rows, self._valid(latest))
        return self._key_columns.decode(self._table.names(latest.slots)), values

    def scan_batch(self, lower: K | None = None, upper: K | None = None) -> tuple[pa.Array, Column]:
        """Return the entries from `lower` to `upper` as columns, in the order of the keys.

        Args:
            lower: First key; None for no limit. Of a tuple key, leading elements are enough.
            upper: End of the range (exclusive); None for no limit. As for `lower`.

        Returns:
            A column of keys, and a column of their values.
        """
        entries = self._stored(*self._bounds(lower, upper), reverse=False)
        return self._columns(self._unexpired(entries))

    def scan_batches(
        self, lower: K | None = None, upper: K | None = None, *, rows: int = SCAN_ROWS
    ) -> Iterator[tuple[pa.Array, Column]]:
        """Return an iterator of the entries that `scan_batch` returns, in several batches.

        Args:
            lower: First key, as for `scan_batch`.
            upper: End of the range (exclusive), as for `scan_batch`.
            rows: Maximum number of entries in a batch.

        Returns:
            An iterator of columns of keys and of their values, as of this call.
        """
        entries = self._unexpired(self._stored(*self._bounds(lower, upper), reverse=False))
        return map(self._columns, iter(lambda: list(islice(entries, rows)), []))

    def take_batch(self, lower: K | None = None, upper: K | None = None) -> tuple[pa.Array, Column]:
        """Remove the entries from `lower` to `upper`, and return them as `scan_batch` does.

        The range is listed once, which `scan_batch` and `delete_range` would do twice.

        >>> store = open_column_store(StoreSpec("n", key=str, value=int, engine="memory"))
        >>> store.put_batch(pa.array(["JFK", "LHR", "CDG"]), pa.array([1, 2, 3]))
        >>> [column.to_pylist() for column in store.take_batch(None, "K")], len(store.scan_batch()[0])
        ([['CDG', 'JFK'], [3, 1]], 1)
        """
        bounds = self._bounds(lower, upper)
        self._writable()
        names = self._names(*bounds)
        before = self._table.read(self._load_all(names))
        valid = self._valid(before)
        kept = np.flatnonzero(valid)
        found = self._stored_columns.column(tuple(each[kept] for each in before.rows), valid[kept])
        keys = self._key_columns.decode(names.take(of_numbers(kept)))
        self._change(before, ABSENT, None)
        self._note_range(len(names), *bounds)
        return keys, found

    # Used by the worker -----------------------------------------------------------------

    def mark(self) -> int:
        """Return the length of the undo log, to which `rollback` can go back."""
        return len(self._changed)

    def rollback(self, mark: int) -> None:
        """Undo all changes since `mark`, because the handler of that batch has raised."""
        self._changed.rollback(mark)
        self._age()

    @property
    def uncommitted_bytes(self) -> int:
        """Approximate bytes of memory that the uncommitted changes use."""
        return self._changed.nbytes

    @property
    def cached_bytes(self) -> int:
        """Approximate bytes of the keys and values in memory."""
        return self._table.nbytes

    def prefetch(self, keys: Iterable[Any]) -> tuple[int, int]:
        """Read the values of keys that are not in memory, in one call of the engine.

        Keys that are not of the store's type are left out.

        Returns:
            The number of keys read, and the bytes that the cache needs for them.
        """
        exact, before = self._keys.exact, self._table.nbytes
        fitting: list[Any] = [key for key in dict.fromkeys(keys) if type(key) is exact]
        names = self._keys.encode_all(fitting)
        cold = np.flatnonzero(self._table.find(names) < 0)
        self.lookups.read_ahead([fitting[place] for place in cold.tolist()])
        self._load_all(names.take(of_numbers(cold)))
        nbytes = self._table.nbytes - before
        self._age()
        return len(cold), nbytes

    def prepare(self, keys: Sequence[K]) -> None:
        """Read the values of keys that are not in memory, in one call of the engine."""
        names = self._keys.encode_all(list(dict.fromkeys(keys)))
        self.lookups.missed(int((self._table.find(names) < 0).sum()))
        self._load_all(names)
        self._age()

    def absorb(self, step: DirtyKeys) -> None:
        """Add the changes of a step that was kept apart (`statestore.step_store`)."""
        if not step.changed:
            return
        self._writable()
        self.revision += 1
        names = self._keys.encode_all(step.latest())
        data = of_items(map(self._values.dumps, step.latest().values()), pa.binary())
        rows = self._stored_columns.decode(data.drop_null().to_pylist())
        self._change_named(names.filter(data.is_valid()), PRESENT, rows)
        self._change_named(names.filter(data.is_null()), ABSENT, None)

    # Single keys ------------------------------------------------------------------------

    def held(self, key: Any) -> Any:
        """Return the value of a key as of now, in the form in which it is held."""
        if self.lookups.in_sample:
            self.lookups.looked_up(key)
        return self._load(key)

    def put_admitted(self, key: Any, value: Any) -> None:
        """Set the value of a key."""
        data = self._values.dumps(self._hold(value))
        assert data is not None
        try:
            rows = self._stored_columns.decode([data])
        except CorruptLog as error:
            raise InvalidRecord(str(error)) from error
        self._change_named(_binaries([self._keys.encode(key)]), PRESENT, rows)

    def _load(self, key: Any) -> Any:
        found = self._table.read(self._slots_of(key))
        self._age()
        return self._stored_columns.held(found.rows) if self._valid(found)[0] else DELETED

    def _slots_of(self, key: Any) -> SlotArray:
        """Return the slot of a key, after reading its value if it is not in memory."""
        name = self._keys.encode(key)
        slot = self._table.find_one(name)
        if slot >= 0:
            return np.array([slot])
        self.lookups.single_reads += 1
        self.lookups.missed(1)
        return self._load_all(_binaries([name]))

    def _remove(self, key: Any) -> None:
        self._change_named(_binaries([self._keys.encode(key)]), ABSENT, None)

    def _delete_all(self, lower: bytes, upper: bytes | None) -> None:
        self._writable()
        names = self._names(lower, upper)
        self._change_named(names, ABSENT, None)
        self._note_range(len(names), lower, upper)

    def _note_range(self, count: int, lower: bytes, upper: bytes | None) -> None:
        """Note that the last change has deleted the keys of a range, if they are many."""
        if are_many(count):
            self._changed.add_range(lower, upper)

    def _names(self, lower: bytes, upper: bytes | None) -> pa.Array:
        """Return the encoded keys of [lower, upper) that have a value, sorted."""
        names = self._changed.names(lower, upper)
        exists = self._table.states(self._table.find(_binaries(names))) == PRESENT
        # Only whether a change is a deletion matters here.
        changes = [
            (name, b"" if there else None) for name, there in zip(names, exists, strict=True)
        ]
        scan = self._scan(self._above_with(changes), lower, upper, reverse=False)
        return _binaries([name for name, _ in scan])

    def _unexpired(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        if self._values.expiry == "none":
            return iter(entries)
        return (entry for entry in entries if not self._values.expired(entry[1]))

    def _columns(self, entries: Iterable[Entry]) -> tuple[pa.Array, Column]:
        """Return entries as a column of keys, and a column of their values."""
        names, data = zip(*pairs, strict=True) if (pairs := list(entries)) else ((), ())
        rows = self._stored_columns.decode(data)
        keys = self._key_columns.decode(_binaries(names))
        return keys, self._stored_columns.column(rows, np.ones(len(names), np.bool_))

    # Slots ------------------------------------------------------------------------------

    def _valid(self, found: SlotRows) -> npt.NDArray[np.bool_]:
        """Return True for each slot that has a value which has not expired."""
        return self._stored_columns.valid(found.states == PRESENT, found.rows)

    def _values_of(self, found: SlotRows) -> tuple[Block, npt.NDArray[np.bool_]]:
        """Return the values of slots, with defaults, and True for each that has one."""
        valid = self._valid(found)
        default = UNSET if valid.all() else self._default(UNSET)
        if default is UNSET:
            return found.rows, valid
        values = self._stored_columns.one(default)
        rows = zip(found.rows, values, strict=True)
        filled = tuple(np.where(valid, column, value) for column, value in rows)
        return filled, np.ones(len(valid), np.bool_)

    def _load_all(self, names: pa.Array) -> SlotArray:
        """Return the slots of distinct keys, after reading the values that are not in memory."""
        slots = self._table.find_or_add(names)
        unknown = slots[self._table.states(slots) == UNKNOWN]
        if len(unknown):
            self._fill(unknown)
        return slots

    def _fill(self, slots: SlotArray) -> None:
        """Read the committed values of slots."""
        if self._committed.finds_nothing:
            # Every key that is committed from now on has a slot, until slots are freed.
            self._table.is_complete = True
        if self._table.is_complete:
            self._table.assign(slots, ABSENT, None)
            return
        data = self._committed.get_many(self._table.names(slots).to_pylist())
        exists = np.array([each is not None for each in data], np.bool_)
        try:
            rows = self._stored_columns.decode([each for each in data if each is not None])
        except CorruptLog as error:
            self._values.undecodable = error
            raise
        self._table.assign(slots[exists], PRESENT, rows)
        self._table.assign(slots[~exists], ABSENT, None)

    def _change(self, before: SlotRows, states: States | int, rows: Block | None) -> None:
        """Change slots, of which the table has `before`."""
        if len(before.slots):
            self._changed.change(before, states, rows)
            self._age()

    def _change_named(self, names: pa.Array, state: int, rows: Block | None) -> None:
        """Change distinct keys."""
        self._change(self._table.read(self._table.find_or_add(names)), state, rows)

    def _encoded(self, found: SlotRows) -> pa.Array:
        """Return the stored bytes of slots; null where there is no value."""
        exists = found.states == PRESENT
        if exists.all():
            return self._stored_columns.encode(found.rows)
        data = self._stored_columns.encode(tuple(column[exists] for column in found.rows))
        return data.take(pa.array(np.cumsum(exists) - 1, mask=~exists))

    # Overrides --------------------------------------------------------------------------

    def _num_changed(self) -> int:
        return self._table.num_dirty

    def _num_read(self) -> int:
        return self._table.additions

    def _changes(self) -> ChangelogBatch | None:
        latest = self._changed.latest()
        if not len(latest.slots):
            return None
        names = self._table.names(latest.slots)
        return ChangelogBatch(names, self._encoded(latest), self._changed.ranges, latest.slots)

    def _above(self, lower: bytes, upper: bytes | None, *, reverse: bool) -> Above:
        names = self._changed.names(lower, upper)
        values = self._encoded(self._table.read(self._table.find(_binaries(names)))).to_pylist()
        return self._above_with(list(zip(names, values, strict=True))[:: -1 if reverse else 1])

    def _above_with(self, changes: list[Change]) -> Above:
        """Return changes for a scan. Where it finds nothing, later scans need not look."""
        changed = self._changed
        return Above(changes, changed.ranges, partial(changed.note_empty, changed.moment))

    def _remove_expired(self, names: list[bytes]) -> None:
        slots = self._table.find_or_add(_binaries(names))
        clean = slots[~self._table.is_dirty(slots)]
        self._change(self._table.read(clean), ABSENT, None)

    def _finalize(self, drained: ChangelogBatch) -> None:
        """Do nothing: the changed slots have the values already."""

    def _limit_cache(self, nbytes: int) -> None:
        self._table.limit(nbytes)
        self._age()

    def _age(self) -> None:
        if self._table.is_full:
            # Look-ups skip loose batches, which is correct only while the slots have their keys.
            self._committed.fold()
            self._table.evict()

    def _clear_cache(self) -> None:
        self._committed.fold()
        self._table.clear()

    def _begin(self) -> None:
        super()._begin()
        self._changed.clear()

    # Checks -----------------------------------------------------------------------------

    def _check_lengths(self, keys: pa.Array, values: Any, what: str) -> None:
        if len(keys) != len(values):
            raise InvalidRecord(
                f"store {self.spec.name!r}: {len(keys)} keys and {len(values)} {what}; give a value "
                "for each key"
            )

    def _numbers(self, keys: pa.Array, by: pa.Array | int) -> npt.NDArray[np.int64] | int:
        """Return the numbers of `add_batch` after checking them."""
        if self._values.declared is not int:
            raise InvalidConfig(
                f"store {self.spec.name!r}: add_batch() is for stores of ints; declare value=int"
            )
        if type(by) is int:
            return by
        if not isinstance(by, pa.Array | pa.ChunkedArray):
            raise InvalidRecord(
                f"store {self.spec.name!r}: numbers to add are an int or a column of ints, got {by!r}"
            )
        self._check_lengths(keys, by, "numbers")
        numbers = value_columns(ValueCodec(int, self.spec.name)).block(by)[0]
        return numbers.astype(np.int64, copy=False)


def _binaries(items: Sequence[bytes]) -> pa.Array:
    return of_items(items, pa.binary())
