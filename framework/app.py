"""An app: topics, stores and tasks under one name, and how they are run.

The declarations touch nothing. The log is opened when it is first needed (`run`, `append`,
`query` …), stays open until `close` or the end of the program, and topics are created then.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from strandline.changelog import location
from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.closing import CloseOnce
from strandline.framework.aggregates import Counter, Grouped
from strandline.framework.container import running
from strandline.framework.container.worker import Worker
from strandline.framework.declarations import Declarations
from strandline.framework.formats.choice import AnySerde, Name
from strandline.framework.formats.registry import SchemaRegistry, registry_of
from strandline.framework.formats.wire import SerdeForm
from strandline.framework.options import Guarantee, Options
from strandline.framework.record import Record
from strandline.framework.runnable import Runnable
from strandline.framework.store import Store, StoreSettings
from strandline.framework.task import OnError, TaskSpec, check_stores, dead_letter_topic
from strandline.framework.topic import Topic
from strandline.statestore.aggregates import Aggregate, Aggregates
from strandline.statestore.serdes import Serde
from strandline.statestore.spec import UNSET, StoreSpec

if TYPE_CHECKING:
    from strandline.changelog.client.producer import Producer
    from strandline.framework.query import StoreView

K = TypeVar("K")
V = TypeVar("V")
H = TypeVar("H", bound=Callable[..., Any])


DEFAULT_LOG = "./data"


class App(Runnable):
    """Stateful stream processing over one log.

    `log` is a folder, a URL, or an open log; the environment variable STRANDLINE_LOG
    overrides it. Stores keep their files in `<state_dir>/<name>`: by default `state/` in the
    log's folder, or in the current one if the log is a URL; with a log that is passed in open
    and no `state_dir` they are in memory. The name is also the consumer group, and begins the names
    of internal topics.

    Processes that run the same app share its partitions. One that was not heard of for
    `session_timeout_ms`, or that was busy with one record for `max_poll_interval_ms`, has
    lost its own to the others. `standby_replicas` of the others keep a copy of its stores, and are
    the first to get its partitions. With the environment variable STRANDLINE_INSTANCE it is a static
    member (KIP-345), whose partitions wait for its return for a session timeout.

    Its stores are read from other processes of this machine by `connect`. `application_server`, as
    "host:port" ("tcp://…" or "tls://…?certificate=…&key=…" beyond this machine), lets others do so that
    show the token of the environment variable STRANDLINE_TOKEN.

    `registry` is where the schemas of Avro and Protobuf values are kept, a URL or a `SchemaRegistry`; the
    environment variable STRANDLINE_SCHEMA_REGISTRY overrides it.
    """

    def __init__(
        self,
        name: str,
        *,
        log: str | os.PathLike[str] | Broker | None = None,
        processing_guarantee: Guarantee = "exactly_once",
        commit_interval_ms: int = 100,
        commit_records: int = 100_000,
        transaction_timeout_ms: int = 10_000,
        session_timeout_ms: int = 10_000,
        max_poll_interval_ms: int = 300_000,
        standby_replicas: int = 0,
        application_server: str | None = None,
        state_dir: str | os.PathLike[str] | None = None,
        durability: Literal["fsync", "os"] = "fsync",
        registry: SchemaRegistry | str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.declared = Declarations(name)
        self.log = os.environ.get("STRANDLINE_LOG") or (DEFAULT_LOG if log is None else log)
        if isinstance(self.log, str | os.PathLike):
            location.check(self.log)
        self.registry = registry_of(os.environ.get("STRANDLINE_SCHEMA_REGISTRY") or registry)
        self.options = Options(
            processing_guarantee=processing_guarantee,
            commit_interval_ms=commit_interval_ms,
            commit_records=commit_records,
            transaction_timeout_ms=transaction_timeout_ms,
            session_timeout_ms=session_timeout_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            standby_replicas=standby_replicas,
            application_server=application_server,
            instance=os.environ.get("STRANDLINE_INSTANCE") or None,
        )
        self.state_dir = state_dir
        self.durability = durability
        self.clock: Clock = clock or SystemClock()
        self._opening = threading.RLock()
        self._opened: running.OpenLog | None = None
        self._worker: Worker | None = None
        self.declared.is_running = lambda: self._worker is not None

    def __repr__(self) -> str:
        return f"App({self.name!r})"

    @property
    def name(self) -> str:
        return self.declared.app

    # Declaring ------------------------------------------------------------------------

    @overload
    def topic(
        self,
        name: str,
        *,
        key: str,
        value: type[V],
        timestamp: str | None = ...,
        partitions: int | None = ...,
        serde: Serde[V] | SerdeForm | Name | None = ...,
        key_serde: AnySerde | None = ...,
        config: Mapping[str, str] | None = ...,
    ) -> Topic[Any, V]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key: type[K],
        value: type[V],
        timestamp: str | None = ...,
        partitions: int | None = ...,
        serde: Serde[V] | SerdeForm | Name | None = ...,
        key_serde: Serde[K] | SerdeForm | Name | None = ...,
        config: Mapping[str, str] | None = ...,
    ) -> Topic[K, V]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        value: type[V],
        timestamp: str | None = ...,
        partitions: int | None = ...,
        serde: Serde[V] | SerdeForm | Name | None = ...,
        config: Mapping[str, str] | None = ...,
    ) -> Topic[str, V]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key: Any = ...,
        value: Any = ...,
        timestamp: str | None = ...,
        partitions: int | None = ...,
        serde: AnySerde | None = ...,
        key_serde: AnySerde | None = ...,
        config: Mapping[str, str] | None = ...,
    ) -> Topic[Any, Any]: ...
    def topic(
        self,
        name: str,
        *,
        key: Any = str,
        value: Any = Any,
        timestamp: str | None = None,
        partitions: int | None = None,
        serde: AnySerde | None = None,
        key_serde: AnySerde | None = None,
        config: Mapping[str, str] | None = None,
    ) -> Topic[Any, Any]:
        """Declare a topic; it is created when it does not exist.

        `value`: a dataclass, msgspec.Struct or pyarrow.Schema makes a typed topic, whose
        values are stored as columns (on Kafka, as JSON); `bytes` are stored as they are, anything
        else as MessagePack. `key` is the type of the keys or, on a typed topic, the column that
        holds them; `timestamp` the column that holds the time. `serde` and `key_serde` say what
        values and keys look like in the log: "json", "avro", "protobuf", "msgpack", "bytes", one of these with
        settings (`AvroSerde(…)`), or an object with `dumps` and `loads`. `config` takes
        Kafka's settings; without `retention.ms` records are kept. Raises InvalidConfig.
        """
        made = Topic[Any, Any](
            self,
            name,
            key=key,
            value=value,
            timestamp=timestamp,
            partitions=partitions,
            serde=serde,
            key_serde=key_serde,
            config=config,
        )
        return self.declared.add_topic(made)

    @overload
    def store(
        self,
        name: str,
        *,
        key: type[K],
        value: type[V],
        default: V = ...,
        default_factory: Callable[[], V] | None = ...,
        **settings: Unpack[StoreSettings],
    ) -> Store[K, V]: ...
    @overload
    def store(
        self,
        name: str,
        *,
        value: type[V],
        default: V = ...,
        default_factory: Callable[[], V] | None = ...,
        **settings: Unpack[StoreSettings],
    ) -> Store[str, V]: ...
    @overload
    def store(
        self,
        name: str,
        *,
        key: Any = ...,
        value: Any = ...,
        default: Any = ...,
        default_factory: Callable[[], Any] | None = ...,
        **settings: Unpack[StoreSettings],
    ) -> Store[Any, Any]: ...
    def store(
        self,
        name: str,
        *,
        key: Any = str,
        value: Any = None,
        default: Any = UNSET,
        default_factory: Callable[[], Any] | None = None,
        **settings: Unpack[StoreSettings],
    ) -> Store[Any, Any]:
        """Declare a store; it belongs to the task that names it in `stores=`.

        `default` (immutable) or `default_factory` is what a key reads as that was never set.
        Settings: `ttl_ms` lets values expire, `engine` is "rocksdb" or "memory", `limits` say
        how much memory it may use. Raises InvalidConfig.

        The declaration is recorded with the store, and compared at each start. Types may become
        wider, and fields that have defaults may be added; any other change is refused, unless
        `upgrade`, a function, makes a value of the declared type from each old one. It gets plain
        data (of bytes, and of a serde's values, their bytes).
        """
        spec: StoreSpec[Any, Any] = StoreSpec(
            name,
            key=key,
            value=value,
            default=default,
            default_factory=default_factory,
            **settings,
        )
        return self.declared.add_store(Store(self, spec))

    def counter(
        self, name: str, *, key: type[K] | Any = str, **settings: Unpack[StoreSettings]
    ) -> Counter[K]:
        """Declare a count per key: `flights.add(key)`."""
        return self.declared.add_store(Counter(self, name, key, **settings))

    def aggregates(
        self,
        name: str,
        *,
        key: type[K] | Any = str,
        settings: StoreSettings | None = None,
        **aggregates: Aggregate,
    ) -> Grouped[K]:
        """Declare figures per key, as `n=count(), worst=max("dep_delay")`: `delays.add(key, row)`."""
        figures = Aggregates(**aggregates)
        return self.declared.add_store(Grouped(self, name, key, figures, **(settings or {})))

    def task(
        self,
        topics: Topic[Any, Any] | Sequence[Topic[Any, Any]],
        *,
        stores: Sequence[Store[Any, Any]] = (),
        name: str | None = None,
        on_error: OnError = "fail",
        tombstones: bool = False,
        window_ms: int | None = None,
    ) -> Callable[[H], H]:
        """Make a function, or a class with `process`, the handler of a topic's records.

        One instance of the task works for partition n of all its topics. Records of one
        partition are handled one at a time, and those of several topics merged by time. With an
        async handler different partitions overlap.

        A class is made once per partition. Besides `process(record)` it may have

        - `init(context)`, called when the stores are there, before all else;
        - `window()`, called every `window_ms` by the wall clock, and once more before a run
          until "idle" or "end" ends, if records were handled since its last call;
        - `on_timer(name)`, called when a timer fires;
        - `close()`, called at the end of a run in order, not after a crash. Stores, `send` and
          timers raise NotInTask there.

        All others run inside the task's transaction: they may use stores, send, and set timers
        (if there is an `on_timer`). What they send has the time of the record or timer; in
        `init` and `window`, of the wall clock. What raises is undone, and `on_error` decides.

        Args:
            topics: One topic, or several with equally many partitions.
            stores: The stores that the handler uses; a store belongs to one task.
            name: The task's name; by default that of the function or class.
            on_error: What becomes of a record whose handler raises: "fail" stops the task's
                instance there, "skip" drops it, "dead_letter" sends it with the error to
                `<app>-<task>-dead-letter`.
            tombstones: True passes tombstones to the handler; by default they are left out.
            window_ms: Milliseconds between two calls of `window`.

        Raises:
            InvalidConfig: The declaration is wrong.
        """
        inputs = (topics,) if isinstance(topics, Topic | str) else tuple(topics)

        def declare(handler: H) -> H:
            title = name or str(getattr(handler, "__name__", "task"))
            check_stores(title, stores)
            spec = TaskSpec(title, inputs, tuple(stores), handler, on_error, tombstones, window_ms)
            if on_error == "dead_letter":
                spec.dead_letter = self.declared.add_topic(dead_letter_topic(self, spec))
            self.declared.add_task(spec)
            return handler

        return declare

    def on_timer(self, task: Callable[..., Any] | str) -> Callable[[H], H]:
        """Make a function the handler of a task's timers: it is called with the timer's name."""

        def declare(handler: H) -> H:
            self.declared.task_of(task).set_on_timer(handler)
            return handler

        return declare

    def drop_task(self, name: str) -> None:
        """Say that the timers of a task of an earlier version are not needed any more.

        Without it an app with pending timers of a task that it does not declare does not run. The
        timers stay where they are until `reset`; with the task declared again they fire.

        Args:
            name: Name of the task; an InvalidConfig if it is declared and has timers.
        """
        self.declared.drop_task(name)

    @overload
    def repartition(
        self,
        topic: Topic[Any, V],
        key: str,
        *,
        name: str | None = ...,
        partitions: int | None = ...,
    ) -> Topic[Any, V]: ...
    @overload
    def repartition(
        self,
        topic: Topic[Any, V],
        key: Callable[[Record[Any, V]], K],
        *,
        name: str,
        key_type: type[K] | None = ...,
        partitions: int | None = ...,
    ) -> Topic[K, V]: ...
    def repartition(
        self,
        topic: Topic[Any, Any],
        key: str | Callable[[Record[Any, Any]], Any],
        *,
        name: str | None = None,
        key_type: Any = None,
        partitions: int | None = None,
    ) -> Topic[Any, Any]:
        """The same records by another key, through an internal topic.

        `key` is a column of the value, or a function of the record, whose results are of
        `key_type` (default: str). The topic is `<app>-<name>-repartition`.
        """
        from strandline.framework.repartition import declare

        return declare(self, topic, key, name, key_type, partitions)

    # Closing --------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the log; harmless when repeated."""
        with self._opening:
            if self._opened is not None:
                self._closing()
                self._opened = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Looking and administering --------------------------------------------------------

    @property
    def broker(self) -> Broker:
        """The log, opened when it is first asked for."""
        with self._opening:
            if self._opened is None:
                self._opened = running.open_log(self)
                self._closing = CloseOnce(self, self._opened.close)
            return self._opened.broker

    def producer(self, transactional_id: str | None = None) -> Producer:
        """A producer of bytes and columns, for use outside of tasks."""
        from strandline.changelog.client.producer import Producer

        self.prepare()
        return Producer(self.broker, transactional_id=transactional_id, clock=self.clock)

    def query(self, store: Store[K, V], *, partition: int | None = None) -> StoreView[K, V]:
        """Return the committed state of a store, read from its changelog; read-only.

        Args:
            store: A store of this app.
            partition: Read only what this partition has: one part of a store that is not keyed
                as the input of its task is. By default all partitions are put together.

        Raises:
            InvalidConfig: The store belongs to no task.
            InvalidRequest: There is no such partition.
            RequestTimedOut: A transaction stays open before something that was committed.
        """
        from strandline.framework.query import view_of

        self.prepare()
        return view_of(self, store, partition)

    def describe(self) -> dict[str, Any]:
        """Tasks with their inputs and stores, topics, and settings, as plain data."""
        return self.declared.described(self.options)

    def reset(self) -> None:
        """Forget state, positions and internal topics; the next run begins anew.

        Input and output topics stay as they are. The app must not be running.
        """
        running.reset(self)

    def prepare(self) -> None:
        """Create the declared topics that do not exist. Raises InvalidConfig."""
        self.declared.prepare(self.broker)
