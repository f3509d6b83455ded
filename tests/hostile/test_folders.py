"""A forged log folder: links, foreign files and modes in it affect nothing outside of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog import trust
from strandline.changelog.errors import CorruptLog, StorageFailed, UntrustedFolder
from strandline.changelog.flight.attach import attach_or_own
from strandline.changelog.layout import SegmentName
from strandline.changelog.local_storage import LocalStorage
from strandline.framework.querying import sockets
from strandline.statestore.engine import StorePosition
from strandline.statestore.engines.folders import open_when_free, remove_all
from strandline.statestore.engines.inspection import inspected

pytestmark = pytest.mark.damages

TOPIC = "a" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A closed log with a topic."""
    made = tmp_path / "log"
    with changelog.open(made) as log:
        log.create_topic("t")
        log.append("t", [{"value": b"a"}])
    return made


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder outside of the log, which must not change."""
    made = tmp_path / "outside"
    made.mkdir()
    for name in ("precious", "manifest.meta.tmp", f"{0:020d}-{9:08d}.log", "CURRENT"):
        (made / name).write_text("mine")
    return made


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {p.name: (p.stat().st_mode, p.read_bytes()) for p in sorted(folder.iterdir())}


def in_place_of(path: Path, target: Path) -> None:
    """Replace a path by a symbolic link to a target."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.symlink_to(target)


def partition_of(folder: Path) -> Path:
    (path,) = [p for p in folder.glob("topics/*/0") if topic_name(p.parent) == "t"]
    return path


def topic_name(folder: Path) -> str:
    body = (folder / "topic.meta").read_text().partition("\n")[2]
    return str(json.loads(body)["name"])


LINKS: dict[str, Callable[[Path], Path]] = {
    "a topic that is not in the catalog": lambda log: log / "topics" / TOPIC,
    "a topic": lambda log: partition_of(log).parent,
    "a partition": partition_of,
    "all topics": lambda log: log / "topics",
    "a segment": lambda log: next(partition_of(log).glob("*.log")),
    "the manifest": lambda log: partition_of(log) / "manifest.meta",
    "the catalog": lambda log: log / "topics.meta",
    "the lock": lambda log: log / "lock",
    "all pins": lambda log: log / "pins",
    "a pin's holder": lambda log: log / "pins/q",
    "a pin": lambda log: log / "pins/q/a-b",
}


@pytest.mark.parametrize("what", LINKS)
def test_a_link_in_a_log_is_refused_and_its_target_is_not_changed(
    what: str, folder: Path, outside: Path
) -> None:
    path = LINKS[what](folder)
    target = outside / "precious" if path.is_file() or path.suffix else outside
    in_place_of(path, target)
    before = content(outside)
    with pytest.raises(StorageFailed, match="symbolic link"), changelog.open(folder) as log:
        log.append("t", [{"value": b"b"}])
        log.create_topic("new")
    assert content(outside) == before


@pytest.mark.parametrize("name", ["notes", "a" * 31, "A" * 32])
def test_a_foreign_folder_among_the_topics_is_not_changed(name: str, folder: Path) -> None:
    (folder / "topics" / name).mkdir()
    (folder / "topics" / name / "file").touch()
    changelog.open(folder).close()
    assert (folder / "topics" / name / "file").exists()


def test_links_in_a_removed_folder_are_removed_without_their_targets(
    folder: Path, outside: Path
) -> None:
    before = content(outside)
    gone = folder / "topics" / TOPIC
    gone.mkdir()
    (gone / "0").symlink_to(outside)
    (gone / "topic.meta").symlink_to(outside / "precious")
    changelog.open(folder).close()
    assert not gone.exists()
    assert content(outside) == before


def test_a_link_hides_no_records_of_a_topic_that_the_catalog_does_not_list(
    folder: Path, outside: Path
) -> None:
    forgotten = folder / "topics" / TOPIC / "0"
    forgotten.mkdir(parents=True)
    (forgotten.parent / "topic.meta").write_bytes(b"")
    first, second = SegmentName(0, 0).log_file, SegmentName(9, 1).log_file
    (forgotten / first).symlink_to(outside / "precious")
    (forgotten / second).write_bytes(b"records")
    with pytest.raises(CorruptLog, match="does not list the topic"):
        changelog.open(folder)
    assert (forgotten / second).read_bytes() == b"records"


def test_a_path_in_owner_json_is_never_removed(folder: Path, outside: Path) -> None:
    private = outside.with_name("strandline-of-another")
    private.mkdir(mode=0o700)
    (private / "owner.sock").write_text("mine")
    (private / "folder").write_text("[1,2,3]")
    identity = LocalStorage(folder).identity()
    for place in (outside / "precious", private / "owner.sock", folder / "../outside/precious"):
        said = {"location": f"grpc+unix://{place}", "token": "t", "pid": 1, "started": "0"}
        (folder / "owner.json").write_text(json.dumps({**said, "folder": identity}))
        (folder / "owner.json").chmod(0o600)
        before = content(outside), content(private)
        attach_or_own(folder).close()
        assert (content(outside), content(private)) == before


@pytest.mark.parametrize("linked", [os.symlink, os.link])
def test_owner_log_cannot_redirect_writes_to_another_file(
    linked: Callable[[Path, Path], None], folder: Path, outside: Path
) -> None:
    (folder / "owner.log").unlink(missing_ok=True)
    linked(outside / "precious", folder / "owner.log")
    before = content(outside)
    with pytest.raises(StorageFailed):
        attach_or_own(folder, role="attach_or_spawn", deadline=5)
    assert content(outside) == before


def test_a_lock_with_a_second_hard_link_is_not_written(folder: Path, outside: Path) -> None:
    (folder / "lock").unlink()
    os.link(outside / "precious", folder / "lock")
    before = content(outside)
    changelog.open(folder).close()
    assert content(outside) == before


# State and queries ---------------------------------------------------------------------


@pytest.mark.parametrize("level", ["state", "state/app", "state/app/seen", "state/app/seen/0"])
def test_the_state_of_a_log_is_in_its_folder(level: str, folder: Path, outside: Path) -> None:
    in_place_of(folder / level, outside)
    before = content(outside)
    app = sl.App("app", log=folder)
    topic = app.topic("t")
    seen = app.store("seen", key=str, value=int, default=0)

    @app.task(topic, stores=[seen])
    def count(record: sl.Record[bytes, bytes]) -> None:
        seen["x"] += 1

    with pytest.raises(StorageFailed, match="symbolic link"):
        app.run(until="idle", timeout=30)
    with contextlib.suppress(StorageFailed):  # if a store is a link, only the link is removed
        app.reset()
    assert content(outside) == before


@pytest.mark.parametrize("level", ["app/seen", "app/seen/0", "app/seen/0/db"])
def test_a_state_folder_that_others_may_write_is_refused(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    app = sl.App("app", log=tmp_path / "log", state_dir=state)
    topic = app.topic("t")
    seen = app.store("seen", key=str, value=int, default=0)

    @app.task(topic, stores=[seen])
    def count(record: sl.Record[str, str]) -> None:
        seen["x"] += 1

    with app:
        topic.append([("k", "v")])
        app.run(until="idle", timeout=30, progress=False)
        (state / level).chmod(0o777)
        with pytest.raises(UntrustedFolder, match="chmod go-w.*STRANDLINE_TRUST=1"):
            app.run(until="idle", timeout=30, progress=False)
        monkeypatch.setenv(trust.TRUST_VARIABLE, "1")
        app.run(until="idle", timeout=30, progress=False)


def test_rocksdb_never_opens_links(tmp_path: Path, outside: Path) -> None:
    open_when_free(tmp_path / "0").close()
    before = content(outside)
    in_place_of(tmp_path / "0/db/LOG", outside / "precious")
    with pytest.raises(StorageFailed, match="symbolic link"):
        open_when_free(tmp_path / "0")
    in_place_of(tmp_path / "0/damaged", outside / "new")
    assert content(outside) == before


@pytest.mark.parametrize("name", ["CURRENT", "IDENTITY", "LOCK", "LOG", "rocksdict-config.json"])
def test_rocksdb_never_opens_files_of_another_user(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, only the folders around such files were looked at."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    engine = open_when_free(tmp_path / "0")
    engine.write([b"key"], [b"value"], StorePosition("topic", 1, 1))
    engine.close()
    os.chown(tmp_path / "0/db" / name, 65_534, 65_534)
    with pytest.raises(UntrustedFolder, match=f"db/{name} belongs to user 65534.*STRANDLINE_TRUST"):
        open_when_free(tmp_path / "0")
    with pytest.raises(UntrustedFolder), inspected(tmp_path / "0"):
        pytest.fail("the content was read")
    monkeypatch.setenv(trust.TRUST_VARIABLE, "1")
    engine = open_when_free(tmp_path / "0")
    assert engine.get(b"key") == b"value"
    engine.close()


def test_state_is_not_removed_through_links(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app/store").symlink_to(outside.parent)
    with pytest.raises(StorageFailed, match="symbolic link"):
        remove_all(tmp_path / "app")
    assert content(outside)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def test_sockets_of_queries_are_in_the_logs_folder(short_folder: Path, outside: Path) -> None:
    folder = short_folder
    outside.chmod(0o755)
    (outside / "mine.sock").write_text("mine")
    in_place_of(folder / "queries", outside)
    before = content(outside)
    with pytest.raises(StorageFailed):
        sockets.listen_local(folder)
    assert content(outside) == before
    assert stat.S_IMODE(outside.stat().st_mode) == 0o755
    (folder / "queries").unlink()
    (folder / "queries").mkdir()
    (folder / "queries/notes.sock").write_text("mine")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "queries/dead.sock"))
    listening = sockets.listen_local(folder)
    assert (folder / "queries/notes.sock").exists()
    assert not (folder / "queries/dead.sock").exists()
    listening.socket.close()
    sockets.remove(listening.url)


def test_sockets_of_queries_are_not_in_a_folder_of_another_user(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, only the mode of the folder was corrected, which its owner can change again."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    folder = short_folder / "queries"
    folder.mkdir(mode=0o777)
    os.chown(folder, 65_534, 65_534)
    before = stat.S_IMODE(folder.stat().st_mode)
    with pytest.raises(UntrustedFolder, match=r"queries belongs to user 65534.*STRANDLINE_TRUST=1"):
        sockets.listen_local(short_folder)
    assert stat.S_IMODE(folder.stat().st_mode) == before
    monkeypatch.setenv(trust.TRUST_VARIABLE, "1")
    listening = sockets.listen_local(short_folder)
    listening.socket.close()
    sockets.remove(listening.url)


# Rights --------------------------------------------------------------------------------


OPEN = [0o777, 0o707, 0o1777, 0o722]


@pytest.mark.parametrize("mode", OPEN)
@pytest.mark.parametrize("where", ["", "topics"])
def test_a_folder_that_others_may_write_is_refused(
    mode: int, where: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / where).chmod(mode)
    with pytest.raises(UntrustedFolder, match="chmod go-w.*STRANDLINE_TRUST=1"):
        changelog.open(folder)
    with pytest.raises(UntrustedFolder):
        changelog.open(folder, role="attach_or_spawn")
    monkeypatch.setenv(trust.TRUST_VARIABLE, "1")
    changelog.open(folder).close()


@pytest.mark.parametrize("name", ["strandline.meta", "topics.meta", "lock"])
def test_a_file_that_others_may_write_is_refused(name: str, folder: Path) -> None:
    (folder / name).chmod(0o666)
    with pytest.raises(UntrustedFolder, match=name):
        changelog.open(folder)


@pytest.mark.parametrize("what", ["", "topics", "strandline.meta", "lock"])
def test_a_folder_of_another_user_is_refused(
    what: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(folder / what, 65_534, 65_534)
    with pytest.raises(UntrustedFolder, match="belongs to user 65534.*STRANDLINE_TRUST=1"):
        changelog.open(folder)
    monkeypatch.setenv(trust.TRUST_VARIABLE, "1")
    changelog.open(folder).close()


def test_the_endpoint_in_a_folder_of_another_user_is_not_called(folder: Path) -> None:
    with changelog.open(folder):
        folder.chmod(0o777)
        with pytest.raises(UntrustedFolder):
            attach_or_own(folder, role="attach_or_spawn", deadline=5)
        folder.chmod(0o700)


def test_a_folder_inside_a_world_writable_one_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all").chmod(0o1777)
    changelog.open(tmp_path / "all/log").close()


class Entry:
    """An entry of the databases of users and groups."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


@pytest.mark.parametrize(
    ("name", "members", "primary", "trusted"),
    [
        ("me", [], 7, True),
        ("me", ["me"], 7, True),
        ("me", ["me", "you"], 7, False),
        ("staff", [], 7, False),
        ("me", [], 8, False),
    ],
)
def test_the_private_group_of_the_user_counts_as_the_user(
    name: str, members: list[str], primary: int, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust.pwd, "getpwuid", lambda _: Entry(pw_name="me", pw_gid=primary))
    monkeypatch.setattr(trust.grp, "getgrgid", lambda _: Entry(gr_name=name, gr_mem=members))
    trust._is_only_ours.cache_clear()
    found = os.stat_result((0o40770, 1, 1, 1, os.geteuid(), 7, 0, 0, 0, 0))
    try:
        if trusted:
            trust.check_trusted(found, "x")
        else:
            with pytest.raises(UntrustedFolder):
                trust.check_trusted(found, "x")
    finally:
        trust._is_only_ours.cache_clear()
