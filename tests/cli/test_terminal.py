"""Data is shown without letting it control the terminal."""

from __future__ import annotations

import ast
import json
import logging
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.errors import InvalidRequest
from strandline.changelog.log import Log
from strandline.changelog.printable import printable
from strandline.framework.cli import output
from strandline.framework.cli.reporting import reporting_errors
from strandline.framework.container.restore import RestoreBar, RestoreProgress
from strandline.framework.supervisor.logs import LogFiles
from strandline.framework.task import OnError
from tests.cli.conftest import Command

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202egpj.\u2066\r[red]x[/red]\x00\U000e0041"
ACTED_ON = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), "\u202e", "\u2066", "\U000e0041"]


def harms(text: str) -> set[str]:
    return {c for c in text if c in ACTED_ON} - {"\t", "\n"}


@pytest.fixture
def app(log: Log) -> sl.App:
    """An app whose topic and store have keys and values with control sequences and markup."""
    app = sl.App("evil", log=log)
    words = app.topic("words", key=str, value=str, partitions=1)
    kept = app.store("kept", key=str, value=dict[str, str])

    @app.task(words, stores=[kept], on_error="dead_letter")
    def keep(record: sl.Record[str, str]) -> None:
        kept[record.key] = {EVIL: record.value}
        if record.value == "fail":
            raise ValueError(EVIL)

    words.append([(EVIL, EVIL), (EVIL + "2", "fail")])
    log.append("words", [{"key": b"k", "value": b"v", "headers": [(EVIL, EVIL.encode())]}])
    app.run(until="idle", progress=False)
    return app


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "list"],
        ["topics", "describe", "words"],
        ["consume", "words"],
        ["consume", "words", "--value-format", "text"],
        ["consume", "evil-keep-dead-letter"],
        ["stores", "scan", "evil/kept"],
        ["stores", "scan", "evil/kept", "--json"],
        ["stores", "get", "evil/kept", EVIL],
        ["stores", "get", "evil/kept", "no" + EVIL],
        ["stores", "get", EVIL, EVIL],
        ["topics", "describe", EVIL],
        ["groups", "list"],
        ["groups", "describe", EVIL],
        ["config", "set", EVIL, EVIL],
        ["consume", EVIL],
        ["--debug", "consume", EVIL],
    ],
)
def test_no_command_lets_data_control_the_terminal(
    app: sl.App, strandline: Command, arguments: list[str]
) -> None:
    said = strandline(*arguments)
    assert said.out + said.err
    assert harms(said.out + said.err) == set()
    if "--json" in arguments:
        assert {EVIL, EVIL + "2"} & {line["key"] for line in said.lines}


def test_markup_in_data_is_shown_as_text(app: sl.App, strandline: Command) -> None:
    assert "[red]x[/red]" in strandline("stores", "scan", "evil/kept").out


@pytest.mark.parametrize("terminal", [True, False])
def test_every_function_that_writes_sanitizes_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    output.table(EVIL, [EVIL, "n"], [[EVIL, 1], [{EVIL: EVIL}, 2]])
    output.facts([(EVIL, EVIL)])
    output.document({EVIL: EVIL})
    output.line(EVIL)
    output.note(EVIL)
    with pytest.raises(Exception, match="1"), reporting_errors():
        raise InvalidRequest(EVIL)
    said = capsys.readouterr()
    assert said.out.count("[red]") + said.err.count("[red]") >= 5  # a narrow table wraps some
    # Bold letters belong to the table.
    assert harms((said.out + said.err).replace("\x1b[1m", "").replace("\x1b[0m", "")) == set()


def test_a_warning_cannot_control_the_terminal(
    strandline: Command, app: sl.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strandline.framework.cli import logs

    records = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(self.format(record))

    monkeypatch.setattr(logging, "lastResort", Kept())
    with logs.reporting_as("text"):
        logging.getLogger("strandline.nobody").propagate = False
        logging.getLogger("strandline.nobody").warning("key %s", EVIL)
    assert records
    assert harms(records[0]) == set()


def test_the_progress_bar_shows_markup_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    bar = RestoreBar(after_seconds=0.0)
    bar(RestoreProgress(1, 2, 3, 1.0, False))
    columns = bar._shown.columns
    bar(RestoreProgress(3, 0, 3, 1.0, True))
    assert not any(getattr(column, "markup", False) for column in columns)


def test_safe_text_is_not_changed() -> None:
    for text in ("", "plain", "über α 漢字 😀 é", "a\tb\nc", '{"a": [1, "é"]}'):
        assert printable(text) == text
    assert json.loads(printable(json.dumps(EVIL, ensure_ascii=False))) == EVIL
    assert harms(printable("".join(map(chr, [*range(0x3000), *range(0xE0000, 0xE0080)])))) == set()


@pytest.mark.parametrize(
    "character", "\u034f\u115f\u1160\u180e\u180f\u200b\u3164\ufeff\uffa0\U000e0001\U000e0fff"
)
def test_an_invisible_character_is_shown(character: str) -> None:
    assert printable(f"a{character}b").startswith("a\\u")


def test_files_of_workers_can_be_read_on_a_terminal(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, 1)
    files.take(0, [EVIL, "plain"])
    files.close()
    written = (tmp_path / "worker-0.log").read_text()
    assert harms(written) == set()
    assert written.endswith("[red]x[/red]\\u0000\\udb40\\udc41\nplain\n")


def test_commands_write_through_one_module(repository: Path) -> None:
    """Only `framework.cli.output`, which sanitizes text, and two other modules write."""

    def writes(node: ast.AST) -> bool:
        match node:
            case ast.Call(func=ast.Name(id="print")):
                return True
            case ast.Call(func=ast.Attribute(value=ast.Name(id="typer"), attr="echo" | "secho")):
                return True
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="stdout" | "stderr"), attr="write"), args=[of]):  # fmt: skip
                return "printable" not in ast.unparse(of) and "!a}" not in ast.unparse(of)
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="buffer"), attr="write")):
                return True
        return False

    def found(folder: str) -> list[Any]:
        return [
            (path.name, node.lineno)  # type: ignore[attr-defined]
            for path in (repository / "framework" / folder).rglob("*.py")
            for node in ast.walk(ast.parse(path.read_text()))
            if writes(node)
        ]

    assert found(".") == []


@pytest.mark.parametrize("on_error", ["skip", "dead_letter", "fail"])
def test_a_program_without_the_command_line_logs_no_error_of_a_handler_as_it_is(
    log: Log, caplog: pytest.LogCaptureFixture, on_error: OnError
) -> None:
    """Before, only the command line escaped the texts of records."""
    app = sl.App("plain", log=log)
    words = app.topic("words", key=str, value=str)

    @app.task(words, on_error=on_error)
    def raising(record: sl.Record[str, str]) -> None:
        raise ValueError(record.value)

    words.append([(EVIL, EVIL)])
    with caplog.at_level(logging.INFO, "strandline"):
        if on_error == "fail":
            with pytest.raises(sl.TaskFailed, match=r"ValueError: .*u001b.*owned") as failed:
                app.run(until="idle", progress=False)
            assert harms(str(failed.value)) == set()
        else:
            app.run(until="idle", progress=False)
    said = "".join(record.getMessage() for record in caplog.records)
    assert "owned" in said
    assert harms(said) == set()


def test_the_texts_of_errors_have_no_control_characters() -> None:
    error = InvalidRequest(f"cannot read: {EVIL}")
    assert harms(str(error)) == set()
    assert error.args == (f"cannot read: {EVIL}",)
