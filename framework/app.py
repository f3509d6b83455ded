"""Application: topics, stores and tasks under one name, and the methods that run them.

Declaring a topic, store or task touches no file. The log is opened when it is first needed (`run`,
`append`, `query`, …), and the declared topics are created then. It stays open until `close` or the
end of the program.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack, overload

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.closing import ClosedByWith
from strandline.changelog.errors import MissingDependency
from strandline.changelog.storage import Durability
from strandline.framework.aggregates import Counter, Grouped
from strandline.framework.container.reset import reset
from strandline.framework.container.running import RunLimits, Runner
from strandline.framework.declarations import Declarations
from strandline.framework.formats.choice import AnySerde, Name
from strandline.framework.formats.registry import SchemaRegistry, registry_of
from strandline.framework.formats.wire import SerdeForm
from strandline.framework.handlers import check_reducers
from strandline.framework.options import Guarantee, Options, Until
from strandline.framework.record import Record
from strandline.framework.session import AppSettings, LogPlace, Session
from strandline.framework.store import Store, StoreSettings
from strandline.framework.streams.stream_declarations import StreamDeclarations
from strandline.framework.task import OnError, TaskSpec, check_stores
from strandline.framework.topic import Topic
from strandline.statestore.aggregates import Aggregate, Aggregates
from strandline.statestore.memory import DEFAULT_MEMORY_BYTES
from strandline.statestore.serdes import Serde
from strandline.statestore.spec import UNSET, StoreSpec

if TYPE_CHECKING:
    from strandline.changelog.client.producer import Producer
    from strandline.framework.container.restore import OnRestore
    from strandline.framework.querying.client import Connection
    from strandline.framework.querying.read_only_store import ReadOnlyStore

K = TypeVar("K")
V = TypeVar("V")

Queried = Store[K, V] | str
"""A store of the app, or its name: that of a stream's aggregation."""
H = TypeVar("H", bound=Callable[..., Any])

DEFAULT_LOG = "./data"
"""Folder of the log if neither `log=` nor STRANDLINE_LOG is given."""
COMMAND_LINE = "strandline.app"
"""Group of the entry point that runs the command line of an app."""


class App(StreamDeclarations, ClosedByWith):
    """Stateful stream processing over one log.

    Declare topics, stores and tasks on the app, then call `run`. Processes that run the same app
    share the partitions of its input topics as a consumer group. Other processes of the same
    machine read its stores through `strandline.connect`.

    Four environment variables change an app without a change of its code: STRANDLINE_LOG and
    STRANDLINE_SCHEMA_REGISTRY override `log` and `registry`. STRANDLINE_INSTANCE makes the worker a
    static member of its group (KIP-345): its partitions wait for its return for one session
    timeout. STRANDLINE_TOKEN is the token that queries from other machines must show.

        app = App("hello", log="data/hello")
        words = app.topic("words", value=str)
        seen = app.store("seen", value=int, default=0)

        @app.task(words, stores=[seen])
        def count(record: Record[str, str]) -> None:
            seen[record.value] += 1

        app.run()

    Args:
        name: Name of the app. It is also the consumer group and the prefix of the names of internal
            topics, so a renamed app starts without state.
        log: A folder, a URL (`strandline://host:port`, `kafka://host:port`), or an open log. The
            default is the folder `./data`.
        processing_guarantee: Effect of a crash on the results: none ("exactly_once", the default),
            records may be processed again ("at_least_once"), or records may be lost
            ("at_most_once").
        commit_interval_ms: Milliseconds between two commits while there is something to commit.
            Results become visible at a commit. The default, 100, keeps results fresh; longer
            intervals give more throughput.
        commit_records: Number of records after which a commit follows even before
            `commit_interval_ms`. The default, 100,000, bounds the memory of a transaction and the
            work that a crash repeats.
        transaction_timeout_ms: Milliseconds after which the log aborts a commit that has not ended.
            The default is 10,000. Readers of the output topics wait at most that long for a worker
            that died while it committed.
        session_timeout_ms: Milliseconds without a heartbeat after which a worker loses its
            partitions to the other workers. The default, 10,000, tolerates short pauses of a
            process. In a folder, a worker whose process dies loses them at once.
        max_poll_interval_ms: Milliseconds that a worker may spend on one record before it loses its
            partitions. The default, 300,000, is Kafka's.
        standby_replicas: Number of other workers that keep a copy of each partition's stores. They
            are the first to take the partition over, and replay only the end of its changelog. The
            default is 0, because each copy costs disk space and reads.
        memory: Bytes of memory that stores, pending records and RocksDB's caches use, in each
            process that runs the app. The default is 1 GiB; at least 64 MiB. Above it, commits and
            checkpoints come earlier, and fewer values are kept in memory.
        application_server: Address at which this worker answers queries from other machines:
            "host:port" on this machine, or "tcp://…" and "tls://…?certificate=…&key=…" beyond it.
            By default only processes of this machine can query it.
        state_dir: Folder of the store files; the app uses the subfolder of its name. The default is
            `state/` in the log's folder, or in the current folder if the log is a URL. If `log` is
            an open log and `state_dir` is not given, stores are kept in memory.
        durability: Durability of an acknowledged append where this process owns the log: it
            survives a power cut ("fsync", the default), or only a kill of the process ("os",
            faster).
        registry: URL of the schema registry that keeps the schemas of Avro and Protobuf values, or
            a `SchemaRegistry`.
        clock: Source of time and identifiers, for tests. The default is the system's clock.

    Raises:
        InvalidConfig: An argument is not valid.
    """

    def __init__(
        self,
        name: str,
        *,
        log: LogPlace | None = None,
        processing_guarantee: Guarantee = "exactly_once",
        commit_interval_ms: int = 100,
        commit_records: int = 100_000,
        transaction_timeout_ms: int = 10_000,
        session_timeout_ms: int = 10_000,
        max_poll_interval_ms: int = 300_000,
        standby_replicas: int = 0,
        memory: int = DEFAULT_MEMORY_BYTES,
        application_server: str | None = None,
        state_dir: str | os.PathLike[str] | None = None,
        durability: Durability = "fsync",
        registry: SchemaRegistry | str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.declared = Declarations(name)
        options = Options(
            processing_guarantee=processing_guarantee,
            commit_interval_ms=commit_interval_ms,
            commit_records=commit_records,
            transaction_timeout_ms=transaction_timeout_ms,
            session_timeout_ms=session_timeout_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            standby_replicas=standby_replicas,
            memory=memory,
            application_server=application_server,
            instance=os.environ.get("STRANDLINE_INSTANCE") or None,
        )
        schemas = registry_of(os.environ.get("STRANDLINE_SCHEMA_REGISTRY") or registry)
        settings = AppSettings(options, clock or SystemClock(), schemas, state_dir, durability)
        where = os.environ.get("STRANDLINE_LOG") or (DEFAULT_LOG if log is None else log)
        self.session = Session(name, where, settings, self.declared)
        self.runner = Runner(self.session, self.declared)
        self.declared.is_running = self.runner.is_running
        self._connection: Connection | None = None
        """Connection to the app's workers for `query`; None before its first call."""

    def __repr__(self) -> str:
        return f"App({self.name!r})"

    @property
    def name(self) -> str:
        """Name of the app."""
        return self.declared.app

    @property
    def log(self) -> LogPlace:
        """Folder or URL of the log, or an open log. It may be set until the log is opened."""
        return self.session.log

    @log.setter
    def log(self, log: LogPlace) -> None:
        self.session.use(log)

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
        """Declare a topic and return its handle. The topic is created when the log is opened.

        Args:
            name: Name of the topic in the log.
            key: Type of the keys, by default str. On a typed topic it may also be the name of the
                column that holds the key.
            value: Type of the values. A dataclass, a msgspec.Struct or a pyarrow.Schema makes a
                typed topic, which stores a column per field (on Kafka, JSON). `bytes` are stored
                unchanged. Any other type is stored as MessagePack, and `Any` (the default) accepts
                whatever MessagePack can hold.
            timestamp: Name of the column that holds the time of a record, on a typed topic. By
                default a record's time does not depend on its value.
            partitions: Number of partitions. None, the default, takes those of an existing topic,
                and creates a new one with one partition.
            serde: Form of the values in the log: "json", "avro", "protobuf", "msgpack", "bytes",
                one of these with settings (`AvroSerde(…)`), or an object with `dumps` and `loads`.
                The default depends on `value`.
            key_serde: Form of the keys in the log, chosen like `serde`. By default str, int, float
                and bytes are written as Kafka's Java client writes them.
            config: Kafka's topic settings, used when the topic is created. Without `retention.ms`
                records are kept for ever, because state is often rebuilt from them.

        Returns:
            The handle: `send` in handlers, `append` and `to_polars` elsewhere.

        Raises:
            InvalidConfig: The declaration is not valid, or contradicts an earlier one of this name.
        """
        made = Topic[Any, Any](
            self.session,
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
        """Declare a store and return its handle.

        The store belongs to the task that lists it in `stores=`. The declaration is recorded in the
        log with the store and compared at each start. Types may become wider, and fields with
        defaults may be added. Any other change is refused unless `upgrade` converts the old values.

        Args:
            name: Name of the store: 1 to 100 of the characters A-Z a-z 0-9 . _ -
            key: Type of the keys: str (the default), int, float, bytes, bool, date, datetime, or a
                tuple of these, such as `tuple[str, int]`.
            value: Type of the values, or a serde. None, the default, is MessagePack without a type.
            default: Immutable value that a key reads as before it is set.
            default_factory: Function that makes the default of a key, called for each read. It is
                meant for values that can be changed, such as `list`.
            ttl_ms: Milliseconds from the last `put` of a value, by the wall clock, until it
                expires. None, the default, keeps values for ever.
            engine: "rocksdb" (the default) for state on disk, or "memory".
            limits: Memory that each partition of the store may use; see `StoreLimits`.
            upgrade: Function that returns a value of the declared type for a value stored under an
                earlier declaration. It receives plain data; for bytes and for values of a serde,
                their bytes.

        Returns:
            The handle, to be used inside the handlers of its task.

        Raises:
            InvalidConfig: The declaration is not valid, or contradicts an earlier one of this name.
        """
        spec: StoreSpec[Any, Any] = StoreSpec(
            name,
            key=key,
            value=value,
            default=default,
            default_factory=default_factory,
            **settings,
        )
        return self.declared.add_store(Store(self.session, spec))

    def counter(
        self, name: str, *, key: type[K] | Any = str, **settings: Unpack[StoreSettings]
    ) -> Counter[K]:
        """Declare a store of counts. A handler counts with `flights.add(key)`.

        Args:
            name: Name of the store.
            key: Type of the keys, by default str.
            **settings: `ttl_ms`, `engine`, `limits` and `upgrade` as in `store`.

        Returns:
            The handle of the counts. A key that was never counted reads as 0.

        Raises:
            InvalidConfig: The declaration is not valid.
        """
        return self.declared.add_store(Counter(self.session, name, key, **settings))

    def aggregates(
        self,
        name: str,
        *,
        key: type[K] | Any = str,
        settings: StoreSettings | None = None,
        **aggregates: Aggregate,
    ) -> Grouped[K]:
        """Declare a store of several aggregates per key, to which a handler adds rows.

            delays = app.aggregates("delays", n=count(), worst=max("dep_delay"))
            delays.add(key, row)  # in a handler

        Args:
            name: Name of the store.
            key: Type of the keys, by default str.
            settings: `ttl_ms`, `engine`, `limits` and `upgrade` as in `store`. They are one
                argument because the keywords are the names of aggregates.
            **aggregates: Name and kind of each aggregate, by functions of this package: `count`,
                `sum`, `min`, `max`, `mean`, `var`, `std`, `first`, `last`, `any`, `n_unique`,
                `quantile`, `collect`, `top` or `reducer`.

        Returns:
            The handle of the aggregates.

        Raises:
            InvalidConfig: The declaration is not valid.
        """
        check_reducers(aggregates)
        figures = Aggregates(**aggregates)
        return self.declared.add_store(
            Grouped(self.session, name, key, figures, **(settings or {}))
        )

    def task(
        self,
        topics: Topic[Any, Any] | Sequence[Topic[Any, Any]],
        *,
        stores: Sequence[Store[Any, Any]] = (),
        name: str | None = None,
        on_error: OnError = "fail",
        tombstones: bool = False,
        window_ms: int | None = None,
        concurrency: int = 1,
        batch: bool = False,
    ) -> Callable[[H], H]:
        """Return a decorator that makes a function or class the handler of a topic's records.

        One instance of the task works for partition n of all its topics. It handles the records of
        a partition one at a time, and merges those of several topics by time. With an async handler
        the partitions of a worker overlap; with `concurrency` also the records of a partition.

        A class is instantiated once per partition. It has a method `process(record)`, and it may
        have

        - `init(context)`, called once the stores are open, before any other method;
        - `window()`, called every `window_ms` by the wall clock, and once more at the end of a run
          until "idle" or "end" if records were handled since its last call;
        - `on_timer(name)`, called when a timer fires;
        - `close()`, called at the end of an orderly run, not after a crash. Stores, `send` and
          timers raise NotInTask in `close`.

        All methods except `close` run inside the task's transaction. They may use stores, send
        records, and set timers if there is an `on_timer`. A record that they send has the time of
        the record or timer being handled; in `init` and `window` it has the time of the wall clock.
        If a method raises, its changes are undone and `on_error` applies.

        Args:
            topics: One topic, or several that have the same number of partitions.
            stores: The stores that the handler uses. A store belongs to one task.
            name: Name of the task, by default that of the function or class.
            on_error: Policy for a record whose handler raises. "fail" stops the task's instance at
                the record. "skip" drops the record. "dead_letter" sends the record and the error to
                the topic `<app>-<task>-dead-letter`. The default is "fail", because it loses no
                record.
            tombstones: True to pass tombstones (records whose value is None) to the handler. The
                default is False, because most handlers need a value.
            window_ms: Milliseconds between two calls of `window`. None, the default, never calls
                it.
            concurrency: Maximum number of records of a partition whose async handlers run at the
                same time, at most 10,000. The state and the records sent are as if the records
                had been handled one after another; records of the same key wait for each other if
                the task has stores. A handler is called again if what it has read was changed by
                an earlier record. The default is 1.
            batch: True to call the handler, or `process`, with a `Batch` of records as columns. If
                it raises, it is called again with each half, until the record that causes the error
                is found; `on_error` applies to that record alone. Such a task is not async and has
                no timers. The default is False.

        Returns:
            A decorator that returns the function or class unchanged.

        Raises:
            InvalidConfig: The declaration is not valid.
        """
        inputs = (topics,) if isinstance(topics, Topic | str) else tuple(topics)
        policies = on_error, tombstones, window_ms, concurrency, batch

        def declare(handler: H) -> H:
            title = name or str(getattr(handler, "__name__", "task"))
            check_stores(title, stores)
            spec = TaskSpec(title, inputs, tuple(stores), handler, *policies)
            self.declared.add_task(spec, by_key=True)
            return handler

        return declare

    def on_timer(self, task: Callable[..., Any] | str) -> Callable[[H], H]:
        """Return a decorator that makes a function the timer handler of a task.

        The function is called with the name of each timer that fires.

        Args:
            task: The task's function, or its name.

        Returns:
            A decorator that returns the function unchanged.

        Raises:
            InvalidConfig: There is no such task, or it has a timer handler already.
        """

        def declare(handler: H) -> H:
            self.declared.task_of(task).set_on_timer(handler)
            return handler

        return declare

    def drop_task(self, name: str) -> None:
        """Declare that a task of an earlier version, and its timers, are no longer needed.

        An app refuses to run while it has pending timers of a task that it does not declare; and,
        if its tasks are at different offsets and one of them is gone, with a new task that may be
        that one by another name. After this call it runs.

        The timers stay stored, because workers of the earlier version may still run, or you may
        return to it. So they fire if a task of that name is declared again, even if it is another
        task. `strandline plan MODULE:APP --drop-orphans` deletes them, and so does `reset`.

        Args:
            name: Name of the task of the earlier version.

        Raises:
            InvalidConfig: The task is declared and has timers.
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
        """Return a topic with the same records by another key, which go through an internal topic.

        A store must be keyed as the input of its task is. Repartition the input first if it is not.

        Args:
            topic: Topic to read.
            key: New key: a column of the value, or a function of the record.
            name: Name of the task that forwards the records; the internal topic is
                `<app>-<name>-repartition`. The default is `<topic>-by-<column>`; a function needs a
                name.
            key_type: Type of the function's results, by default str.
            partitions: Number of partitions of the internal topic, by default that of `topic`.

        Returns:
            The handle of the internal topic, as an input for tasks.

        Raises:
            InvalidConfig: The declaration is not valid, or a function is given without a name.
        """
        from strandline.framework.repartition import declare

        return declare(self.session, self.declared, topic, key, name, key_type, partitions)

    # Running --------------------------------------------------------------------------

    def run(
        self,
        until: Until | None = None,
        *,
        count: int | None = None,
        timeout: float | None = None,
        progress: bool | OnRestore = True,
        metrics: str | None = None,
    ) -> int:
        """Run the tasks until a limit is reached, `stop` is called, or SIGINT or SIGTERM arrives.

        The run ends with a commit. A second signal ends it without waiting for the commit. If
        several limits are given, the first one that is reached ends the run. Inside a running
        asyncio loop (a notebook) the app runs in a thread of its own and this call blocks; `await
        app.run_async(...)` does not block the loop.

        Args:
            until: None, the default, runs on. "idle" ends the run when all records are handled and
                committed; before that it calls each `window` whose task handled records since its
                last call. "end" also ends the input: all timers in stream time fire in order of
                time before the windows are called. Both are conditions on the whole app, in all
                processes that run it.
            count: Number of records to handle. None, the default, is no limit.
            timeout: Seconds to run. None, the default, is no limit.
            progress: True, the default, draws a bar while stores are restored if there is a
                terminal and the restore takes a while. A function is called with a RestoreProgress
                now and then. False does neither.
            metrics: Address "host:port" at which Prometheus reads the metrics of this process; port
                0 chooses a free one. By default there is none.

        Returns:
            Number of records handled.

        Raises:
            TaskFailed: A task instance has stopped at a record. The other instances have finished.
            StorageFailed: The disk failed; committed results stay.
            InvalidConfig: A declaration or an argument is not valid, or the address is in use.
        """
        limits = RunLimits(until, count, timeout)
        return self.runner.run_blocking(limits, progress=progress, metrics=metrics)

    async def run_async(
        self,
        until: Until | None = None,
        *,
        count: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `run`; it ends with a commit
        metrics: str | None = None,
    ) -> int:
        """Run the tasks as `run` does, without blocking the asyncio loop.

        Cancelling it stops the app after a last commit.

        Args:
            until: None, "idle" or "end", as in `run`.
            count: Number of records to handle. None, the default, is no limit.
            timeout: Seconds to run. None, the default, is no limit.
            metrics: Address "host:port" for Prometheus, as in `run`.

        Returns:
            Number of records handled.

        Raises:
            TaskFailed: A task instance has stopped at a record. The other instances have finished.
        """
        return await self.runner.run_async(RunLimits(until, count, timeout), metrics=metrics)

    def stop(self) -> None:
        """End `run` after a last commit. It may be called from any thread."""
        self.runner.stop()

    def main(self) -> None:
        """Run the app's own command line: `run`, `describe`, `reset` and others.

        Raises:
            MissingDependency: The package is not installed, so its command line is not known.
            SystemExit: Always, at the end.
        """
        _command_line()(self)

    # Closing --------------------------------------------------------------------------

    def close(self) -> None:
        """Close the log. Repeated calls have no effect."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self.session.close()

    # Looking and administering --------------------------------------------------------

    def broker(self) -> Broker:
        """Return the broker of the log, which is opened if it is not open.

        Raises:
            OwnerUnavailable: The process that owns the log does not answer.
            InvalidConfig: There is no such log.
        """
        return self.session.broker()

    def producer(self, transactional_id: str | None = None) -> Producer:
        """Return a producer of bytes and columns, for use outside of tasks.

        Args:
            transactional_id: Identifier of a transactional producer; a new producer with the same
                identifier fences the older one. None, the default, is a producer without
                transactions.

        Returns:
            The producer. Close it, or use it in a `with` statement.
        """
        return self.session.producer(transactional_id)

    def query(self, store: Queried[K, V], *, partition: int | None = None) -> ReadOnlyStore[K, V]:
        """Return the committed state of a store, for reading outside of its task.

        The workers of the app are asked, in this process or another one. While none runs, the
        store is read from its changelog. Keep the result for several questions.

        Args:
            store: A store of this app, or its name: that of a stream's aggregation.
            partition: Partition to read alone. By default all partitions are combined, and a key
                that several partitions hold is merged or refused, as `ReadOnlyStore` describes.

        Returns:
            The store as `Connection.store` returns it: each call reads the state of that moment.

        Raises:
            InvalidConfig: The store belongs to no task, or its stored values have another type.
            InvalidRequest: There is no such store or partition.
        """
        from strandline.framework.querying.client import connection_of

        self.prepare()
        self._connection = self._connection or connection_of(self.session)
        return self._connection.store(self.declared.store(store), partition=partition)

    def describe(self) -> dict[str, Any]:
        """Return tasks with their inputs and stores, streams, topics, and settings as plain data."""
        streams = self.plan().data() if self.has_streams else []
        return {**self.declared.described(self.session.options), "streams": streams}

    def reset(self) -> None:
        """Delete state, committed offsets and internal topics.

        The next run reads the input from its beginning. Input and output topics stay as they are.

        Raises:
            InvalidRequest: The app is running.
        """
        reset(self.session, self.declared)

    def prepare(self) -> None:
        """Create the declared topics that do not exist.

        Raises:
            InvalidConfig: A declared topic exists with other settings.
        """
        self.session.prepare()


def _command_line() -> Callable[[App], NoReturn]:
    """Return the function that runs an app's command line, an entry point of this package.

    The command line imports the app, so the app does not import the command line.
    """
    for found in entry_points(group=COMMAND_LINE, name="main"):
        return found.load()  # type: ignore[no-any-return]
    raise MissingDependency(
        "app.main() needs the command line of the installed package: pip install strandline"
    )
