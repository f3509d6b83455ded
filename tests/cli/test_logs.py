"""Messages of commands on stderr, as text and as JSON."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest

import strandline as sl
from strandline import changelog
from strandline.framework.cli import logs
from tests.cli.conftest import Command
from tests.workers.processes import ROOT

SHOP = """
import warnings

import strandline as sl

app = sl.App("shop", commit_interval_ms=10)
sales = app.topic("sales", value=int, partitions=2)
totals = app.store("totals", value=int, default=0)


@app.task(sales, stores=[totals], on_error=POLICY)
def add(record):
    if record.value < 0:
        warnings.warn("a negative\\nvalue")
        print("printed\\n{", flush=True)
        raise ValueError("below zero")
    totals[record.key] += record.value
"""
GIVEN = [msgspec.msgpack.encode(value) for value in (1, -2, 3)]


class Shop:
    """An app as a file, and commands as processes on its log."""

    def __init__(self, folder: Path, policy: str = "skip") -> None:
        self.folder = folder
        (folder / "shop.py").write_text(SHOP.replace("POLICY", repr(policy)))
        with changelog.open(folder / "log") as log:
            log.create_topic("sales", 2, config={"retention.ms": "-1"})
            log.append("sales", [{"key": b"a", "value": value} for value in GIVEN])

    def run(self, *arguments: str, **environment: str) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "strandline", *arguments],
            cwd=self.folder,
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def environment(self, **more: str) -> dict[str, str]:
        here = {"PYTHONPATH": str(ROOT), "STRANDLINE_LOG": str(self.folder / "log")}
        return {**os.environ, **here, **more}


def messages(text: str) -> list[dict[str, Any]]:
    """Parse each line, which must be a JSON object with the fields of every message."""
    told = [json.loads(line) for line in text.splitlines()]
    for message in told:
        assert list(message)[:5] == ["time", "level", "logger", "pid", "message"], message
        assert message["time"].endswith("Z")
    return told


def about(told: list[dict[str, Any]], words: str) -> dict[str, Any]:
    """Return the one message that begins with `words`."""
    [found] = [message for message in told if message["message"].startswith(words)]
    return found


@pytest.mark.parametrize("by", ["option", "variable"])
def test_all_of_stderr_is_json(by: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    option = ["--log-format", "json"] if by == "option" else []
    variable = {"STRANDLINE_LOG_FORMAT": "json"} if by == "variable" else {}
    done = shop.run("run", "shop:app", "--until", "idle", *option, **variable)
    assert (done.returncode, done.stdout) == (0, "printed\n{\n")
    told = messages(done.stderr)
    takes = about(told, "app shop takes up")
    assert (takes["app"], takes["partitions"]) == ("shop", ["sales-0", "sales-1"])
    back = about(told, "app shop has 2 store partitions back")
    assert (back["stores"], back["records"], back["seconds"] >= 0) == (2, 0, True)
    skipped = about(told, "task add: skip: record sales")
    assert (skipped["level"], skipped["error"], skipped["times"]) == ("WARNING", "ValueError", 1)
    assert (skipped["task"], skipped["partition"] in (0, 1)) == ("add", True)
    assert about(told, "3 records handled")["records"] == 3
    [warning] = [message for message in told if message["logger"] == "py.warnings"]
    assert "a negative\nvalue" in warning["message"]
    assert len({message["pid"] for message in told}) == 1


def test_the_address_of_metrics_is_logged_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    run = ["run", "shop:app", "--until", "idle", "--metrics", "127.0.0.1:0"]
    assert shop.run(*run).stderr.count("metrics are at http://127.0.0.1:") == 1
    said = about(messages(shop.run(*run, "--log-format=json").stderr), "metrics are at")
    assert said["message"].endswith(said["url"])


def test_messages_are_plain_text_by_default(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    done = shop.run("run", "shop:app", "--until", "idle", PYTHONWARNINGS="ignore")
    first, skipped, last = done.stderr.splitlines()
    assert first == f"app shop runs on {tmp_path / 'log'}; Ctrl-C commits and ends it"
    assert skipped.startswith("task add: skip: record sales-")
    assert last.startswith("3 records handled in ")


@pytest.mark.parametrize("debug", [False, True])
def test_an_error_is_a_message_with_its_type(debug: bool, tmp_path: Path) -> None:
    shop = Shop(tmp_path, policy="fail")
    options = ["--log-format=json", *(["--debug"] if debug else [])]
    done = shop.run("run", "shop:app", "--until", "idle", *options)
    assert done.returncode == 1
    told = messages(done.stderr)
    last = told[-1]
    assert (last["level"], last["error"]) == ("ERROR", "TaskFailed")
    assert ("traceback" in last, "below zero" in last.get("traceback", "")) == (debug, debug)
    stops = about(told, "partition")
    assert (stops["task"], stops["error"]) == ("add", "ValueError")


@pytest.mark.long
def test_messages_of_workers_and_their_supervisor_are_json(tmp_path: Path, eventually: Any) -> None:
    shop = Shop(tmp_path)
    said = tmp_path / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "strandline", "--log-format", "json"]
            + ["run", "shop:app", "--workers", "2"],
            cwd=tmp_path,
            env=shop.environment(),
            stdin=subprocess.DEVNULL,
            stderr=output,
        )

    def both_are_at_work() -> bool:
        whole = said.read_text().rpartition("\n")[0]
        takers = {m["pid"] for m in messages(whole) if "takes up" in m["message"]}
        return len(takers) == 2 and "task add: skip" in whole

    try:
        eventually(both_are_at_work, timeout=60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(30)
    told = messages(said.read_text())
    printed = about(told, "printed")
    assert (printed["worker"] in (0, 1), printed["pid"]) == (True, process.pid)
    assert about(told, "task add: skip")["pid"] != process.pid
    assert "worker" not in about(told, "3 records handled")


def test_an_unknown_format_is_a_usage_error(
    strandline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = strandline("topics", "list", "--log-format", "xml")
    assert (outcome.code, outcome.err) == (2, "--log-format is one of text, json; got 'xml'\n")
    assert strandline("topics", "list", "--log-format").code == 2
    monkeypatch.setenv("STRANDLINE_LOG_FORMAT", "xml")
    outcome = strandline("topics", "list")
    assert (outcome.code, "STRANDLINE_LOG_FORMAT" in outcome.err) == (2, True)


def test_an_unexpected_error_is_logged_with_its_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exit_, logs.reporting_as("json"):
        raise ZeroDivisionError("never thought of")
    [told] = messages(capsys.readouterr().err)
    assert (exit_.value.code, told["level"], told["error"]) == (1, "CRITICAL", "ZeroDivisionError")
    assert "never thought of" in told["traceback"]


def test_a_command_restores_the_logging_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    def state() -> tuple[object, ...]:
        root, ours = logging.getLogger(), logging.getLogger("strandline")
        said = os.environ.get("STRANDLINE_LOG_FORMAT")
        return list(root.handlers), root.level, ours.level, warnings.showwarning, said

    before = state()
    with logs.reporting_as("json"):
        assert state() != before
        logging.getLogger("strandline").info("now", extra={"app": "shop"})
    assert state() == before
    assert messages(capsys.readouterr().err)[0]["app"] == "shop"


# The formatter --------------------------------------------------------------------------------


class Endless(list[Any]):
    """A list that contains itself."""

    def __init__(self) -> None:
        super().__init__([self])


@pytest.mark.parametrize(
    ("extra", "shown"),
    [
        ({"a": 1, "b": [True, None, "x"]}, {"a": 1, "b": [True, None, "x"]}),
        ({"a": Path("/x"), "b": ValueError("no")}, {"a": "/x", "b": "ValueError"}),
        ({"a": float("nan")}, {"a": "nan"}),
        ({"a": {(1, 2): 3}}, {"a": "{(1, 2): 3}"}),
        ({"a": Endless()}, {"a": "[[...]]"}),
        ({"a": "\udce4 \u2028 \n"}, {"a": "\udce4 \u2028 \n"}),
        ({"level": "mine", "time": 0}, {"level": "INFO"}),
    ],
)
def test_any_arguments_are_formatted_as_one_line(extra: Any, shown: dict[str, Any]) -> None:
    record = logging.makeLogRecord(
        {"name": "shop", "levelname": "INFO", "msg": "two\nlines", **extra}
    )
    line = sl.JsonFormatter().format(record)
    assert line.isascii()
    assert "\n" not in line
    told = json.loads(line)
    assert {name: told[name] for name in shown} == shown
    assert told["message"] == "two\nlines"
    assert told["time"] != 0


def test_a_users_program_may_use_the_formatter() -> None:
    log, lines = logging.getLogger("tests.own"), []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Kept()
    handler.setFormatter(sl.JsonFormatter())
    log.addHandler(handler)
    try:
        int("x")
    except ValueError:
        log.exception("cannot read %r", "x", extra={"till": 7})
    finally:
        log.removeHandler(handler)
    [told] = messages("\n".join(lines))
    assert (told["message"], told["till"], told["error"]) == ("cannot read 'x'", 7, "ValueError")
    assert told["traceback"].startswith("Traceback")
