"""Faust workers as processes, and what they leave in the log."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline.changelog.errors import UnknownTopic
from strandline.changelog.log import Log
from tests.systems import System
from tests.workers.processes import BOUND_SECONDS, ROOT, Process

HERE = Path(__file__).parent
WAIT_S = 60.0
SESSION_S = 4.0
"""Seconds. Session timeout of workers, so that a Kafka cluster soon considers them dead."""


class FaustProcess(Process):
    """A worker: `faust -A <app> worker`, in a folder of its own test."""

    def __init__(
        self,
        app: str,
        system: System,
        folder: Path,
        *,
        web: int | None = None,
        command: str = "worker",
        bound: float = BOUND_SECONDS,
        **env: str,
    ) -> None:
        output = folder / f"{app}-{time.monotonic_ns()}.out"
        web_options = (
            ["--without-web"]
            if web is None
            else ["--web-port", str(web), "--web-bind", "127.0.0.1", "--web-host", "127.0.0.1"]
        )
        where = {
            "FAUST_BROKER": broker_url(system),
            "FAUST_PREFIX": system.prefix,
            "FAUST_SESSION_S": str(SESSION_S),
            "PYTHONPATH": f"{HERE}{os.pathsep}{ROOT}",
            "NO_COLOR": "1",
        }
        super().__init__(
            ["faust", "-A", app, command, "-l", "info", *web_options],
            output,
            folder=folder,
            bound=bound,
            environment={**where, **env},
        )

    def stop(self) -> int:
        """Stop the worker, and return its exit code."""
        try:
            return self.end()
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the worker did not stop:\n{self.text()[-5000:]}") from None


def in_folder(folder: Path) -> System:
    """Return the log of a test that runs in a folder only: its names have no prefix."""
    return System("embedded", str(folder / "log"), folder / "log" / "state", "")


def broker_url(system: System) -> str:
    """Return the URL of a system's log for Faust."""
    return f"strandline+{system.url}" if system.is_kafka else f"strandline://{system.url}"


@contextmanager
def worker(app: str, system: System, folder: Path, **options: Any) -> Iterator[FaustProcess]:
    """Run a worker during the block, and stop it if it still runs."""
    running = FaustProcess(app, system, folder, **options)
    try:
        yield running
    except BaseException:
        print(running.text()[-6000:])
        raise
    finally:
        if running.is_running:
            running.kill()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def page(port: int, path: str) -> Any:
    """Return what a worker's view shows; None if it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return json.loads(answer.read())
    except OSError:
        return None


def append(log: Log, topic: str, values: list[Any], keys: list[Any] | None = None) -> None:
    """Append values as JSON, with plain text as keys."""
    records = [{"value": json.dumps(value).encode()} for value in values]
    if keys is None:
        log.append(topic, records)
    else:
        pairs = zip(records, keys, strict=True)
        log.append(topic, [{**one, "key": key.encode()} for one, key in pairs], key="key")


def rows(log: Log, topic: str) -> list[tuple[int, int, Any, Any]]:
    """Return partition, offset, key and value of a topic's committed records."""
    return FaustLog(log, "").rows(topic)


def latest(log: Log, changelog: str) -> dict[Any, Any]:
    """Return the state that a changelog describes."""
    return FaustLog(log, "").latest(changelog)


def by_key(log: Log, topic: str) -> dict[Any, list[Any]]:
    """Return the committed values of each key of a topic."""
    found: dict[Any, list[Any]] = {}
    for _, _, key, value in rows(log, topic):
        found.setdefault(key, []).append(value)
    return found


def eventually(found: Callable[[], Any], *, within: float = WAIT_S) -> Any:
    """Return the first true result of `found`; fail after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        result = found()
        if result:
            return result
        assert time.monotonic() < deadline, f"not within {within} s: {result!r}"
        time.sleep(0.1)


@dataclass(frozen=True)
class FaustLog:
    """The log of a test. Names of apps and topics get the test's prefix, as in `sample_settings`."""

    log: Log
    prefix: str

    def create(self, topic: str, partitions: int, **options: Any) -> None:
        """Create a topic."""
        self.log.create_topic(self.prefix + topic, partitions, **options)

    def append(self, topic: str, rows: Sequence[Mapping[str, Any]], **options: Any) -> None:
        """Append records to a topic."""
        self.log.append(self.prefix + topic, rows, **options)

    def read(self, topic: str) -> list[dict[str, Any]]:
        """Return a topic's committed records; empty if it does not exist."""
        try:
            return self.log.read(self.prefix + topic).to_pylist()
        except UnknownTopic:
            return []

    def rows(self, topic: str) -> list[tuple[int, int, Any, Any]]:
        """Return partition, offset, key and value of a topic's committed records."""
        return [
            (one["partition"], one["offset"], _plain(one["key"]), _plain(one["value"]))
            for one in self.read(topic)
        ]

    def latest(self, changelog: str) -> dict[Any, Any]:
        """Return the state that a changelog describes."""
        state: dict[Any, Any] = {}
        for _, _, key, value in self.rows(changelog):
            if value is None:
                state.pop(str(key), None)
            else:
                state[str(key)] = value
        return state

    def owned(self, app: str, topic: str) -> list[int]:
        """Return the numbers of partitions of a topic that the workers of an app own, sorted."""
        members = self.log.broker.describe_group(self.prefix + app).members
        return sorted(sum(tp.topic == self.prefix + topic for tp in one.held) for one in members)

    def committed(self, app: str, topic: str) -> dict[int, int]:
        """Return an app's committed offset of each partition of a topic."""
        found = self.log.broker.committed(self.prefix + app)
        return {
            tp.partition: at.offset for tp, at in found.items() if tp.topic == self.prefix + topic
        }


def _plain(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
