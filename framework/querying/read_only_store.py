"""`ReadOnlyStore`: the committed state of a store, read from outside of its task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from strandline.changelog.errors import InvalidConfig, InvalidRecord, InvalidRequest, Retriable
from strandline.framework.parts import partitions_asked
from strandline.framework.querying.committed import CommittedSource
from strandline.framework.querying.declared import StoreCodec, as_recorded, form_of
from strandline.framework.querying.groups import GroupQuery, GroupReader
from strandline.framework.querying.messages import StoreDescription
from strandline.framework.querying.workers import Source
from strandline.framework.store import Store
from strandline.framework.streams.group_store import GroupStore
from strandline.framework.streams.rows import StreamRow, rows_of
from strandline.framework.streams.stored_groups import StoredGroups
from strandline.statestore.no_len import NoLen
from strandline.statestore.ordered import FIRST_KEY
from strandline.statestore.reader import KeyRange
from strandline.statestore.spec import UNSET

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

Time = datetime | int | None
"""Start of a window: a datetime, ms since the epoch, or None for no limit."""

_NATIVE = (bytes, bytearray)
"""Types of values that stay as they are in Arrow columns."""
MAX_KEYS_PER_REQUEST = 1_000
"""Maximum number of keys of one request of `get_many`."""


class ReadOnlyStore(NoLen, Generic[K, V]):
    """Committed state of a store; made by `App.query` and `Connection.store`. Thread-safe.

    It reads all partitions, or only the one that was asked for. Each call reads the state of that
    moment: from the workers, or from the changelogs if no worker runs. In the second case the first
    call replays the changelogs into memory, and later ones replay what is new.

    Errors of all methods:
        RequestTimedOut: No worker has served a partition before the deadline.
        KeyInSeveralPartitions: A key has values in several partitions that cannot be merged.
        InvalidRecord: Keys are of another type than declared, or values of another one than given.
        CorruptLog: A stored value is not of the type that the app declares.
        StrandlineError: The log cannot be read.
    """

    def __init__(
        self,
        name: str,
        committed: CommittedSource,
        given: tuple[Any, Any],
        partition: int | None,
        source: Callable[[str], CommittedSource],
    ) -> None:
        """Create a store for reading.

        Args:
            name: Name of the app, a slash, name of the store.
            committed: Committed state of the store.
            given: Types of keys and values, or UNSET.
            partition: Number of the only partition to read; None for all.
            source: Returns the committed state of another store by its name.
        """
        self.name = name
        self._committed = committed
        self._partitions = partitions_asked(name, len(committed.partitions), partition)
        self._given = given
        self._groups = GroupReader(name, committed, self._partitions, source)
        self._known: StoreCodec | None = None
        """Codec by a worker's description of the store; None until a worker has answered."""

    def __repr__(self) -> str:
        return f"ReadOnlyStore({self.name!r})"

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = UNSET) -> Any:
        """Return the value of a key, or a default if it has none.

        Args:
            key: The key.
            default: Value to return if the key has no value. Without it, the default of the store
                is returned, or None if the store has no default.

        Returns:
            The value or the default.

        Raises:
            KeyInSeveralPartitions: Several partitions have values that cannot be merged.
            InvalidRecord: `key` or its value has another type than declared or given.
        """
        return self._committed.ask(self._get, key, default, None)

    def __getitem__(self, key: K) -> V:
        """Return the value of a key, or the store's default if the key has no value.

        Raises:
            KeyError: The key has no value and the store has no default.
        """
        value = self._committed.ask(self._get, key, UNSET, UNSET)
        if value is UNSET:
            raise KeyError(key)
        return value  # type: ignore[no-any-return]

    def __contains__(self, key: K) -> bool:
        """Return True if the key has a value; a default of the store does not count."""
        return self._committed.ask(self._has, key)

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the values of several keys, which takes fewer requests than `get` for each.

        Args:
            keys: The keys; they are requested 1,000 at a time.

        Returns:
            Values by key, in the order of `keys`. Keys without a value are left out.

        Raises:
            KeyInSeveralPartitions: Several partitions have values that cannot be merged.
            InvalidRecord: A key or value has another type than declared or given.
        """
        wanted = list(keys)
        found: dict[K, V] = {}
        for start in range(0, len(wanted), MAX_KEYS_PER_REQUEST):
            some = wanted[start : start + MAX_KEYS_PER_REQUEST]
            found |= self._committed.ask(self._get_some, some)
        return found

    def range(
        self, lower: K | None = None, upper: K | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[K, V]]:
        """Return the entries with keys from `lower` to `upper` (exclusive), in key order.

        Args:
            lower: First key; None for no lower bound. Of a tuple key the first elements suffice.
            upper: End of the range (exclusive); None for no upper bound.
            reverse: Whether to return the entries in descending order.

        Returns:
            Pairs of key and value. They are read page by page while the iterator is consumed, so
            later entries may reflect later commits.

        Raises:
            KeyInSeveralPartitions: Several partitions have values that cannot be merged.
            InvalidRecord: A key or value has another type than declared or given.
            InvalidRequest: A bound is given, and the keys are written as JSON.
        """
        form = self._current_form()
        first = FIRST_KEY if lower is None else form.codec(lower).bound(lower)
        last = None if upper is None else form.codec(upper).bound(upper)
        return self._scan(KeyRange(first, last, reverse))

    def prefix(self, prefix: Any, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Return the entries whose keys begin with `prefix`, in key order.

        Args:
            prefix: Beginning of the keys: a str, bytes, or the first elements of tuple keys.
            reverse: Whether to return the entries in descending order.

        Returns:
            Pairs of key and value, read page by page like those of `range`.

        Raises:
            KeyInSeveralPartitions: Several partitions have values that cannot be merged.
            InvalidRecord: A key or value has another type than declared or given.
            InvalidRequest: The keys are written as JSON, which have no order.
        """
        form = self._current_form()
        return self._scan(KeyRange(*form.codec(prefix).prefix(prefix), reverse))

    def all(self, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Return all entries, in key order.

        Args:
            reverse: Whether to return the entries in descending order.

        Returns:
            Pairs of key and value, read page by page like those of `range`.

        Raises:
            KeyInSeveralPartitions: Several partitions have values that cannot be merged.
            InvalidRecord: A key or value has another type than declared or given.
        """
        return self._scan(KeyRange(reverse=reverse))

    def to_dict(self) -> dict[K, V]:
        """Return all entries, in key order.

        Raises:
            KeyInSeveralPartitions: Several partitions have values that cannot be merged.
            InvalidRecord: A key or value has another type than declared or given, or two keys written as
                JSON are equal in Python, as 1 and 1.0.
        """
        found: dict[K, V] = {}
        for number, (key, value) in enumerate(self.all(), 1):
            found[_hashable(self.name, key)] = value
            if len(found) < number:
                raise _equal_keys(self.name, key)
        return found

    def fetch(self, key: K | Any, start: Time = None, end: Time = None) -> list[StreamRow]:
        """Return the open windows of one group of a stream, by start.

            late.fetch(("JFK", "AA"), start=dt.datetime(2025, 10, 9, tzinfo=dt.UTC))

        A window that is closed has no state: its result is in the topic that the stream writes.
        The windows of a partition are as of one moment between two commits.

        Args:
            key: Key of the group: the value of its column, or a tuple of several.
            start: First start of a window: a datetime (UTC if it has no zone), or ms since the
                epoch; of count windows the number of a row. None, the default, is no limit.
            end: End of the starts (exclusive), like `start`.

        Returns:
            Rows with the columns of the group, `window_start`, `window_end` and the figures, as
            attributes and items. Times are datetimes.

        Raises:
            InvalidRequest: The store is not the state of windows, or `end` is before `start`.
            InvalidRecord: The key or a bound is of another type.
            InvalidConfig: The windows can only be merged by functions of the app (`sl.reducer`).
        """
        query = self._query()
        chosen = replace(query, of=query.groups.range(start, end)).for_group(key)
        return _rows(self._groups.frame(chosen))

    def fetch_all(self, start: Time = None, end: Time = None) -> list[StreamRow]:
        """Return the open windows of all groups of a stream, by start and group.

        Args:
            start: First start of a window, as for `fetch`.
            end: End of the starts (exclusive).

        Returns:
            Rows as those of `fetch`.

        Raises:
            InvalidRequest: The store is not the state of windows, or `end` is before `start`.
            InvalidRecord: A bound is of another type.
            InvalidConfig: The windows can only be merged by functions of the app (`sl.reducer`).
        """
        query = self._query()
        return _rows(self._groups.frame(replace(query, of=query.groups.range(start, end))))

    def to_polars(self) -> pl.DataFrame:
        """Return what `to_arrow` returns as a Polars frame."""
        import polars as pl

        found = pl.from_arrow(self.to_arrow())
        assert isinstance(found, pl.DataFrame)
        return found

    def to_arrow(self) -> pa.Table:
        """Return all entries, in key order, as Arrow columns.

        The state of a stream's aggregation has the columns of the group and the figures; with
        windows, one row for each open window, with `window_start` and `window_end`. Any other store
        has the columns `key` and `value`. Values of a class become structs; tuple keys become lists, or
        structs of `_1`, `_2` … if their elements are of several types.

        Raises:
            KeyInSeveralPartitions: Several partitions have values that cannot be merged.
            InvalidRecord: A key or value has another type than declared or given, or a key is text that
                Arrow cannot hold.
            InvalidConfig: The windows can only be merged by functions of the app (`sl.reducer`).
        """
        import msgspec
        import pyarrow as pa

        # A caller that gives the types of keys or values wants them as they are stored.
        key, value = self._given
        as_declared = isinstance(value, Store) or key is value is UNSET
        query = self._stored_groups() if as_declared else None
        if query is not None:
            return self._groups.frame(query).to_arrow()
        entries = list(self.all())
        plain = [msgspec.to_builtins(value, builtin_types=_NATIVE) for _, value in entries]
        try:
            return pa.table({"key": _plain_keys([key for key, _ in entries]), "value": plain})
        except UnicodeEncodeError as error:
            raise InvalidRecord(
                f"store {self.name!r}: {error.object!r:.100} has a lone surrogate, which text in Arrow "
                "cannot have; read the entries with all()"
            ) from error

    def approximate_num_entries(self) -> int:
        """Return the approximate number of keys.

        Returns:
            Sum of the partitions' estimates. A key that several partitions have counts once each.

        Raises:
            RequestTimedOut: No worker has served a partition before the deadline.
        """
        return self._committed.count(self._partitions)

    # Helpers ----------------------------------------------------------------------------

    def _query(self) -> GroupQuery:
        """Return the query for all of an aggregation. Raise InvalidRequest for other stores.

        Raises Retriable if nothing is recorded of the store.
        """
        query = self._stored_groups()
        if query is None and self._committed.recorded() is None:
            raise Retriable(
                f"store {self.name!r}: no worker of its app has started since its topics were made, so "
                "it is not known yet if it has windows; ask again later"
            )
        if query is None:
            raise InvalidRequest(
                f"store {self.name!r} is not the state of a stream's windows, so it has none to"
                " fetch; read it with get, range or to_polars"
            )
        return query

    def _stored_groups(self) -> GroupQuery | None:
        """Return the query for all of an aggregation of a stream; None for other stores."""
        key, value = self._given
        if isinstance(value, GroupStore):
            return GroupQuery(form_of(self.name, None, key, value), value.groups)
        # The declaration is read for each query, because a reset app may have another one.
        recorded = self._committed.recorded()
        groups = StoredGroups.of_declaration(self.name, recorded)
        if groups is None:
            return None
        return GroupQuery(form_of(self.name, as_recorded(recorded), UNSET, UNSET), groups)

    def _get(
        self,
        description: StoreDescription | None,
        source: Source,
        key: Any,
        default: Any,
        otherwise: Any,
    ) -> Any:
        form = self._known or self._form(description)
        data = self._find(form, source, key)
        if data is not None:
            return form.value_of(data)
        if default is not UNSET:
            return default
        return otherwise if form.default is UNSET else form.default

    def _has(self, description: StoreDescription | None, source: Source, key: Any) -> bool:
        return self._find(self._form(description), source, key) is not None

    def _find(self, form: StoreCodec, source: Source, key: Any) -> bytes | None:
        """Return the stored bytes of a key, merged over partitions; None if it has no value."""
        name = form.key(key)
        values = source.read(self._candidates(form, key), [name])
        return _whole(form, name, {number: value for number, [value] in values.items()})

    def _get_some(
        self, description: StoreDescription | None, source: Source, keys: list[K]
    ) -> dict[K, V]:
        form = self._form(description)
        names: dict[K, bytes] = {}
        for key in keys:
            name = form.key(key)
            if names.setdefault(_hashable(self.name, key), name) != name:
                raise _equal_keys(self.name, key)
        by_partitions: dict[Sequence[int], list[K]] = {}
        for key in names:
            by_partitions.setdefault(self._candidates(form, key), []).append(key)
        found: dict[K, V] = {}
        for numbers, some in by_partitions.items():
            values = source.read(numbers, [names[key] for key in some])
            for at, key in enumerate(some):
                data = _whole(form, names[key], {n: part[at] for n, part in values.items()})
                if data is not None:
                    found[key] = form.value_of(data)
        return {key: found[key] for key in names if key in found}

    def _candidates(self, form: StoreCodec, key: Any) -> Sequence[int]:
        """Return the partitions that can have a key."""
        if len(self._partitions) == 1 or not form.may_be_placed:
            return self._partitions
        home = self._committed.home(key)
        return self._partitions if home is None else (home,)

    def _scan(self, bounds: KeyRange) -> Iterator[tuple[K, V]]:
        form = self._current_form()
        streams = [self._committed.stream(number, bounds) for number in self._partitions]
        found = form.parts.scan(streams, reverse=bounds.reverse)
        return ((form.key_of(key), form.value_of(data)) for key, data in found)

    def _current_form(self) -> StoreCodec:
        return self._committed.ask(lambda description, _source: self._form(description))

    def _form(self, description: StoreDescription | None) -> StoreCodec:
        if description is None:
            recorded = as_recorded(self._committed.declaration())
            return self._typed(form_of(self.name, recorded, *self._given))
        if self._known is None:
            self._known = self._typed(form_of(self.name, description, *self._given))
        return self._known

    def _typed(self, form: StoreCodec) -> StoreCodec:
        """Return a codec whose figures have the types of a stream's results, if it is for those."""
        if form.shown is None or self._given[1] is not UNSET:
            return form
        try:
            groups = StoredGroups.of_declaration(self.name, self._committed.recorded())
        except InvalidConfig:
            return form  # Another version recorded the declaration, so the types are unknown.
        shown = form.shown
        return (
            form
            if groups is None
            else replace(form, shown=lambda state: groups.typed(shown(state)))
        )


def _whole(form: StoreCodec, name: bytes, stored: Mapping[int, bytes | None]) -> bytes | None:
    """Return the bytes of a key, merged over its partitions; None if it has no value."""
    found = {number: data for number, data in stored.items() if data is not None}
    return form.parts.whole(name, found) if found else None


def _plain_keys(keys: list[Any]) -> list[Any]:
    """Return keys as an Arrow column takes them."""
    if not keys or not isinstance(keys[0], tuple):
        return keys
    kinds = {type(item) for key in keys for item in key if item is not None}
    if len(kinds) < 2:
        return keys
    return [{f"_{number}": item for number, item in enumerate(key, 1)} for key in keys]


def _hashable(store: str, key: Any) -> Any:
    """Return a key of a dict. Raises InvalidRecord for one that is an object."""
    try:
        hash(key)
    except TypeError:
        raise InvalidRecord(
            f"store {store!r}: the key {key!r:.80} is an object, so it cannot be a key of a dict; "
            "use all()"
        ) from None
    return key


def _equal_keys(store: str, key: Any) -> InvalidRecord:
    return InvalidRecord(
        f"store {store!r}: keys are different as JSON, and equal in Python ({key!r:.80}); use all(), "
        "or get for each of them"
    )


def _rows(frame: pl.DataFrame) -> list[StreamRow]:
    return list(rows_of(frame, frame.columns))
