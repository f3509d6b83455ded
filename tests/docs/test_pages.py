"""The examples of the documentation run, with the output that the pages show."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

import strandline as sl
from strandline import changelog
from strandline.framework.cli import main
from strandline.framework.cli.application import strandline as command_line
from tests.docs.page import (
    PAGES,
    ROOT,
    Block,
    anchors_of,
    blocks_of,
    is_what_came,
    links_of,
    name_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGEST = 300
"""Maximum number of lines of a page of the guide."""
WIDEST = 100
"""Maximum number of columns of a page's text; tables and code may be wider."""
PRESSES = 600
"""Maximum number of presses of Ctrl-C, 20 a second."""
LOG = "data"
"""Folder used by commands without --log."""


def pages_with(kinds: Callable[[str], bool]) -> list[Path]:
    return [page for page in PAGES if any(kinds(block.kind) for block in blocks_of(page))]


def plain_python(kind: str) -> bool:
    return kind == "python"


def any_console(kind: str) -> bool:
    return kind == "console"


# The machine that the pages are run on ---------------------------------------------------------


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder as the current one, and an environment without Strandline's variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRANDLINE_LOG", raising=False)
    monkeypatch.delenv("STRANDLINE_TOKEN", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", None) in written(tmp_path):
            del sys.modules[name]


def written(folder: Path) -> set[str]:
    return {str(path) for path in folder.glob("*.py")}


@pytest.fixture
def namespace() -> Iterator[types.ModuleType]:
    """Module in which a page's blocks run. Annotations are looked up in it by name."""
    module = types.ModuleType("page")
    sys.modules["page"] = module
    yield module
    del sys.modules["page"]
    for value in vars(module).values():
        if isinstance(value, sl.App):
            value.close()


def run_block(block: Block, module: types.ModuleType) -> None:
    """Run a block of Python, with the tests that it defines, and compare the output."""
    if block.file is not None:
        Path(block.file).write_text(block.text)
        return
    before = set(vars(module))
    code = compile("\n" * block.line + block.text, block.where, "exec")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, vars(module))
        for name in [new for new in vars(module) if new not in before and new.startswith("test_")]:
            getattr(module, name)()
    if block.prints is not None:
        assert is_what_came(block.prints, said.getvalue()), f"{block.where}: {said.getvalue()}"


PROGRESS = re.compile(r"^.*\d+ of \d+ workers running, .*\n", re.MULTILINE)
"""Line of a supervisor that comes every ten seconds, so that only slow machines print it."""


class Terminal:
    """Runs the commands of a page in this process, against a log that it has open itself."""

    def __init__(self, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._patch = patch

    def run(self, block: Block) -> None:
        """Run each command of a console block and compare the output."""
        for command in block.commands:
            where = f"{block.where}: {command.line}"
            code, said = self._run(command.line)
            assert code == int(command.code), f"{where}: exit code {code}: {said}"
            assert is_what_came(command.prints, said), f"{where}: {said}"

    def _run(self, command: str) -> tuple[int, str]:
        given, pipe, after = command.partition(" | ")
        if not given.startswith("strandline "):
            done = subprocess.run(given, shell=True, capture_output=True, text=True, timeout=60)
            if not pipe:
                return done.returncode, done.stdout + done.stderr
            return self._strandline(shlex.split(after)[1:], done.stdout)
        assert not pipe, f"{command}: a pipe may only lead into strandline"
        return self._strandline(shlex.split(given)[1:], "")

    def _strandline(self, arguments: list[str], stdin: str) -> tuple[int, str]:
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        self._capsys.readouterr()
        alone = arguments[0] in ("check", "repair", "serve") or "--workers" in arguments
        log = contextlib.nullcontext() if alone else changelog.open(LOG)
        with log, pytest.raises(SystemExit) as exit_, interrupted_if(arguments[0] == "serve"):
            main(arguments)
        said = self._capsys.readouterr()
        return int(exit_.value.code or 0), PROGRESS.sub("", said.out + said.err)


@contextlib.contextmanager
def interrupted_if(serving: bool) -> Iterator[None]:
    """Press Ctrl-C once the command waits for it, and again until it ends.

    A press just before the wait begins is noticed only with the next one.
    """
    if not serving:
        yield
        return
    ended, main_thread = threading.Event(), threading.main_thread().ident
    assert main_thread is not None

    def ignore(*_: object) -> None:
        """Ignore a press too many."""

    def press() -> None:
        for _ in range(PRESSES):
            if ended.wait(0.05):
                return
            if signal.getsignal(signal.SIGINT) is not ignore:
                signal.pthread_kill(main_thread, signal.SIGINT)

    usual = signal.signal(signal.SIGINT, ignore)
    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGINT, usual)


# The pages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", pages_with(plain_python), ids=name_of)
def test_the_python_of_a_page_runs(page: Path, namespace: types.ModuleType) -> None:
    for block in blocks_of(page):
        if plain_python(block.kind):
            run_block(block, namespace)


@pytest.mark.parametrize("page", pages_with(any_console), ids=name_of)
def test_the_commands_of_a_page_print_what_it_shows(
    page: Path,
    namespace: types.ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal(capsys, monkeypatch)
    for block in blocks_of(page):
        if block.file is not None:
            run_block(block, namespace)
        elif any_console(block.kind):
            terminal.run(block)


def test_the_kafka_page_runs(namespace: types.ModuleType, kafka: str) -> None:
    for block in blocks_of(ROOT / "docs/guide/kafka.md"):
        if block.kind == "python kafka":
            run_block(at(kafka, block), namespace)
    assert "add" in vars(namespace)


def at(kafka: str, block: Block) -> Block:
    """Return the block with the address of the test's cluster."""
    return replace(block, text=block.text.replace("kafka://localhost:9092", kafka))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.slow
def test_the_spark_page_runs(namespace: types.ModuleType, spark: SparkSession) -> None:
    for block in blocks_of(ROOT / "docs/spark.md"):
        if block.kind in ("python", "python spark"):
            run_block(block, namespace)
    assert namespace.__dict__["spark"] is spark


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_the_spark_page_runs_on_kafka(
    namespace: types.ModuleType, spark: SparkSession, kafka: str
) -> None:
    """The part about clusters runs after the page's first blocks."""
    first, session, *others = blocks_of(ROOT / "docs/spark.md")
    on_kafka = [block for block in others if block.kind == "python spark kafka"]
    for block in (first, session, *(at(kafka, block) for block in on_kafka)):
        run_block(block, namespace)
    assert on_kafka


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkSession]:
    """A small session, which the page's own call returns."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("there is no PySpark")
    from strandline.framework.spark import session
    from tests.spark.conftest import SMALL

    config = SMALL | {"spark.sql.warehouse.dir": str(tmp_path / "warehouse")}
    found = session("docs", master="local[2]", config=config)
    yield found
    found.stop()


def test_options_of_commands_that_are_only_shown_exist() -> None:
    command = typer.main.get_command(command_line())
    for page in PAGES:
        for block in blocks_of(page):
            lines = block.text.replace("\\\n", " ").splitlines() if block.kind == "sh" else []
            for line in lines:
                words = shlex.split(line, comments=True)
                if "strandline" in words:
                    parse(command, words[words.index("strandline") + 1 :], f"{block.where}: {line}")


def parse(command: Any, words: list[str], where: str) -> None:
    """Parse a command line with the command's own parser, without running anything."""
    while hasattr(command, "commands"):
        assert words[0] in command.commands, where
        found = command.get_command(typer.Context(command), words[0])
        assert found is not None, where
        command, words = found, words[1:]
    command.make_context(where, words)


def test_links_have_a_target() -> None:
    broken = []
    for page in PAGES:
        for target in links_of(page):
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            if not there.exists() or (anchor and anchor not in anchors_of(there)):
                broken.append(f"{name_of(page)}: {target}")
    assert broken == []


def test_a_page_of_the_guide_stays_short() -> None:
    guide = [page for page in PAGES if "guide" in name_of(page)]
    assert guide
    lines = {name_of(page): page.read_text().count("\n") for page in guide}
    assert {name: count for name, count in lines.items() if count >= LONGEST} == {}


def too_wide(text: str) -> list[str]:
    """Return the lines of a page's text that have too many columns."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "    "))]
    return [line for line in lines if len(line) > WIDEST]


def test_lines_of_a_page_are_narrow() -> None:
    wide = {name_of(page): found for page in PAGES if (found := too_wide(page.read_text()))}
    assert wide == {}


def test_a_wide_line_is_found() -> None:
    wide = "word " * 21
    assert too_wide(f"text\n| {wide} |\n```\n{wide}\n```\n{wide}\n") == [wide]
