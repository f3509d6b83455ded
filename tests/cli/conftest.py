"""The command as a user runs it, against a log that the test has open."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strandline import changelog
from strandline.changelog.log import Log
from strandline.framework.cli import main


@dataclass(frozen=True)
class Outcome:
    """Output and exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout."""
        return msgspec.json.decode(self.out)

    @property
    def lines(self) -> list[Any]:
        """JSON lines on stdout."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]


Command = Callable[..., Outcome]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def log(folder: Path) -> Iterator[Log]:
    """A log owned by the test; commands attach to it."""
    with changelog.open(folder, durability="os") as opened:
        yield opened


@pytest.fixture
def strandline(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Command:
    """Run `strandline …` in this process, with --log by the environment."""
    monkeypatch.setenv("STRANDLINE_LOG", str(folder))

    def run(*arguments: str, stdin: str | bytes = "") -> Outcome:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        said = capsys.readouterr()
        return Outcome(int(exit_.value.code or 0), said.out, said.err)

    return run
