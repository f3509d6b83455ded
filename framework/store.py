"""Store handles: the objects through which a handler reads and writes its state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, overload

from strandline.changelog.errors import InvalidRequest, NotInTask
from strandline.framework.handlers import check_handler
from strandline.framework.parts import Merge
from strandline.framework.session import Session
from strandline.statestore.edit import Edit
from strandline.statestore.no_len import NoLen
from strandline.statestore.spec import UNSET, StoreLimits, StoreSpec
from strandline.statestore.typed_store import TypedStore

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.statestore.column_store import ColumnStore
    from strandline.statestore.scalar_columns import Column

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

SCALARS = (int, float, bool, str, bytes)
"""Types of values of which a list is a column; of other types it is a list of objects."""


class StoreSettings(TypedDict, total=False):
    """Settings that every kind of store takes; `App.store` describes them."""

    ttl_ms: int | None
    engine: Literal["rocksdb", "memory"]
    limits: StoreLimits
    upgrade: Callable[[Any], Any] | None


class Store(NoLen, Generic[K, V]):
    """State of one task, by key: declared by `App.store`, used inside the task's handlers.

    Each partition of the task's input has a part of the store of its own. A handler reads and
    writes the part of its record's partition. Its changes are committed together with its input
    offsets and outputs, and undone if it raises. All methods raise NotInTask outside of the task's
    handlers; `App.query` and `strandline.connect` read a store from elsewhere.

        seen[key] += 1               # the default, or a KeyError, if the key has no value
        seen.get(key), key in seen
        del seen[key]                # a KeyError if the key has no value

    Keys and values must be of the declared types. A value that can be changed is returned as a
    copy: use `edit`, or store it again. There is no `len()`; see `approximate_num_entries`.
    """

    def __init__(self, session: Session, spec: StoreSpec[K, V]) -> None:
        for argument in ("default_factory", "upgrade"):
            function = getattr(spec, argument)
            if function is not None:
                what = f"the {argument} of store {spec.name!r}"
                check_handler(what, function, may_be_async=False)
        self.session = session
        """Session of the app that declared the store."""
        self.spec = spec
        self.task: str | None = None
        """Name of the task that the store belongs to; None until a task lists it."""
        self._bound: ContextVar[TypedStore[K, V] | None] = ContextVar(f"store {spec.name}")
        self._current = self._bound.get

    def __repr__(self) -> str:
        return f"Store({self.name!r})"

    @property
    def name(self) -> str:
        """Name of the store."""
        return self.spec.name

    @property
    def changelog_topic(self) -> str:
        """Name of the topic that every change of the store is written to."""
        return self.spec.changelog_topic(self.session.app)

    # `get`, `put` and `__getitem__` repeat the fast path of TypedStore, because each call
    # that is saved makes a handler 60 ns faster. All other cases go to the TypedStore.

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = UNSET) -> Any:
        """Return the value of a key.

        Args:
            key: Key of the declared type.
            default: Result for a key without a value. By default it is the store's default, or None
                if the store has none.

        Returns:
            The value; a copy if it can be changed.

        Raises:
            NotInTask: No handler of the store's task is running.
            InvalidRecord: The key is not of the declared type.
        """
        store = self._current(None)
        if store is None:
            raise self._not_in_task()
        if type(key) is store.exact:
            held = store.young.get(key)
            if type(held) is store.plain:
                return held
        return store.get(key, default)

    def put(self, key: K, value: V) -> None:
        """Set the value of a key; `store[key] = value` does the same.

        Args:
            key: Key of the declared type.
            value: Value of the declared type.

        Raises:
            NotInTask: No handler of the store's task is running.
            InvalidRecord: The key or the value is not of the declared type.
            TypeError: The value is None; use `delete` to remove a key.
        """
        store = self._current(None)
        if store is None:
            raise self._not_in_task()
        if type(key) is store.exact and type(value) is store.unchecked:
            store.changed.append(key)
            store.puts.append(value)
            store.young[key] = value
        else:
            store.put(key, value)

    def __getitem__(self, key: K) -> V:
        """Return the value of a key, or the store's default. Raise KeyError if there is neither."""
        store = self._current(None)
        if store is None:
            raise self._not_in_task()
        if type(key) is store.exact:
            held = store.young.get(key)
            if type(held) is store.plain:
                return held  # type: ignore[return-value]
        return store[key]

    __setitem__ = put

    def delete(self, key: K) -> None:
        """Remove a key. A key without a value is no error.

        Args:
            key: Key of the declared type.

        Raises:
            NotInTask: No handler of the store's task is running.
            InvalidRecord: The key is not of the declared type.
        """
        self._partition().delete(key)

    def __delitem__(self, key: K) -> None:
        """Remove a key. Raise KeyError if it has no value."""
        del self._partition()[key]

    def __contains__(self, key: K) -> bool:
        """Return True if the key has a value; a default does not count."""
        return key in self._partition()

    def delete_range(self, lower: K | None = None, upper: K | None = None) -> None:
        """Remove all of the partition's keys from `lower` to `upper` (exclusive).

        This is much faster than deleting the keys of a scan one by one, and later scans need no
        time for the deleted keys. Until the commit each deleted key needs some 300 bytes of memory,
        and the changelog gets a deletion for each.

        Args:
            lower: First key, or the leading elements of a tuple key. None, the default, is no
                limit.
            upper: End (exclusive), like `lower`. None, the default, is no limit.

        Raises:
            NotInTask: No handler of the store's task is running.
            InvalidRecord: A bound is not of the declared type.
        """
        self._partition().delete_range(lower, upper)

    def delete_prefix(self, prefix: Any) -> None:
        """Remove all of the partition's keys that begin with `prefix`, as `delete_range` does.

        Args:
            prefix: A str, bytes, or a tuple with the first elements of tuple keys.

        Raises:
            NotInTask: No handler of the store's task is running.
            InvalidRecord: The prefix is not of the declared type, or keys of it have no prefixes.
        """
        self._partition().delete_prefix(prefix)

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Set the value of a key that has none.

        Args:
            key: Key of the declared type.
            value: Value of the declared type.

        Returns:
            The value that the key has already, which then stays; None if `value` was set.

        Raises:
            NotInTask: No handler of the store's task is running.
            InvalidRecord: The key or the value is not of the declared type.
        """
        return self._partition().put_if_absent(key, value)

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the values of several keys with one look-up in the engine.

        Args:
            keys: Keys of the declared type.

        Returns:
            Values by key. Keys without a value are missing; defaults do not count.
        """
        return self._partition().get_many(keys)

    def get_batch(self, keys: Any) -> Column:
        """Return the values of a column of keys, in a task with `batch=True`.

            counts.get_batch(batch.keys)

        Args:
            keys: Arrow array, Polars or pandas Series, NumPy array, or list; the same key may be
                there several times. Tuple keys are structs with their elements in order, a
                DataFrame with a column for each, or a list of tuples.

        Returns:
            An Arrow array aligned with `keys`: structs, if values have fields. A key without a
            value has the store's default, else null. Values without an Arrow type, such as dict,
            are a list.

        Raises:
            NotInTask: No handler of the store's task is running.
            InvalidRequest: The task handles single records.
            InvalidRecord: A key is null or not of the declared type.
        """
        return columns_of(self).get_batch(self._key_column(keys))

    def put_batch(self, keys: Any, values: Any) -> None:
        """Set the values of a column of keys, in a task with `batch=True`.

        Args:
            keys: Column of keys, as for `get_batch`. Of equal keys the last value is kept.
            values: Column of values, aligned with `keys`: an Arrow array, a Series, a NumPy array
                or a list. Values with fields are structs or a DataFrame.

        Raises:
            NotInTask: No handler of the store's task is running.
            InvalidRequest: The task handles single records.
            InvalidRecord: A key or a value is null or not of the declared type. Nothing is changed
                then.
        """
        columns_of(self).put_batch(self._key_column(keys), self._value_column(values))

    def delete_batch(self, keys: Any) -> None:
        """Remove a column of keys, as far as they exist, in a task with `batch=True`.

        Args:
            keys: Column of keys, as for `get_batch`.

        Raises:
            NotInTask: No handler of the store's task is running.
            InvalidRequest: The task handles single records.
            InvalidRecord: A key is null or not of the declared type. Nothing is changed then.
        """
        columns_of(self).delete_batch(self._key_column(keys))

    def edit(self, key: K) -> Edit[K, V]:
        """Return a context manager for changing a mutable value in place.

            with store.edit(key) as value:
                value.append(1)

        The value is stored when the block ends without an error. A key without a value begins with
        the store's default.

        Args:
            key: Key of the declared type.

        Returns:
            The context manager, which gives the value.

        Raises:
            KeyError: The key has no value, and the store has no default.
            NotInTask: No handler of the store's task is running.
            InvalidRecord: The key, or the value at the end of the block, is not of the declared
                type.
        """
        return self._partition().edit(key)

    def range(
        self, lower: K | None = None, upper: K | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[K, V]]:
        """Yield the partition's entries from `lower` to `upper` (exclusive), in key order.

        A scan shows the store as it was when the scan began; changing the store meanwhile is
        allowed.

        Args:
            lower: First key, or the leading elements of a tuple key. None, the default, is no
                limit.
            upper: End (exclusive), like `lower`. None, the default, is no limit.
            reverse: True to begin with the last entry.

        Returns:
            Pairs of key and value.
        """
        return self._partition().range(lower, upper, reverse=reverse)

    def prefix(self, prefix: Any, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Yield the partition's entries whose key begins with `prefix`, in key order.

        Args:
            prefix: A str, bytes, or a tuple of the first elements of tuple keys.
            reverse: True to begin with the last entry.

        Returns:
            Pairs of key and value.
        """
        return self._partition().prefix(prefix, reverse=reverse)

    def reverse(self, lower: K | None = None, upper: K | None = None) -> Iterator[tuple[K, V]]:
        """Yield the entries from `lower` to `upper` (exclusive), the last one first.

        Args:
            lower: First key; None for no limit. Of a tuple key, leading elements are enough.
            upper: End of the range (exclusive); None for no limit. As for `lower`.

        Returns:
            Pairs of key and value.
        """
        return self._partition().reverse(lower, upper)

    def all(self, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Yield all entries of the partition, in the order of the keys.

        Args:
            reverse: True to begin with the last entry.

        Returns:
            Pairs of key and value.
        """
        return self._partition().all(reverse=reverse)

    def approximate_num_entries(self) -> int:
        """Return about how many keys the partition has, without reading them."""
        return self._partition().approximate_num_entries()

    def shown(self, value: Any) -> Any:
        """Return the value that users see for a stored value.

        Args:
            value: Value as it is stored.
        """
        return value

    @property
    def merge(self) -> Merge[Any] | None:
        """Function that merges the values of one key in several partitions, or None."""
        return None

    def _key_column(self, keys: Any) -> pa.Array:
        from strandline.framework.given_columns import key_column

        return key_column(self.spec.key, keys, f"store {self.name!r}: the keys")

    def _value_column(self, values: Any) -> Column:
        from strandline.changelog.client.given import given_array, objects_of

        if self.spec.value not in SCALARS and (objects := objects_of(values)) is not None:
            return objects
        return given_array(values, f"store {self.name!r}: the values")

    def _partition(self) -> TypedStore[K, V]:
        store = self._current(None)
        if store is None:
            raise self._not_in_task()
        return store

    def _not_in_task(self) -> NotInTask:
        if self.task is None:
            return NotInTask(
                f"store {self.name!r} belongs to no task; name it in @app.task(..., stores=[...])"
            )
        return NotInTask(
            f"store {self.name!r} was used outside of the handlers of task {self.task!r}, where"
            " there is no partition and no transaction. To read what is committed, from"
            f" anywhere, use app.query({self.name})"
        )


# For the framework ----------------------------------------------------------------------


def bind_store(handle: Store[Any, Any], store: TypedStore[Any, Any] | None) -> None:
    """Let a handle use `store` in this thread or asyncio task; None unbinds it."""
    handle._bound.set(store)


def columns_of(handle: Store[K, V]) -> ColumnStore[K, V]:
    """Return the store of the running handler's partition, whose values are columns.

    Raises NotInTask, and InvalidRequest if the task handles single records.
    """
    from strandline.statestore.column_store import ColumnStore

    store = handle._partition()
    if not isinstance(store, ColumnStore):
        raise InvalidRequest(
            f"store {handle.name!r}: task {handle.task!r} handles single records, and columns are "
            "for tasks with batch=True; use get_many, or declare the task with batch=True"
        )
    return store
