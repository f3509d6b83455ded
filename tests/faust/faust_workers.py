"""Faust workers as processes, and what they leave in the log."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strandline.changelog.log import Log
from tests.workers.processes import Process

HERE = Path(__file__).parent
WAIT_S = 60.0


class FaustProcess(Process):
    """A worker: `faust -A <app> worker`, in a folder of its own test."""

    def __init__(self, app: str, folder: Path, *, web: int | None = None, **env: str) -> None:
        output = folder / f"{app}-{time.monotonic_ns()}.out"
        web_options = (
            ["--without-web"]
            if web is None
            else ["--web-port", str(web), "--web-bind", "127.0.0.1", "--web-host", "127.0.0.1"]
        )
        where = {"FAUST_LOG": str(folder / "log"), "PYTHONPATH": str(HERE), "NO_COLOR": "1"}
        super().__init__(
            ["faust", "-A", app, "worker", "-l", "info", *web_options],
            output,
            folder=folder,
            environment={**where, **env},
        )

    def stop(self) -> int:
        """Stop the worker, and return its exit code."""
        try:
            return self.end()
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the worker did not stop:\n{self.text()[-5000:]}") from None


@contextmanager
def worker(app: str, folder: Path, **options: Any) -> Iterator[FaustProcess]:
    """Run a worker during the block, and stop it if it still runs."""
    running = FaustProcess(app, folder, **options)
    try:
        yield running
    except BaseException:
        print(running.text()[-6000:])
        raise
    finally:
        if running.is_running:
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
