"""Faust workers as processes, and what they leave in the log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strandline.changelog.log import Log

HERE = Path(__file__).parent
WAIT_S = 60.0


class FaustProcess:
    """A worker: `faust -A <app> worker`, in a folder of its own test."""

    def __init__(self, app: str, folder: Path, *, web: int | None = None, **env: str) -> None:
        self.output = folder / f"{app}-{time.monotonic_ns()}.out"
        web_options = (
            ["--without-web"]
            if web is None
            else ["--web-port", str(web), "--web-bind", "127.0.0.1", "--web-host", "127.0.0.1"]
        )
        where = {"FAUST_LOG": str(folder / "log"), "PYTHONPATH": str(HERE), "NO_COLOR": "1"}
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "faust", "-A", app, "worker", "-l", "info", *web_options],
                cwd=folder,
                env={**os.environ, **where, **env},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def said(self) -> str:
        """Return the output so far."""
        return self.output.read_text(errors="replace")

    def kill(self) -> None:
        """Kill the process as `kill -9` does."""
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> int:
        """Stop the worker, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the worker did not stop:\n{self.said()[-5000:]}") from None


@contextmanager
def worker(app: str, folder: Path, **options: Any) -> Iterator[FaustProcess]:
    """Run a worker during the block, and stop it if it still runs."""
    running = FaustProcess(app, folder, **options)
    try:
        yield running
    except BaseException:
        print(running.said()[-6000:])
        raise
    finally:
        if running.process.poll() is None:
            running.kill()


def eventually(found: Callable[[], Any], *, within: float = WAIT_S) -> Any:
    """Return the first true result of `found`; fail after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        result = found()
        if result:
            return result
        assert time.monotonic() < deadline, f"not within {within} s: {result!r}"
        time.sleep(0.1)


def rows(log: Log, topic: str) -> list[tuple[int, int, Any, Any]]:
    """Return partition, offset, key and value of a topic's committed records; empty if missing."""
    if topic not in {info.name for info in log.topics(internal=True)}:
        return []
    table = log.read(topic)
    names = ("partition", "offset", "key", "value")
    columns = (table.column(name).to_pylist() for name in names)
    return [(p, o, _plain(k), _plain(v)) for p, o, k, v in zip(*columns, strict=True)]


def latest(log: Log, changelog: str) -> dict[Any, Any]:
    """Return the state that a changelog describes."""
    state: dict[Any, Any] = {}
    for _, _, key, value in rows(log, changelog):
        if value is None:
            state.pop(str(key), None)
        else:
            state[str(key)] = value
    return state


def _plain(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
