"""Running an app in this process: its log, its worker, and the signals that stop it."""

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


STOP_INTERVAL_S = 0.05
"""Seconds between two calls of `stop` for a run that is interrupted while it starts."""


@dataclass(frozen=True)
class RunLimits:
    """Limits at which a run ends by itself."""

    until: Until | None = None
    """Bound at which the run ends; None for none."""
    count: int | None = None
    """Number of records after which the run ends; None for no limit."""
    timeout: float | None = None
    """Seconds after which the run ends; None for no limit."""

    def __post_init__(self) -> None:
        if self.until is not None and self.until not in UNTIL:
            raise InvalidConfig(f'run(until=...) is None, "idle" or "end", got {self.until!r}')


@dataclass
class OpenLog:
    """A log that an app uses."""

    broker: Broker
    owned: bool
    """True if the log was opened for the app, which then closes it."""

    def close(self) -> None:
        if self.owned:
            self.broker.close()


def open_log(app: App) -> OpenLog:
    """Open the log that the app's `log` names; use a log that is open already as it is."""
    if not isinstance(app.log, str | Path):
        return OpenLog(getattr(app.log, "broker", app.log), owned=False)  # type: ignore[arg-type]
    from strandline import changelog

    log = changelog.open(str(app.log), durability=app.durability, clock=app.clock)
    return OpenLog(log.broker, owned=True)


def run(
    app: App, limits: RunLimits, *, progress: bool | OnRestore, metrics: str | None = None
) -> int:
    """Start a worker, run it within the limits, and close it.

    Args:
        app: The app to run.
        limits: Limits at which the run ends.
        progress: True for a progress bar of the restore, or a callback for its progress.
        metrics: Address at which metrics are served during the run; None for none.

    Returns:
        Number of records handled.
    """
    if app._worker is not None:
        raise InvalidRequest(f"app {app.name!r} is running already, in another thread")
    if metrics is None:
        return _run(app, limits, progress)
    from strandline.framework.metrics import served

    with served(metrics, partial(readings, app)):
        return _run(app, limits, progress)


def readings(app: App) -> list[MetricReading]:
    """Return the metrics of the app's worker, and those of the log if this process owns it."""
    worker, log = app._worker, app._opened
    found = [] if worker is None else worker.metrics()
    return found if log is None else [*found, *measured(log.broker)]


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
    """Return a worker for all tasks of the app, which is not started. Raises InvalidConfig."""
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
    """Return a worker for the declared tasks, which is not started.

    Args:
        broker: The app's log.
        declared: Declared tasks, topics and stores of the app.
        clock: Source of time.
        options: Options of the app.
        folders: Folders of the stores' files.
        alone: True for a worker that owns all partitions, joins no group and has no threads.
        queries: Endpoint at which the worker answers queries; None for none.
        on_restore: Callback for the progress of the restore; None for none.
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
    """Return the folder of the app's log; None if it is not known or on another machine."""
    if not isinstance(app.log, str | Path) or is_url(app.log):
        return None
    return Path(app.log)


def state_root(app: App) -> Path | None:
    """Return the folder of the files of the app's stores; None if they are in memory."""
    if app.state_dir is not None:
        return Path(app.state_dir) / app.name
    if not isinstance(app.log, str | Path):
        return None
    folder = _folder_of(app) or Path()
    # Raises if a part of the path is a symbolic link, which RocksDB would follow.
    LocalStorage(folder).exists(f"state/{app.name}/")
    return folder / "state" / app.name


def raise_failures(worker: Worker) -> None:
    """Raise the error of the first task instance that stopped; add the others' as notes."""
    failures = worker.failures
    if failures:
        for other in failures[1:]:
            failures[0].add_note(f"and: {other}")
        raise failures[0]


def reset(app: App) -> None:
    """Delete the stores' files, the internal topics and the committed offsets of an app.

    Raises:
        InvalidRequest: The app has running workers; nothing is deleted.
        LogLocked: A store is open; nothing is deleted.
    """
    from strandline.statestore.engines.folders import remove_all  # it imports RocksDB

    broker = app.broker
    check_at_rest(broker, app.name)
    root = state_root(app)
    if root is not None and root.exists():
        remove_all(root)  # first, because it fails if a store is open
    for name in app.declared.internal_topics():
        try:
            broker.delete_topic(name)
        except UnknownTopic:
            continue
    committed = broker.committed(app.name)
    if committed:
        broker.commit_offsets(app.name, dict.fromkeys(committed))


def check_at_rest(broker: Broker, app: str) -> None:
    """Raise InvalidRequest if the app has workers on this or another machine."""
    members = broker.describe_group(app).members
    if members:
        who = ", ".join(sorted(member.client or member.member_id for member in members))
        raise InvalidRequest(
            f"app {app!r} is running ({who}); stop it first. A worker that was killed leaves the "
            "group at once if the log is a folder; on Kafka, or with STRANDLINE_INSTANCE set, it "
            "leaves after its session timeout"
        )


def inside_event_loop() -> bool:
    """Return True if an asyncio loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def in_thread(call: Callable[[], T], stop: Callable[[], None]) -> T:
    """Make a call in a thread of its own; return its result or raise its error.

    If the caller is interrupted, `stop` is called until the call has ended. Repeated calls are needed
    because `stop` has no effect before the worker exists.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="strandline-run")
    try:
        thread.start()
        thread.join()
    except BaseException:
        while thread.is_alive():
            stop()
            thread.join(STOP_INTERVAL_S)
        raise
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def _stopped_by_signals(worker: Worker) -> Iterator[None]:
    """Stop the worker in order at the first SIGINT or SIGTERM, and at once at the second."""
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
