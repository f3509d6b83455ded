"""Objects that were never closed are closed by garbage collection, or at exit, without
deadlocks."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline import changelog
from strandline.changelog.closing import CloseOnce
from strandline.changelog.layout import CLEAN
from strandline.changelog.records import TopicPartition
from tests.log.kit import Client, World

LATE = TopicPartition("late", 0)


class Thing:
    """Is collected with its last reference."""


def test_garbage_is_closed_even_if_the_thread_that_finds_it_holds_a_lock_that_closing_needs() -> (
    None
):
    """The finder may hold the lock of all thread pools, while one of them starts a thread."""
    lock, closed = threading.Lock(), threading.Event()

    def close() -> None:
        with lock:
            closed.set()

    def find() -> None:
        thing = Thing()
        CloseOnce(thing, close)
        with lock:
            del thing

    finding = threading.Thread(target=find, daemon=True)
    finding.start()
    finding.join(30)
    assert not finding.is_alive()
    assert closed.wait(30)


def test_closing_garbage_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finder may be starting or ending a thread, up to Python 3.12 under a lock."""
    closed = threading.Event()
    thing = Thing()
    CloseOnce(thing, closed.set)
    with monkeypatch.context() as refusing:
        refusing.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
        del thing
    assert closed.wait(30)


def test_an_object_that_fails_to_close_does_not_keep_others_open() -> None:
    closed = threading.Event()
    things = [Thing(), Thing()]
    CloseOnce(things[0], lambda: 1 // 0)
    CloseOnce(things[1], closed.set)
    things.clear()
    assert closed.wait(30)


def test_a_log_that_was_garbage_collected_can_be_opened_again(tmp_path: Path) -> None:
    log = changelog.open(tmp_path)
    log.create_topic("words", 2)
    with log.producer() as producer:
        producer.append("words", [{"value": b"a"}], partition=1)
    del log, producer
    gc.collect()

    with changelog.open(tmp_path) as again:
        assert [topic.name for topic in again.topics()] == ["words"]


def test_open_objects_are_closed_at_exit() -> None:
    program = """
from strandline.changelog.closing import CloseOnce
class Thing: ...
thing = Thing()
CloseOnce(thing, lambda: print("closed"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "closed\n"


OWNING = """
import sys
from strandline import changelog
log = changelog.open(sys.argv[1])
log.create_topic("words", 3, config={"cleanup.policy": "compact"})
producer = log.producer()
for partition in range(3):
    producer.append("words", [{"key": b"k", "value": b"a"}], partition=partition)
"""
ATTACHED = (
    OWNING
    + """
import subprocess
beside = (
    "import sys; from strandline import changelog; log = changelog.open(sys.argv[1]); "
    "log.producer().append('words', [{'key': b'k', 'value': b'b'}], partition=0)"
)
done = subprocess.run([sys.executable, "-c", beside, sys.argv[1]], capture_output=True, text=True)
assert (done.returncode, done.stderr) == (0, ""), done.stderr
"""
)
AT_EXIT = """
import atexit, sys
from strandline import changelog
log = changelog.open(sys.argv[1])
log.create_topic("words", 1)
producer = log.producer()
atexit.register(lambda: (producer.send("words", b"late", key=b"k"), producer.flush(timeout=20)))
"""


@pytest.mark.parametrize(
    ("program", "records"),
    [(OWNING, 3), (ATTACHED, 4), (OWNING + "log.broker.clean(['words'])", 3)],
    ids=["owning", "attached", "cleaning"],
)
def test_a_log_that_is_open_at_exit_is_closed_in_order_and_silently(
    program: str, records: int, tmp_path: Path
) -> None:
    """From Python 3.12 on no thread can be started once the interpreter is ending."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "log" / CLEAN).exists(), "it was closed in order"
    with changelog.open(tmp_path / "log") as log:
        assert sum(end.high_watermark for end in log.offsets("words").values()) >= records


def test_records_sent_by_a_function_at_exit_arrive(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with changelog.open(tmp_path / "log") as log:
        assert log.offsets("words")[0].high_watermark == 1


@pytest.mark.parametrize("moment", ["before the partitions are synced", "before they are shut"])
def test_a_first_record_that_is_appended_during_the_close_is_there_afterwards(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its append had begun before, in another thread."""
    world = World()
    for name in ("t", "late"):
        world.owner.create_topic(name)
    client, log = Client(world), world.owner._log
    client.append(b"a")

    def and_append(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            result = call(*args, **options)
            if log._closed and not log.partition(LATE).segments:
                log._closed = False  # as it was when the append began
                client.append(b"b", topic="late")
                log._closed = True
            return result

        return wrapped

    if moment == "before they are shut":
        parallel = and_append(log.context.in_parallel)
        monkeypatch.setattr(log.context, "in_parallel", parallel)
    else:
        monkeypatch.setattr(log.coordinator, "close", and_append(log.coordinator.close))
    world.owner.close()
    monkeypatch.undo()
    world.open()
    assert (world.values(), world.values("late")) == ([b"a"], [b"b"])
