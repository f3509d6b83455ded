"""Running an app in this process: its log, its worker, and the signals that end it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.credentials import token_of
from strandline.changelog.errors import (
    InvalidConfig,
    InvalidRequest,
    StrandlineError,
    UnknownTopic,
    out_of_memory,
)
from strandline.changelog.location import is_encrypted, is_url
from strandline.changelog.metrics import MetricReading, measured
from strandline.changelog.storage import LocalStorage
from strandline.framework.container.folders import StoreFolders
from strandline.framework.container.group_membership import SoleMember, member_of
from strandline.framework.container.manager import TaskManager
from strandline.framework.container.metrics import WorkerCounters
from strandline.framework.container.outage import patiently
from strandline.framework.container.restore import OnRestore, RestoreBar
from strandline.framework.container.session import WorkerSession
from strandline.framework.container.worker import Worker
from strandline.framework.declarations import Declarations
from strandline.framework.left_timers import check_timers
from strandline.framework.options import UNTIL, Options, Until
from strandline.framework.querying.endpoint import QueryEndpoint
from strandline.framework.querying.provider import StoreProvider
from strandline.framework.store_declarations import StoreDeclarations

if TYPE_CHECKING:
    from strandline.framework.app import App

T = TypeVar("T")


@dataclass(frozen=True)
class RunLimits:
    """When a run ends by itself."""

    until: Until | None = None
    count: int | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.until is not None and self.until not in UNTIL:
            raise InvalidConfig(f'run(until=...) is None, "idle" or "end", got {self.until!r}')


@dataclass
class OpenLog:
    """A log that an app uses."""

    broker: Broker
    owned: bool
    """Whether it was opened for the app, which then closes it."""

    def close(self) -> None:
        if self.owned:
            self.broker.close()


def open_log(app: App) -> OpenLog:
    """Open what the app's `log` names; an open one is taken as it is."""
    if not isinstance(app.log, str | Path):
        return OpenLog(getattr(app.log, "broker", app.log), owned=False)  # type: ignore[arg-type]
    from strandline import changelog

    log = changelog.open(str(app.log), durability=app.durability, clock=app.clock)
    return OpenLog(log.broker, owned=True)


def run(
    app: App, limits: RunLimits, *, progress: bool | OnRestore, metrics: str | None = None
) -> int:
    """Start a worker, run it within the limits, and close it; meanwhile serve metrics, if asked to."""
    if app._worker is not None:
        raise InvalidRequest(f"app {app.name!r} is running already, in another thread")
    if metrics is None:
        return _run(app, limits, progress)
    from strandline.framework.metrics import served

    with served(metrics, partial(readings, app)):
        return _run(app, limits, progress)


def readings(app: App) -> list[MetricReading]:
    """What this process tells: of the app's worker, and of the log as far as it is the owner."""
    worker, log = app._worker, app._opened
    told = [] if worker is None else worker.metrics()
    return told if log is None else [*told, *measured(log.broker)]


def _run(app: App, limits: RunLimits, progress: bool | OnRestore) -> int:
    worker = worker_for(app, progress=progress)
    app._worker = worker
    try:
        with _stopped_by_signals(worker):
            worker.start()
            handled = worker.run(until=limits.until, count=limits.count, timeout=limits.timeout)
        worker.checkpoint_all()
        raise_failures(worker)
        return handled
    except StrandlineError:
        raise
    except MemoryError as error:
        raise out_of_memory(error, f"go on with app {app.name!r}, which lost nothing") from error
    finally:
        app._worker = None
        worker.close()


def worker_for(app: App, *, progress: bool | OnRestore = False) -> Worker:
    """A worker for all tasks of the app, not started yet. Raises InvalidConfig."""
    check_tasks(app)
    broker, folders = app.broker, StoreFolders(state_root(app), app.clock)
    token = token_of()
    queries = QueryEndpoint(
        *(_folder_of(app), app.options.application_server, token),
        encrypted=isinstance(app.log, str | os.PathLike) and is_encrypted(app.log),
    )
    try:
        return worker_on(
            *(broker, app.declared, app.clock, app.options, folders),
            queries=queries,
            on_restore=RestoreBar() if progress is True else progress or None,
        )
    except BaseException:
        queries.close()
        raise


def check_tasks(app: App) -> None:
    """Raise InvalidConfig if there is nothing to run."""
    if not app.declared.tasks:
        raise InvalidConfig(
            f"app {app.name!r} has no tasks to run; decorate a handler with @app.task(topic)"
        )


def worker_on(
    broker: Broker,
    declared: Declarations,
    clock: Clock,
    options: Options,
    folders: StoreFolders,
    *,
    alone: bool = False,
    queries: QueryEndpoint | None = None,
    on_restore: OnRestore | None = None,
) -> Worker:
    """A worker for what is declared, not started yet.

    It shares with the app's other workers; `alone` it has all partitions, and no threads. It answers
    `queries`, if there are to be any.
    """
    infos = declared.prepare(broker)
    check_timers(declared, broker)
    specs, topics = list(declared.tasks.values()), list(declared.topics.values())
    stores = [store for spec in specs for store in spec.all_stores]
    declarations = StoreDeclarations(declared.app, stores, infos, broker, clock)
    patiently(declarations.record)
    counters = WorkerCounters(declared.app, folders.counters)
    tasks = TaskManager(
        declared.app,
        specs,
        topics,
        infos,
        broker,
        clock,
        folders,
        counters,
        declarations=declarations,
        restore_threads=options.restore_threads,
        in_background=not alone,
        queries=queries,
        on_restore=on_restore,
    )
    join = (
        partial(SoleMember, declared.app, tasks.input_partitions)
        if alone
        else member_of(declared.app, specs, broker, clock, options, queries.urls if queries else ())
    )
    session = WorkerSession(declared.app, topics, infos, broker, clock, options, join, counters)
    if queries is not None:
        provider = StoreProvider(declared.app, specs, lambda: tasks.instances, session.is_certain)
        queries.start(provider.answer)
    return Worker(declared.app, broker, clock, options, tasks, session)


def _folder_of(app: App) -> Path | None:
    """The folder of the app's log, if it is known and on this machine."""
    if not isinstance(app.log, str | Path) or is_url(app.log):
        return None
    return Path(app.log)


def state_root(app: App) -> Path | None:
    """Where the app's stores keep their files; None: in memory."""
    if app.state_dir is not None:
        return Path(app.state_dir) / app.name
    if not isinstance(app.log, str | Path):
        return None
    folder = _folder_of(app) or Path()
    LocalStorage(folder).exists(f"state/{app.name}/")  # refuses links: RocksDB would follow them
    return folder / "state" / app.name


def raise_failures(worker: Worker) -> None:
    """Raise the first reason for which a task instance has stopped; the others are notes."""
    failures = worker.failures
    if failures:
        for other in failures[1:]:
            failures[0].add_note(f"and: {other}")
        raise failures[0]


def reset(app: App) -> None:
    """Delete the stores' files, internal topics and committed positions.

    Raises InvalidRequest, or LogLocked, and does nothing, if the app has workers or a store is open.
    """
    from strandline.statestore.engines.folders import remove_all  # it imports RocksDB

    broker = app.broker
    check_at_rest(broker, app.name)
    root = state_root(app)
    if root is not None and root.exists():
        remove_all(root)  # first: it may be refused
    for name in app.declared.internal_topics():
        try:
            broker.delete_topic(name)
        except UnknownTopic:
            continue
    committed = broker.committed(app.name)
    if committed:
        broker.commit_offsets(app.name, dict.fromkeys(committed))


def check_at_rest(broker: Broker, app: str) -> None:
    """Raise InvalidRequest if the app has workers, here or elsewhere."""
    members = broker.describe_group(app).members
    if members:
        who = ", ".join(sorted(member.client or member.member_id for member in members))
        raise InvalidRequest(
            f"app {app!r} is running ({who}); stop it first. A worker that was killed is gone at "
            "once in a folder; on Kafka, as a static one (STRANDLINE_INSTANCE) anywhere, after its "
            "session timeout"
        )


def inside_event_loop() -> bool:
    """Whether an asyncio loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def in_thread(call: Callable[[], T]) -> T:
    """The result of a call made in a thread of its own."""
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="strandline-run")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def _stopped_by_signals(worker: Worker) -> Iterator[None]:
    """SIGINT and SIGTERM stop the worker in order; the second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(_number: int, _frame: FrameType | None) -> None:
        if worker.stopping:
            raise KeyboardInterrupt
        worker.stop()

    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
