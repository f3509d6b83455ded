"""Fixtures for every test."""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings

from strandline.changelog.clock import ManualClock
from strandline.changelog.memory_storage import MemoryStorage
from tests.checked import OpenedLogs
from tests.cleaning import ignore
from tests.forms import LONG, by_form, examples
from tests.kafka.brokers import kafka, name, now, running
from tests.systems import is_on_kafka, system

__all__ = ["kafka", "name", "now", "running", "system"]

MEMORY = Path("/dev/shm")
MIN_MEMORY_BYTES = 4 << 30
"""Free space at which the folders of tests are in memory. Half of the time of the suite is fsyncs,
and none of them is proved by waiting for a disk: crashes are simulated, or kill a process."""
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MIN_MEMORY_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # a variable of pytest itself

KAFKA, SPARK = SERVERS = ("kafka", "spark")
"""Groups of the tests that share a broker, and of those that share a JVM with Spark."""

# An example takes longer beside other work, which is no failure.
settings.register_profile("suite", deadline=None, max_examples=examples(100))
settings.load_profile("suite")

CHECKED_PART = by_form(3, 1)
"""The logs of one test in so many are checked after it."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out long forms unless they are asked for, and assign tests to processes.

    Each file, and all tests that share a server, stay in one process. Groups that take long come
    first, so that no process is left alone with one of them at the end.
    """
    if not LONG:
        longer = [item for item in items if _is_long(item)]
        config.hook.pytest_deselected(items=longer)
        items[:] = [item for item in items if item not in longer]
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group(_group(item)))
        items.sort(key=_by_length(items))


def pytest_collection_finish() -> None:
    """Leave modules and collected tests out of garbage collections: that of 7,000 tests takes 0.8 s
    otherwise, and some tests ask for one."""
    gc.collect()
    gc.freeze()


def _is_long(item: pytest.Item) -> bool:
    """Return True if a test, or its variant on Kafka, is left to the long form of the suite."""
    on_kafka = item.get_closest_marker("long_on_kafka") is not None and is_on_kafka(item)
    return on_kafka or item.get_closest_marker("long") is not None


def _group(item: pytest.Item) -> str:
    fixtures = set(getattr(item, "fixturenames", ()))
    if "spark" in fixtures:
        return SPARK
    if fixtures & {"kafka", "running", "three", "logs"} or is_on_kafka(item):
        return KAFKA
    return str(item.path)


def _by_length(items: list[pytest.Item]) -> Callable[[pytest.Item], tuple[int, int]]:
    """Return the key that sorts tests: servers, then files with slow tests, then by number."""
    groups = [_group(item) for item in items]
    slow = {
        group
        for item, group in zip(items, groups, strict=True)
        if item.get_closest_marker("slow") is not None
    }
    size = Counter(groups)
    ranks = {group: 0 if group in SERVERS else 1 if group in slow else 2 for group in size}
    return lambda item: (ranks[_group(item)], -size[_group(item)])


@pytest.fixture
def offsets_may_exceed_the_end() -> bool:
    """True if tests commit offsets beyond the end of the partition."""
    return False


@pytest.fixture(autouse=True)
def logs_are_checked(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    *,
    offsets_may_exceed_the_end: bool,
) -> Iterator[None]:
    """Check that the logs opened by a test are sound: in the long form after every test.

    A test that damages a log on purpose is marked with `@pytest.mark.damages`.
    """
    if crc32(request.node.nodeid.partition("@")[0].encode()) % CHECKED_PART:
        yield
        return
    logs = OpenedLogs(ignored={"group offset"} if offsets_may_exceed_the_end else set())
    logs.watch(monkeypatch)
    yield
    monkeypatch.undo()
    if request.node.get_closest_marker("damages") is None:
        logs.check(request.node.funcargs.get("tmp_path"))


@pytest.fixture
def clock() -> ManualClock:
    """Manual clock that starts at 2023-11-14 22:13:20 UTC."""
    return ManualClock(now_ms=1_700_000_000_000)


@pytest.fixture
def storage() -> MemoryStorage:
    """An empty folder in memory."""
    return MemoryStorage()


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Function that waits, up to `timeout` seconds, for a condition another thread or process
    meets."""

    def wait(condition: Callable[[], object], *, timeout: float = 60.0, what: str = "it") -> None:
        deadline = time.monotonic() + timeout
        while not (begun := time.monotonic()) > deadline:
            if condition():
                return
            # Asking may not take most of the processor from what is waited for.
            time.sleep(min(0.2, max(0.005, time.monotonic() - begun)))
        pytest.fail(f"{what} did not happen within {timeout:g} s")

    return wait


@pytest.fixture(scope="session")
def repository() -> Path:
    """Folder that holds the project's source."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(params=[True, False], ids=["looked at", "not looked at"])
def guarded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """True if stores look at `purged_end`; False shows that deleted keys come back without it."""
    if not request.param:
        ignore(monkeypatch, "purged_end")
    return bool(request.param)
