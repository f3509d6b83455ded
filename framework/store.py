"""Store handles: what a handler reads and writes its state through."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, overload

from strandline.changelog.errors import NotInTask
from strandline.framework.handlers import check_handler
from strandline.framework.parts import Merge
from strandline.statestore.edit import Edit
from strandline.statestore.no_len import NoLen
from strandline.statestore.spec import UNSET, StoreLimits, StoreSpec
from strandline.statestore.store import PartitionStore

if TYPE_CHECKING:
    from strandline.framework.app import App

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class StoreSettings(TypedDict, total=False):
    """What may be set on every kind of store; see `App.store`."""

    ttl_ms: int | None
    engine: Literal["rocksdb", "memory"]
    limits: StoreLimits
    upgrade: Callable[[Any], Any] | None


class Store(NoLen, Generic[K, V]):
    """State of one task, by key: made by `App.store`, used inside the task's handlers.

    Each partition of the task's input has its own; a handler sees that of its record's
    partition. What the methods do is said at `statestore.PartitionStore`; all of them raise
    NotInTask outside of a handler.
    """

    def __init__(self, app: App, spec: StoreSpec[K, V]) -> None:
        if spec.default_factory is not None:
            what = f"the default_factory of store {spec.name!r}"
            check_handler(what, spec.default_factory, may_be_async=False)
        self.app = app
        self.spec = spec
        self.task: str | None = None
        """The task it belongs to."""
        self._bound: ContextVar[PartitionStore[K, V] | None] = ContextVar(f"store {spec.name}")
        self._current = self._bound.get

    def __repr__(self) -> str:
        return f"Store({self.name!r})"

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def changelog_topic(self) -> str:
        """The topic that every change is written to."""
        return self.spec.changelog_topic(self.app.name)

    # What a hot get and put do is repeated here from PartitionStore: every call that is spared
    # makes a handler 60 ns faster. Whatever is not plain goes on to the method itself.

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = UNSET) -> Any:
        """The value of a key; else `default`, else the store's own default, else None."""
        store = self._current(None)
        if store is None:
            raise self._not_in_task()
        if type(key) is store.exact:
            held = store.young.get(key)
            if type(held) is store.plain:
                return held
        return store.get(key, default)

    def put(self, key: K, value: V) -> None:
        """Set the value of a key; `store[key] = value` does the same."""
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
        """Remove a key, if it is there."""
        self._partition().delete(key)

    def __delitem__(self, key: K) -> None:
        del self._partition()[key]

    def __contains__(self, key: K) -> bool:
        return key in self._partition()

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Set the value of a key that has none; return the one it has otherwise."""
        return self._partition().put_if_absent(key, value)

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """The values of those keys that have one."""
        return self._partition().get_many(keys)

    def edit(self, key: K) -> Edit[K, V]:
        """Change a mutable value in place: `with store.edit(key) as value: …`."""
        return self._partition().edit(key)

    def range(
        self, lower: K | None = None, upper: K | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[K, V]]:
        """Entries from `lower` up to but without `upper`, in the order of the keys."""
        return self._partition().range(lower, upper, reverse=reverse)

    def prefix(self, prefix: Any, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Entries whose key begins with `prefix`: a str, bytes, or a tuple's first elements."""
        return self._partition().prefix(prefix, reverse=reverse)

    def reverse(self, lower: K | None = None, upper: K | None = None) -> Iterator[tuple[K, V]]:
        """`range` from its last entry to its first."""
        return self._partition().reverse(lower, upper)

    def all(self, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """All entries of the partition, in the order of the keys."""
        return self._partition().all(reverse=reverse)

    def approximate_num_entries(self) -> int:
        """About how many keys the partition has."""
        return self._partition().approximate_num_entries()

    def shown(self, value: Any) -> Any:
        """A stored value as users see it."""
        return value

    @property
    def merge(self) -> Merge[Any] | None:
        """How stored values that partitions have of one key become one; None if they cannot."""
        return None

    def bind(self, store: PartitionStore[Any, Any] | None) -> None:
        """Let the handle mean `store`, in this thread or asyncio task; None: nothing."""
        self._bound.set(store)

    def _partition(self) -> PartitionStore[K, V]:
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
