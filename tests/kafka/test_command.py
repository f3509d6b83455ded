"""A command on a cluster that does not answer prints its error in one line, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.changelog.kafka import connection
from strandline.changelog.kafka.client_logs import ClientLogs
from strandline.framework.cli import main

NOBODY = "kafka://127.0.0.1:1"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MEET_S", 0.5)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Iterator[logging.Handler]:
    """Warnings on stderr, as without any logging configuration."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize("met", [True, False])
def test_the_error_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    met: bool,
) -> None:
    """The same holds for a cluster that has answered before."""
    monkeypatch.setattr(ClientLogs, "met", property(lambda _: met, lambda *_: None), raising=False)
    target = str(tmp_path / "log")
    for command in (["topics", "list", "--log", NOBODY], ["move", NOBODY, target]):
        with pytest.raises(SystemExit) as ended:
            main(command)
        [line] = capsys.readouterr().err.splitlines()
        assert ended.value.code == 1
        assert line.startswith(f"OwnerUnavailable: {NOBODY}: no broker answers: 127.0.0.1:1: ")
        assert "Connection refused" in line
    assert logging.getLogger("strandline.kafka").level == logging.NOTSET
