"""An app: topics, stores and tasks under one name, and how they are run.

The declarations touch nothing. The log is opened when it is first needed (`run`, `append`,
`query` …), stays open until `close` or the end of the program, and topics are created then.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar, Unpack, overload

from changelog import location
from changelog.broker import Broker
from changelog.clock import Clock, SystemClock
from changelog.closing import Closing
from changelog.errors import InvalidConfig
from framework.aggregates import Counter, Grouped
from framework.container import running
from framework.container.worker import Worker
from framework.declaring import Declarations
from framework.formats.choice import AnySerde, Name
from framework.formats.registry import SchemaRegistry, registry_of
from framework.formats.wire import Form
from framework.options import Guarantee, Options
from framework.record import Record
from framework.store import Store
from framework.task import OnError, TaskSpec, check_stores, dead_letter_topic
from framework.topic import Topic
from statestore.aggregates import Aggregate, Aggregates
from statestore.serdes import Serde
from statestore.spec import UNSET, StoreLimits, StoreSpec

if TYPE_CHECKING:
    from changelog.client.producer import Producer
    from framework.container.restore import OnRestore
    from framework.query import StoreView

K = TypeVar("K")
V = TypeVar("V")
H = TypeVar("H", bound=Callable[..., Any])


class StoreSettings(TypedDict, total=False):
    """What may be set on every kind of store; see `App.store`."""

    ttl_ms: int | None
    engine: Literal["rocksdb", "memory"]
    limits: StoreLimits
    upgrade: Callable[[Any], Any] | None


DEFAULT_LOG = "./data"


class App:
    """Stateful stream processing over one log.

    `log` is a folder, a URL, or an open log; the environment variable STRANDLINE_LOG
    overrides it. Stores keep their files in `<state_dir>/<name>`: by default `state/` in the
    log's folder, or in the current one if the log is a URL; with a log that is passed in open
    and no `state_dir` they are in memory. The name is also the consumer group, and begins the names
    of internal topics.

    Processes that run the same app share its partitions. One that was not heard of for
    `session_timeout_ms`, or whose handlers let it do nothing else for `max_poll_interval_ms`, has
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
        serde: Serde[V] | Form | Name | None = ...,
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
        serde: Serde[V] | Form | Name | None = ...,
        key_serde: Serde[K] | Form | Name | None = ...,
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
        serde: Serde[V] | Form | Name | None = ...,
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

        Several topics must have equally many partitions; one instance works for partition n
        of all of them. The handler may be async: records of one partition are handled one at
        a time, those of different partitions overlap. A class is made once per partition,
        and may have `init(context)`, `window()` (called every `window_ms`), `on_timer(name)`
        and `close()`. `on_error` says what becomes of a record whose handler raises: "fail"
        stops the task's instance there, "skip" drops it, "dead_letter" sends it with the
        error to `<app>-<task>-dead-letter`. Tombstones are passed on only with `tombstones`.
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
        from framework.repartition import declare

        return declare(self, topic, key, name, key_type, partitions)

    # Running --------------------------------------------------------------------------

    def run(
        self,
        until: Literal["idle"] | None = None,
        *,
        count: int | None = None,
        timeout: float | None = None,
        progress: bool | OnRestore = True,
        metrics: str | None = None,
    ) -> int:
        """Run the tasks; return how many records were handled.

        Without limits until `stop`, SIGINT or SIGTERM (a second one does not wait for the
        commit). `until="idle"`: until everything there is has been handled. `count`: so many
        records. `timeout`: so many seconds. `progress`: while stores are restored, True draws
        a bar if there is a terminal and it takes a while; a function is called with a
        RestoreProgress now and then, and once at the end (`done`). `metrics`: "host:port" at
        which Prometheus finds this process meanwhile (port 0: a free one, which is logged). Inside of a running asyncio loop (a notebook) it runs in a thread of
        its own; `await app.run_async(...)` does not block the loop.

        Raises TaskFailed when a task instance has stopped at a record, after the others are
        done; InvalidConfig, also for an address that is in use.

        Processes that run the same app share its partitions; "idle" is asked of all of it.
        """
        if until not in (None, "idle"):
            raise InvalidConfig(f'run(until=...) is None or "idle", got {until!r}')
        limits = running.Limits(until == "idle", count, timeout)
        if running.inside_event_loop():
            return running.in_thread(
                lambda: running.run(self, limits, progress=progress, metrics=metrics)
            )
        return running.run(self, limits, progress=progress, metrics=metrics)

    async def run_async(
        self,
        until: Literal["idle"] | None = None,
        *,
        count: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - `run`'s, and an orderly stop
        metrics: str | None = None,
    ) -> int:
        """`run` for use inside of asyncio: the loop goes on. Cancelling it stops the app."""
        limits = running.Limits(until == "idle", count, timeout)
        work = asyncio.ensure_future(
            asyncio.to_thread(running.run, self, limits, progress=False, metrics=metrics)
        )
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self.stop()
            await work
            raise

    def stop(self) -> None:
        """Let `run` end after a last commit; from any thread."""
        worker = self._worker
        if worker is not None:
            worker.stop()

    def main(self) -> None:
        """The app's own command line: run, reset, describe …"""
        from framework.cli import app_main

        app_main(self)

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
                self._closing = Closing(self, self._opened.close)
            return self._opened.broker

    def producer(self, transactional_id: str | None = None) -> Producer:
        """A producer of bytes and columns, for use outside of tasks."""
        from changelog.client.producer import Producer

        self.prepare()
        return Producer(self.broker, transactional_id=transactional_id, clock=self.clock)

    def query(self, store: Store[K, V]) -> StoreView[K, V]:
        """What a store holds, over all partitions, as of the last commit; read-only."""
        from framework.query import view_of

        self.prepare()
        return view_of(self, store)

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
