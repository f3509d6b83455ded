"""Processes that own or attach to a log, and brokers over a socket in this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from strandline.changelog.embedded.owner import Owner
from strandline.changelog.flight.client import FlightBroker
from strandline.changelog.flight.connection_target import ConnectionTarget
from strandline.changelog.flight.server import FlightEndpoint
from strandline.changelog.local_storage import LocalStorage

TOKEN = "a token of the tests"


class Process:
    """A helper process, driven by its standard input and output."""

    def __init__(self, folder: Path, role: str, repository: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(repository / "tests/attach/helper.py"), str(folder), role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "PYTHONPATH": str(repository)},
        )
        self.pid = self._process.pid
        self.state, _, _ = self.answer().partition(" ")
        if not self.state:
            self.kill()
            pytest.fail("a helper process ended at once; see its standard error above")

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.answer()

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def exit(self) -> int:
        assert self.ask("exit") == "closed"
        return self._process.wait(10)


@pytest.fixture
def start(tmp_path: Path, repository: Path) -> Iterator[Callable[..., Process]]:
    """Start a helper process on the test's folder."""
    started: list[Process] = []

    def start_one(role: str = "own_or_attach", folder: Path | None = None) -> Process:
        started.append(Process(folder or tmp_path / "log", role, repository))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(LocalStorage(tmp_path / "log"), durability="os")
    yield owner
    owner.close()


@pytest.fixture
def endpoint(owner: Owner, tmp_path: Path) -> Iterator[FlightEndpoint]:
    location = f"grpc+unix://{tmp_path}/s"
    endpoint = FlightEndpoint(owner, location, token=TOKEN, locate=owner.locate)
    yield endpoint
    endpoint.close()


@pytest.fixture
def target(endpoint: FlightEndpoint, tmp_path: Path) -> ConnectionTarget:
    return ConnectionTarget(f"grpc+unix://{tmp_path}/s", TOKEN, "the test's log")


@pytest.fixture
def beside(target: ConnectionTarget, tmp_path: Path) -> Iterator[FlightBroker]:
    """A broker attached where the log's files can be read."""
    broker = FlightBroker(replace(target, folder=tmp_path / "log"), deadline=10)
    yield broker
    broker.close()


@pytest.fixture
def afar(target: ConnectionTarget) -> Iterator[FlightBroker]:
    """A broker attached where the log's files cannot be read."""
    broker = FlightBroker(target, deadline=10)
    yield broker
    broker.close()


@pytest.fixture(params=["beside", "afar"])
def attached(request: pytest.FixtureRequest) -> FlightBroker:
    """A broker attached in either way."""
    broker: FlightBroker = request.getfixturevalue(request.param)
    return broker


@pytest.fixture
def columns() -> Callable[..., pa.RecordBatch]:
    """Function that returns `count` records, numbered from `start`, with the current time."""
    now = time.time_ns() // 1_000_000

    def make(count: int, start: int = 0) -> pa.RecordBatch:
        values = [str(start + n).encode() for n in range(count)]
        return pa.record_batch(
            {
                "timestamp": pa.array(range(now, now + count), pa.int64()),
                "key": pa.array(values, pa.binary()),
                "value": pa.array(values, pa.binary()),
            }
        )

    return make
