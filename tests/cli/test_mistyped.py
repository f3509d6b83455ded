"""Commands create no log at a mistyped path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.errors import InvalidConfig
from strandline.framework.cli.application import WholeCommand
from tests.cli.conftest import Command

LOG = "the mistyped path"
"""Stands for the path in the arguments of a command; others get it by the environment."""
CREATING_NOTHING = [
    ("topics", "list"),
    ("topics", "describe", "t"),
    ("topics", "alter", "t", "--config", "retention.ms=1"),
    ("topics", "add-partitions", "t", "3"),
    ("topics", "delete", "t", "--yes"),
    ("consume", "t"),
    ("produce", "t"),
    ("dead-letters", "list"),
    ("dead-letters", "retry", "app-t-dead-letter"),
    ("groups", "list"),
    ("groups", "offsets", "g"),
    ("groups", "lag", "g"),
    ("groups", "members", "g"),
    ("groups", "reset", "g", "--to", "latest"),
    ("sinks", "list"),
    ("sinks", "forget", "s"),
    ("stores", "list"),
    ("stores", "get", "a/s", "k"),
    ("stores", "scan", "a/s"),
    ("cleaner",),
    ("clean", "t"),
    ("config", "show"),
    ("config", "set", "log.retention.hours=2"),
    ("config", "unset", "log.retention.hours"),
    ("tokens", "create", "me", "--read", "t"),
    ("tokens", "list"),
    ("tokens", "revoke", "me"),
    ("describe",),
    ("plan", "shop.py:app"),
    ("reset", "app", "--yes"),
    ("offload", "t", "--to", "files"),
    ("segments", "t"),
    ("move", LOG, "moved", "--topics", "t"),
    ("backup", LOG, "backups"),
    ("backups", "list", LOG),
    ("backups", "prune", LOG, "--keep", "1"),
    ("restore", LOG, "restored"),
    ("check", LOG),
    ("repair", LOG),
    ("serve", LOG),
    ("serve", LOG, "--listen", "127.0.0.1:0"),
]
CREATING = {"run", "topics create"}
"""Commands that create a log, because there would be nothing to run or to hold the topic."""
WITHOUT_LOG = {"needs"}


@pytest.fixture
def mistyped(tmp_path: Path) -> Path:
    """A path next to that of a log, with a typing error."""
    with changelog.open(tmp_path / "orders", durability="os"):
        return tmp_path / "ordres"


def commands() -> Iterator[str]:
    """Yield the words of every command that `strandline` has."""
    for name, lazy in WholeCommand.lazy.items():
        parts = getattr(lazy.loaded(name), "commands", None)
        yield from (name,) if parts is None else (f"{name} {part}" for part in parts)


def test_every_command_is_tried_or_known_to_create_a_log() -> None:
    known = set(commands())
    tried = {command for words in CREATING_NOTHING for command in _named(words) & known}
    assert tried | CREATING | WITHOUT_LOG == known
    assert not tried & (CREATING | WITHOUT_LOG)


def _named(words: tuple[str, ...]) -> set[str]:
    """Return the command that words may begin with: one or two of them."""
    return {words[0], " ".join(words[:2])}


@pytest.mark.parametrize("words", CREATING_NOTHING, ids=" ".join)
def test_a_command_creates_no_log_unless_it_is_asked_to(
    strandline: Command, mistyped: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mistyped.parent)
    Path("shop.py").write_text("import strandline as sl\napp = sl.App('shop')\n")
    before = sorted(mistyped.parent.iterdir())
    monkeypatch.setenv("STRANDLINE_LOG", str(mistyped))
    outcome = strandline(*(str(mistyped) if word == LOG else word for word in words))
    assert outcome.code != 0
    assert "ordres" in outcome.err, "another error came first"
    assert sorted(mistyped.parent.iterdir()) == before


def test_settings_of_a_new_log_are_set_on_request(
    strandline: Command, mistyped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_LOG", str(mistyped))
    assert strandline("config", "set", "log.retention.hours=2", "--create").code == 0
    with changelog.open(mistyped, create=False, durability="os") as log:
        assert log.config().topic({}).retention_ms == 7_200_000


def test_the_error_names_the_path_a_log_nearby_and_how_to_create_one(mistyped: Path) -> None:
    with pytest.raises(InvalidConfig) as found:
        sl.connect(mistyped)
    said = str(found.value)
    assert f"there is no folder {mistyped}; did you mean {mistyped.parent / 'orders'}?" in said
    assert f"changelog.open({str(mistyped)!r})" in said
    assert not mistyped.exists()


def test_opening_for_reading_creates_no_log_in_a_folder_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for read in (sl.connect, lambda path: changelog.open(path, create=False)):
        with pytest.raises(InvalidConfig, match="holds no log"):
            read(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_app_and_a_writer_create_their_log(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "one", durability="os"):
        pass
    with sl.App("app", log=tmp_path / "two") as app:
        app.topic("t", value=int).append([("a", 1)])
    for name in ("one", "two"):
        with changelog.open(tmp_path / name, create=False, durability="os"):
            pass


def test_advice_that_would_delete_history_comes_with_a_warning(
    strandline: Command, folder: Path
) -> None:
    with changelog.open(folder, durability="os") as log:
        log.create_topic("events")
        outcome = strandline("clean", "events")
    assert outcome.code == 1
    assert "DELETES all earlier ones" in outcome.err
    assert "If it holds events, leave it so" in outcome.err
