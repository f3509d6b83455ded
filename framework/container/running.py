"""Running an app in this process: its log, its worker, and the signals that stop it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.credentials import token_of
from strandline.changelog.errors import (
    InvalidConfig,
    InvalidRequest,
    StrandlineError,
    out_of_memory,
)
from strandline.changelog.metrics import MetricReading
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.container.folders import StoreFolders
from strandline.framework.container.group_membership import (
    GroupMembership,
    Join,
    SoleMember,
    member_of,
)
from strandline.framework.container.manager import TaskManager
from strandline.framework.container.metrics import WorkerCounters
from strandline.framework.container.outage import patiently
from strandline.framework.container.provider import StoreProvider
from strandline.framework.container.restore import OnRestore, RestoreBar
from strandline.framework.container.session import WorkerSession
from strandline.framework.container.worker import Worker
from strandline.framework.declarations import Declarations
from strandline.framework.left_behind import check_left_behind
from strandline.framework.options import UNTIL, Options, Until
from strandline.framework.querying.endpoint import QueryEndpoint
from strandline.framework.session import Session
from strandline.framework.store_declarations import StoreDeclarations
from strandline.framework.task_positions import check_positions
from strandline.statestore.memory import MemoryBudget

T = TypeVar("T")


STOP_INTERVAL_S = 0.05
"""Seconds between two looks at a run in another thread, and two calls of `stop` once interrupted."""


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


class Runner:
    """Runs the tasks of an app in this process, one run at a time."""

    def __init__(self, session: Session, declared: Declarations) -> None:
        self.session = session
        self.declared = declared
        self.worker: Worker | None = None
        """Worker of the current run; None while there is none."""

    def run(
        self, limits: RunLimits, *, progress: bool | OnRestore = False, metrics: str | None = None
    ) -> int:
        """Start a worker, run it within the limits, and close it.

        Args:
            limits: Limits at which the run ends.
            progress: True for a progress bar of the restore, or a callback for its progress.
            metrics: Address at which metrics are served during the run; None for none.

        Returns:
            Number of records handled.
        """
        if self.worker is not None:
            raise InvalidRequest(f"app {self.session.app!r} is running already, in another thread")
        if metrics is None:
            return self._run(limits, progress)
        from strandline.framework.metrics import served

        with served(metrics, self.metrics):
            return self._run(limits, progress)

    def run_blocking(
        self, limits: RunLimits, *, progress: bool | OnRestore, metrics: str | None
    ) -> int:
        """Run as `run` does, but in a thread of its own if an asyncio loop runs in this one."""
        run = partial(self.run, limits, progress=progress, metrics=metrics)
        return in_thread(run, self.stop) if inside_event_loop() else run()

    async def run_async(self, limits: RunLimits, *, metrics: str | None) -> int:
        """Run in a thread; a cancellation stops the run and waits for its last commit."""
        work = asyncio.ensure_future(asyncio.to_thread(self.run, limits, metrics=metrics))
        # A thread cannot be cancelled. The shield keeps the future alive after a cancellation, so
        # that the worker can be stopped and its last commit awaited.
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            while not work.done():  # `stop` has no effect before the thread has made the worker
                self.stop()
                await asyncio.wait([work], timeout=STOP_INTERVAL_S)
            work.result()
            raise

    def stop(self) -> None:
        """End the current run after a last commit. May be called from any thread."""
        worker = self.worker
        if worker is not None:
            worker.stop()

    def is_running(self) -> bool:
        """Return True during a run."""
        return self.worker is not None

    def metrics(self) -> list[MetricReading]:
        """Return the metrics of the worker, and those of the log if this process owns it."""
        worker = self.worker
        return [*([] if worker is None else worker.metrics()), *self.session.metrics()]

    def _run(self, limits: RunLimits, progress: bool | OnRestore) -> int:
        worker = self.worker = worker_for(self.session, self.declared, progress=progress)
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
            name = self.session.app
            raise out_of_memory(error, f"go on with app {name!r}, which lost nothing") from error
        finally:
            self.worker = None
            worker.close()


def worker_for(
    session: Session, declared: Declarations, *, progress: bool | OnRestore = False
) -> Worker:
    """Return a worker for all tasks of the app, which is not started. Raises InvalidConfig."""
    declared.check_tasks()
    broker, memory = session.broker(), MemoryBudget(session.options.memory)
    folders = StoreFolders(
        session.state_folder(), session.clock, memory=memory, log=session.folder()
    )
    queries = QueryEndpoint(
        *(session.folder(), session.options.application_server, token_of()),
        encrypted=session.is_encrypted(),
    )
    try:
        return worker_on(
            *(broker, declared, session.clock, session.options, folders),
            queries=queries,
            on_restore=RestoreBar() if progress is True else progress or None,
        )
    except BaseException:
        queries.close()
        raise


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
    check_left_behind(declared, broker, clock)
    check_positions(declared, broker, infos)
    counters = WorkerCounters(declared.app, folders.counters)
    context = ContainerContext(declared, infos, broker, clock, options, counters)
    stores = [store for spec in context.tasks for store in spec.all_stores]
    declarations = StoreDeclarations(
        *(declared.app, stores, infos, broker, clock),
        topics=declared.derived_topics(),
    )
    patiently(declarations.record)
    tasks = TaskManager(
        *(context, folders, declarations),
        in_background=not alone,
        queries=queries,
        on_restore=on_restore,
    )
    join = (
        partial(SoleMember, declared.app, tasks.input_partitions)
        if alone
        else member_of(context, queries.urls if queries else ())
    )
    session = WorkerSession(context, _taking_back(declarations, join))
    if queries is not None:
        provider = StoreProvider(declared.app, context.tasks, tasks.running, session.is_certain)
        queries.start(provider.answer)
    return Worker(context, tasks, session)


def _taking_back(declarations: StoreDeclarations, join: Join) -> Join:
    """Return a function that joins; if the group refuses it at first, nothing stays recorded."""
    has_joined = False

    def joined() -> GroupMembership:
        nonlocal has_joined
        try:
            membership = join()
        except InvalidConfig:
            if not has_joined:
                patiently(declarations.take_back)
            raise
        has_joined = True
        return membership

    return joined


def raise_failures(worker: Worker) -> None:
    """Raise the error of the first task instance that stopped; add the others' as notes."""
    failures = worker.failures
    if failures:
        for other in failures[1:]:
            failures[0].add_note(f"and: {other}")
        raise failures[0]


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
    interrupted, ended = threading.Event(), threading.Event()

    def work() -> None:
        try:
            if not interrupted.is_set():
                results.append(call())
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=work, name="strandline-run")
    try:
        thread.start()
        # No join: on Python 3.11 a thread is taken for ended after its join was interrupted. And no
        # wait without an end: a signal that comes just before it does not interrupt it.
        while not ended.wait(STOP_INTERVAL_S):
            pass
    except BaseException:
        interrupted.set()
        while thread.is_alive() and not ended.is_set():
            stop()
            ended.wait(STOP_INTERVAL_S)
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
