"""`sl.connect`: the stores of apps, read from any process.

    with sl.connect("data/shop") as log:
        totals = log.store("shop/totals")
        totals["york"], totals.get("hull"), list(totals.range("l", "m"))

docs/semantics.md, "Queries", says what is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, Self, TypeVar, overload

from strandline import changelog
from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.credentials import token_of
from strandline.changelog.errors import InvalidRequest, UnknownTopic
from strandline.changelog.location import is_encrypted, is_served
from strandline.changelog.log import Log
from strandline.framework.parts import partitions_asked
from strandline.framework.querying.committed import CommittedSource
from strandline.framework.querying.connections import Connections
from strandline.framework.querying.declared import StoreCodec, as_recorded, check_given, form_of
from strandline.framework.querying.folded import ReplayedSource
from strandline.framework.querying.messages import StoreDescription
from strandline.framework.querying.placement import Placement
from strandline.framework.querying.workers import Fleet, Source
from strandline.framework.store import Store
from strandline.statestore.ordered import FIRST_KEY
from strandline.statestore.reader import KeyRange
from strandline.statestore.spec import UNSET, changelog_topic

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
T = TypeVar("T")

DEADLINE = 10.0
KEYS_AT_ONCE = 1_000


def connect(
    log: str | os.PathLike[str] | Log | Broker,
    *,
    token: str | None = None,
    deadline: float = DEADLINE,
    clock: Clock | None = None,
) -> Connection:
    """A connection to the apps of a log: a folder, `strandline://host:port`, or an open log.

    `deadline` is how many seconds a query waits for a partition that nobody has at the moment. `token` is
    what the log asks for, and the workers on other machines; by default that of the URL or of STRANDLINE_TOKEN.
    Make one for a process and keep it: it is thread-safe, and its connections are used again. Raises
    what `changelog.open` does, and InvalidConfig for a folder that holds no log: reading makes none.
    """
    from strandline.changelog.flight import address  # it imports Flight

    workers = Connections(token or token_of())
    if isinstance(log, str | os.PathLike):
        encrypted = is_encrypted(log)
        workers = Connections(token or token_of(), encrypted=encrypted)
        if is_served(os.fspath(log)):
            served = address.parse_url(os.fspath(log))
            workers = Connections(token or served.token, served.ca, encrypted=encrypted)
        opened = changelog.open(log, role="attach_or_spawn", token=token, clock=clock, create=False)
        return Connection(opened.broker, workers, deadline, clock or SystemClock(), opened.close)
    broker = log.broker if isinstance(log, Log) else log
    return Connection(broker, workers, deadline, clock or SystemClock(), lambda: None)


class Connection:
    """The apps of one log, for queries: made by `connect`. Thread-safe."""

    def __init__(
        self,
        broker: Broker,
        connections: Connections,
        deadline: float,
        clock: Clock,
        close: Callable[[], None],
    ) -> None:
        self.broker = broker
        """The log that the apps are on."""
        self._deadline = deadline
        self._clock = clock
        self._close = close
        self._connections = connections

    @overload
    def store(self, name: Store[K, V], *, partition: int | None = ...) -> ReadOnlyStore[K, V]: ...
    @overload
    def store(
        self, name: str, *, key: type[K], value: type[V], partition: int | None = ...
    ) -> ReadOnlyStore[K, V]: ...
    @overload
    def store(
        self, name: str, *, key: Any = ..., value: Any = ..., partition: int | None = ...
    ) -> ReadOnlyStore[Any, Any]: ...
    def store(
        self,
        name: str | Store[Any, Any],
        *,
        key: Any = UNSET,
        value: Any = UNSET,
        partition: int | None = None,
    ) -> ReadOnlyStore[Any, Any]:
        """Return a store of an app. Keep it: it remembers what it has seen.

        Args:
            name: The app's name, a slash, the store's name. Or the store itself, where this
                program has the app's code: its types, default and kind are known then.
            key: Type of the keys, instead of the one that the app has declared.
            value: Type or serde of the values. Without it, values of a class are plain data.
            partition: Read only what this partition has: one part of a store that is not keyed
                as the input of its task is. By default all partitions are put together.

        Raises:
            InvalidRequest: There is no such store, or no such partition.
            InvalidConfig: What is stored cannot be read as `key` and `value`.
        """
        if isinstance(name, Store):
            name, value = f"{name.app.name}/{name.name}", name
        return ReadOnlyStore(name, self.committed(name), key, value, partition)

    def committed(self, name: str) -> CommittedSource:
        """What the store "app/store" holds, as bytes. Raises InvalidRequest if there is none."""
        app, slash, short = name.partition("/")
        topic = changelog_topic(app, short)
        try:
            partitions = self.broker.topic(topic).partitions if slash else 0
        except UnknownTopic:
            partitions = 0
        if not partitions:
            raise InvalidRequest(f"there is no store {name!r}, as app/store; {self._changelogs()}")
        fleet = Fleet(app, self.broker, self._connections, self._clock, self._deadline)
        folded = ReplayedSource(self.broker, topic, partitions, app=app, wait=self._deadline)
        placement = Placement(self.broker, app, short, partitions, self._clock)
        return CommittedSource(short, fleet, folded, placement, partitions)

    def close(self) -> None:
        """Let go of the log and of all workers; harmless when repeated."""
        self._connections.close()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _changelogs(self) -> str:
        suffix = changelog_topic("", "")[1:]
        names = [info.name for info in self.broker.topics() if info.name.endswith(suffix)]
        return f"changelogs here: {', '.join(sorted(names)) or 'none'}"


class ReadOnlyStore(Generic[K, V]):
    """The committed state of a store: made by `Connection.store`. Thread-safe.

    It reads all partitions, or the one that was asked for. Every method asks anew. They raise
    RequestTimedOut when no worker has a partition until the deadline, KeyInSeveralPartitions for a
    key whose values cannot be merged, InvalidRecord for keys or values of another type, and what
    reading the log does.
    """

    def __init__(
        self,
        name: str,
        committed: CommittedSource,
        key: Any,
        value: Any,
        partition: int | None = None,
    ) -> None:
        self.name = name
        self._committed = committed
        self._partitions = partitions_asked(name, len(committed.partitions), partition)
        check_given(name, committed.recorded(), key, value)
        self._given = (key, value)
        self._known: StoreCodec | None = None
        """How to read it, once a worker has said how it was declared."""

    def __repr__(self) -> str:
        return f"ReadOnlyStore({self.name!r})"

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = UNSET) -> Any:
        """The value of a key; else `default`, else the store's own default, else None."""
        return self._ask(lambda form, source: self._get(form, source, key, default, None))

    def __getitem__(self, key: K) -> V:
        """The value of a key; else the store's default. Raises KeyError if it has none."""
        value = self._ask(lambda form, source: self._get(form, source, key, UNSET, UNSET))
        if value is UNSET:
            raise KeyError(key)
        return value  # type: ignore[no-any-return]

    def __contains__(self, key: K) -> bool:
        return self._ask(lambda form, source: self._find(form, source, key)) is not None

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """The values of those keys that have one."""
        wanted = list(keys)
        found: dict[K, V] = {}
        for start in range(0, len(wanted), KEYS_AT_ONCE):
            some = wanted[start : start + KEYS_AT_ONCE]
            found |= self._ask(partial(self._get_some, keys=some))
        return found

    def range(
        self, lower: K | None = None, upper: K | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[K, V]]:
        """Entries from `lower` up to but without `upper`, in the order of the keys.

        None is no limit. Of tuple keys the leading elements are enough. `reverse` begins with
        the last. It is read in pages, as it is gone through.
        """
        form = self._ask(lambda form, _source: form)
        first = FIRST_KEY if lower is None else form.codec(lower).bound(lower)
        last = None if upper is None else form.codec(upper).bound(upper)
        return self._scan(KeyRange(first, last, reverse))

    def prefix(self, prefix: Any, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Entries whose key begins with `prefix`: a str, bytes, or a tuple's first elements."""
        form = self._ask(lambda form, _source: form)
        return self._scan(KeyRange(*form.codec(prefix).prefix(prefix), reverse))

    def all(self, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """All entries, in the order of the keys."""
        return self._scan(KeyRange(reverse=reverse))

    def approximate_num_entries(self) -> int:
        """About how many keys there are; one that several partitions have counts in each."""
        return self._committed.count(self._partitions)

    # Helpers ----------------------------------------------------------------------------

    def _get(self, form: StoreCodec, source: Source, key: Any, default: Any, otherwise: Any) -> Any:
        data = self._find(form, source, key)
        if data is not None:
            return form.value_of(data)
        if default is not UNSET:
            return default
        return otherwise if form.default is UNSET else form.default

    def _find(self, form: StoreCodec, source: Source, key: Any) -> bytes | None:
        """The stored value of a key."""
        name = form.key(key)
        values = source.read(self._may_have(key), [name])
        found = {number: value for number, [value] in values.items() if value is not None}
        return form.parts.whole(name, found) if found else None

    def _get_some(self, form: StoreCodec, source: Source, keys: list[K]) -> dict[K, V]:
        names = {key: form.key(key) for key in keys}
        together: dict[Sequence[int], list[K]] = {}
        for key in names:
            together.setdefault(self._may_have(key), []).append(key)
        found: dict[K, V] = {}
        for numbers, some in together.items():
            values = source.read(numbers, [names[key] for key in some])
            for at, key in enumerate(some):
                here = {n: data for n, part in values.items() if (data := part[at]) is not None}
                if here:
                    found[key] = form.value_of(form.parts.whole(names[key], here))
        return {key: found[key] for key in names if key in found}

    def _may_have(self, key: Any) -> Sequence[int]:
        """The partitions to ask for a key."""
        if len(self._partitions) == 1:
            return self._partitions
        home = self._committed.home(key)
        return self._partitions if home is None else (home,)

    def _scan(self, bounds: KeyRange) -> Iterator[tuple[K, V]]:
        form = self._ask(lambda form, _source: form)
        streams = [self._committed.stream(number, bounds) for number in self._partitions]
        found = form.parts.scan(streams, reverse=bounds.reverse)
        return ((form.key_of(key), form.value_of(data)) for key, data in found)

    def _ask(self, question: Callable[[StoreCodec, Source], T]) -> T:
        return self._committed.ask(lambda told, source: question(self._form(told), source))

    def _form(self, told: StoreDescription | None) -> StoreCodec:
        if told is None:
            return form_of(self.name, as_recorded(self._committed.declaration()), *self._given)
        if self._known is None:
            self._known = form_of(self.name, told, *self._given)
        return self._known
