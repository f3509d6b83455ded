"""Values of `--log` and similar options: folders and URLs. A mistyped one creates nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.flight.serve import serve
from tests.cli.conftest import Command

SLIPS = [
    "kafka:/h:9092?sasl.password=hunter2",
    "strandline:/h",
    "http://me:hunter2@h",
    "s3://bucket",
]
COMMANDS = [
    ("topics", "list", "--log"),
    ("topics", "create", "t", "--log"),
    ("produce", "t", "--log"),
    ("segments", "t", "--log"),
    ("reset", "shop", "--yes", "--log"),
    ("describe",),
    ("serve",),
    ("serve", "--listen", "127.0.0.1:0"),
    ("check",),
    ("repair",),
    ("move",),
]


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The current folder, in which nothing may be created."""
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("slip", SLIPS)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_takes_a_mistyped_url_for_a_folder(
    command: tuple[str, ...], slip: str, strandline: Command
) -> None:
    given = (*command, slip, *(["elsewhere"] if command == ("move",) else []))
    outcome = strandline(*given)
    assert outcome.code in (1, 3)
    assert "a folder of that name is ./" in outcome.err
    assert "hunter2" not in outcome.err


def test_the_target_of_a_move_is_checked_before_anything_is_created(strandline: Command) -> None:
    assert "kafka://h" in strandline("move", "kafka:/h", "there").err
    assert "a folder of that name is" in strandline("move", "strandline://h", "kafka:/h").err


@pytest.mark.parametrize(
    "open_",
    [
        changelog.open,
        lambda log: sl.App("shop", log=log),
        lambda log: serve(log, listen="127.0.0.1:0"),
    ],
    ids=["changelog.open", "App", "serve"],
)
def test_python_does_not_take_a_mistyped_url_for_a_folder(open_: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidConfig, match=r"kafka:/h: the URL is written kafka://h, as text"):
        open_(Path("kafka://h"))
    with pytest.raises(InvalidConfig, match=r"s3:/b: a log is a folder, strandline://host:port"):
        open_("s3:/b")


def test_a_mistyped_url_in_the_environment_is_not_taken_for_a_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STRANDLINE_LOG", "kafka:/h")
    with pytest.raises(InvalidConfig, match="the URL is written kafka://h"):
        sl.App("shop")


@pytest.mark.parametrize("listen", [(), ("--listen", "127.0.0.1:0")])
@pytest.mark.parametrize("url", ["kafka://h:9092?sasl.password=hunter2", "strandline://h"])
def test_a_remote_log_cannot_be_served_again(
    url: str, listen: tuple[str, ...], strandline: Command
) -> None:
    outcome = strandline("serve", url, *listen)
    assert outcome.code == 1
    assert f"{url.partition('?')[0]} is served already" in outcome.err


@pytest.mark.parametrize(
    ("command", "code"), [(("segments", "t", "--log"), 1), (("check",), 3), (("repair",), 3)]
)
def test_commands_on_files_refuse_a_cluster(
    command: tuple[str, ...], code: int, strandline: Command
) -> None:
    outcome = strandline(*command, "kafka://h:9092?sasl.password=hunter2")
    assert outcome.code == code
    assert "kafka://h:9092 is a Kafka cluster, and this is about the files" in outcome.err
    assert "hunter2" not in outcome.err


@pytest.mark.parametrize("log", ["localhost:9092", "10.0.0.7:9092", "[::1]:9092", "a-b.c_d:80"])
def test_a_host_and_a_port_are_no_folder(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an app would begin in an empty log of that name, instead of the cluster."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(sl.InvalidConfig, match="kafka://"):
        changelog.open(log)
    with pytest.raises(sl.InvalidConfig, match="kafka://"), sl.App("app", log=log) as app:
        app.topic("t", key=str, value=int).append([("a", 1)])
    assert not list(tmp_path.iterdir())
    changelog.open(f"./{log}").close()
    changelog.open(log).close()  # now it exists
    changelog.open("a:b").close()
    for made in (log, "a:b"):
        shutil.rmtree(made)
