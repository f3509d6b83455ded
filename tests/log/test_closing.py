"""What nobody closed is closed when it is garbage, or at exit; and nothing stands still for that."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import changelog
from changelog.closing import Closing


class Thing:
    """Goes with its last reference."""


def test_garbage_is_closed_though_the_thread_that_finds_it_holds_what_closing_needs() -> None:
    """As the lock of all thread pools, while one of them starts a thread."""
    lock, closed = threading.Lock(), threading.Event()

    def close() -> None:
        with lock:
            closed.set()

    def find() -> None:
        thing = Thing()
        Closing(thing, close)
        with lock:
            del thing

    finding = threading.Thread(target=find, daemon=True)
    finding.start()
    finding.join(30)
    assert not finding.is_alive()
    assert closed.wait(30)


def test_no_thread_is_started_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds the garbage may be starting one, or ending: up to Python 3.12 that is under a lock."""
    closed = threading.Event()
    thing = Thing()
    Closing(thing, closed.set)
    with monkeypatch.context() as refusing:
        refusing.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
        del thing
    assert closed.wait(30)


def test_what_cannot_be_closed_keeps_nobody_else_open() -> None:
    closed = threading.Event()
    things = [Thing(), Thing()]
    Closing(things[0], lambda: 1 // 0)
    Closing(things[1], closed.set)
    things.clear()
    assert closed.wait(30)


def test_a_log_that_is_garbage_can_be_opened_again(tmp_path: Path) -> None:
    log = changelog.open(tmp_path)
    log.create_topic("words", 2)
    with log.producer() as producer:
        producer.append("words", [{"value": b"a"}], partition=1)
    del log, producer
    gc.collect()

    with changelog.open(tmp_path) as again:
        assert [topic.name for topic in again.topics()] == ["words"]


def test_what_is_open_at_exit_is_closed_then() -> None:
    program = """
from changelog.closing import Closing
class Thing: ...
thing = Thing()
Closing(thing, lambda: print("closed"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "closed\n"
