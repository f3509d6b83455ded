"""Commands create no log at a mistyped path."""

from __future__ import annotations

from pathlib import Path

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.errors import InvalidConfig
from tests.cli.conftest import Command

CREATING_NOTHING = [
    ("topics", "list"),
    ("topics", "describe", "t"),
    ("consume", "t"),
    ("produce", "t"),
    ("groups", "list"),
    ("groups", "lag", "g"),
    ("stores", "list"),
    ("stores", "get", "a/s", "k"),
    ("cleaner", "status"),
    ("clean", "t"),
    ("config", "show"),
    ("config", "set", "log.retention.hours=2"),
    ("config", "unset", "log.retention.hours"),
    ("describe", "app"),
    ("reset", "app", "--yes"),
    ("check",),
    ("repair",),
    ("segments", "list"),
    ("serve",),
    ("serve", "--listen", "127.0.0.1:0"),
]


@pytest.fixture
def mistyped(tmp_path: Path) -> Path:
    """A path next to that of a log, with a typing error."""
    with changelog.open(tmp_path / "orders", durability="os"):
        return tmp_path / "ordres"


@pytest.mark.parametrize("words", CREATING_NOTHING, ids=" ".join)
def test_a_command_creates_no_log_unless_it_is_asked_to(
    strandline: Command, mistyped: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_LOG", str(mistyped))
    named = words[0] in ("serve", "check", "repair")
    outcome = strandline(*words, *([str(mistyped)] if named else ()))
    assert outcome.code != 0
    assert not mistyped.exists()


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
