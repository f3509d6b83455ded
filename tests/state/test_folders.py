"""Folders of a partition's state: several openers at once, interruptions, full disks."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.changelog.clock import SystemClock
from strandline.changelog.embedded.repairing.plan import RepairPlan, carry_out
from strandline.changelog.errors import DiskFull, LogLocked
from strandline.changelog.local_storage import LocalStorage
from strandline.statestore.checking.repairing import add_stores
from strandline.statestore.checking.stores import CheckedStores
from strandline.statestore.engine import StorePosition
from strandline.statestore.engines.folders import open_beside, open_when_free, remove_all
from strandline.statestore.engines.inspection import inspected
from strandline.statestore.engines.rocksdb import RocksEngine

Eventually = Callable[..., None]

KEY = b"\x02a"
BOUND_S = 120
CLOCK = SystemClock()


def beside(folder: Path) -> RocksEngine:
    return open_beside(folder, CLOCK)


def at_once(folder: Path) -> RocksEngine:
    return open_when_free(folder, timeout=0)


def put(engine: RocksEngine, offset: int, topic_id: str = "t1") -> RocksEngine:
    engine.write([KEY], [b"%d" % offset], StorePosition(topic_id, 0, offset))
    return engine


def value(engine: RocksEngine) -> int:
    """Return the value in the engine, also read from its files."""
    found = engine.get(KEY)
    assert [(KEY, found)] == list(engine.scan(b"\x02", None, reverse=False))
    assert found is not None
    return int(found)


def folders(state: Path) -> list[str]:
    return sorted(path.name for path in state.iterdir() if path.is_dir())


def fill(state: Path, *offsets: int) -> None:
    """Create the partition's own folder and others next to it, at these offsets."""
    engines = [put(open_when_free(state / "0"), offsets[0])]
    engines += [put(beside(state / "0"), offset) for offset in offsets[1:]]
    for engine in engines:
        engine.close()


# Choosing -----------------------------------------------------------------------------


def test_a_locked_folder_is_not_taken(tmp_path: Path) -> None:
    stalled = put(open_when_free(tmp_path / "0"), 1)
    fresh = at_once(tmp_path / "0")
    assert fresh.folder != tmp_path / "0"
    assert fresh.is_empty()
    fresh.close()
    stalled.close()
    again = at_once(tmp_path / "0")
    assert again.folder == tmp_path / "0"
    assert value(again) == 1
    assert folders(tmp_path) == ["0"]
    again.close()


def test_a_copy_at_a_later_offset_replaces_the_partitions_own_folder(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2, 0, 3)
    taken = at_once(tmp_path / "0")
    assert taken.folder == tmp_path / "0"
    assert (value(taken), taken.position()) == (3, StorePosition("t1", 0, 3))
    assert folders(tmp_path) == ["0"]
    put(taken, 4).close()
    again = at_once(tmp_path / "0")
    assert value(again) == 4
    again.close()


def test_a_copy_in_use_or_of_another_changelog_is_not_taken(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    in_use = put(beside(tmp_path / "0"), 2)
    put(beside(tmp_path / "0"), 9, "t2").close()
    again = at_once(tmp_path / "0")
    assert value(again) == 1
    assert value(in_use) == 2
    again.close()
    in_use.close()


def test_folders_with_similar_names_are_not_changed(tmp_path: Path) -> None:
    for name in ("0.old", "0.2x", "0.", "00.2", "1.2"):
        (tmp_path / name).mkdir()
    fill(tmp_path, 1, 2)
    engine = at_once(tmp_path / "0")
    assert value(engine) == 2
    engine.close()
    assert folders(tmp_path) == ["0", "0.", "0.2x", "0.old", "00.2", "1.2"]


def test_an_engine_that_was_never_closed_does_not_keep_its_folder(tmp_path: Path) -> None:
    lost = open_when_free(tmp_path / "0")
    assert at_once(tmp_path / "0").folder != lost.folder
    del lost
    gc.collect()
    found = at_once(tmp_path / "0")
    assert found.folder == tmp_path / "0"
    found.close()


# Several at once ----------------------------------------------------------------------


@contextlib.contextmanager
def before(
    monkeypatch: pytest.MonkeyPatch, act: str, number: int, happens: Callable[[], Any]
) -> Iterator[None]:
    """Call `happens` before the `number`-th time that storage does `act` within the block."""
    real, left = getattr(LocalStorage, act), [number]

    def acting(storage: LocalStorage, *arguments: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            happens()
        return real(storage, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, act, acting)
        yield


STEPS = [
    (act, number)
    for act, often in {"remove_tree": 12, "rename": 5, "sync_dir": 2, "make_dir": 17}.items()
    for number in range(1, often + 1)
    if (act, number) != ("make_dir", 1)  # this step is before the lock is taken
]
"""Steps on files of opening the state of `fill(state, 1, 0, 2, 3)`."""


@pytest.mark.long
def test_the_list_of_steps_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    met = []
    for act in dict(STEPS):
        for number in range(1 + (act == "make_dir"), 30):
            state = tmp_path / f"{act}-{number}"
            fill(state, 1, 0, 2, 3)
            with before(monkeypatch, act, number, lambda step=(act, number): met.append(step)):
                open_when_free(state / "0").close()
            if met[-1:] != [(act, number)]:
                break
    assert met == STEPS


@pytest.mark.parametrize("open_it", [at_once, beside], ids=["the partition", "a copy"])
@pytest.mark.parametrize(("act", "number"), STEPS)
def test_an_opener_during_the_choice_of_another_keeps_its_folder(
    open_it: Callable[[Path], RocksEngine],
    act: str,
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(tmp_path, 1, 0, 2, 3)
    late: list[RocksEngine] = []

    def come() -> None:
        late.append(put(open_it(tmp_path / "0"), 7))

    with before(monkeypatch, act, number, come):
        first = open_when_free(tmp_path / "0")
    assert first.folder == tmp_path / "0"
    assert late[0].folder != first.folder
    put(first, 8)
    put(late[0], 9)
    assert (value(first), value(late[0])) == (8, 9)
    for engine in (first, *late):
        engine.close()
    last = at_once(tmp_path / "0")
    assert value(last) == 9
    last.close()
    assert "damaged" not in caplog.text


@pytest.mark.parametrize("act", ["remove_tree", "make_dir"])
def test_a_folder_that_is_being_recreated_is_not_taken(
    act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = put(open_when_free(tmp_path / "0"), 5)
    late: list[RocksEngine] = []
    with before(monkeypatch, act, 1, lambda: late.append(put(at_once(tmp_path / "0"), 1))):
        engine.wipe()
        put(engine, 2)
    assert late[0].folder != engine.folder
    assert (value(engine), value(late[0])) == (2, 1)
    engine.close()
    late[0].close()


def test_threads_of_one_process_never_share_a_folder(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2, 3)
    begin, ready = threading.Barrier(6), threading.Barrier(6)
    got: list[tuple[str, int]] = []
    wrong: list[BaseException] = []

    def come(number: int) -> None:
        try:
            for _ in range(10):
                begin.wait(BOUND_S)
                engine = (at_once if number % 2 else beside)(tmp_path / "0")
                got.append((engine.folder.name, value(put(engine, 10 + number))))
                ready.wait(BOUND_S)
                assert value(engine) == 10 + number
                engine.close()
        except BaseException as error:
            wrong.append(error)
            begin.abort()
            ready.abort()

    threads = [threading.Thread(target=come, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    assert wrong == []
    for round_ in range(10):
        at_a_time = got[6 * round_ : 6 * round_ + 6]
        assert len({name for name, _ in at_a_time}) == 6
        assert {seen for _, seen in at_a_time} == set(range(10, 16))


OPENING = """
import json, logging, sys
from pathlib import Path
from strandline.changelog.clock import SystemClock
from strandline.statestore.engine import StorePosition
from strandline.statestore.engines.folders import open_beside, open_when_free

class Said(logging.Handler):
    def emit(self, record):
        if "stays locked" not in record.getMessage():
            wrong.append(record.getMessage())

wrong, folder, rounds = [], Path(sys.argv[2]), int(sys.argv[3])
logging.getLogger("strandline").addHandler(Said())
for number in range(rounds):
    try:
        if sys.argv[1] == "own":
            engine = open_when_free(folder, timeout=0.05)
        else:
            engine = open_beside(folder, SystemClock())
        reached = engine.position()
        offset = reached.offset + 1 if reached else 1
        engine.write([b"\\x02a"], [b"%d" % offset], StorePosition("t1", 0, offset))
        if engine.get(b"\\x02a") != b"%d" % offset:
            wrong.append("another value")
        engine.close()
    except Exception as error:
        wrong.append(repr(error))
print(json.dumps(wrong))
"""


def python(repository: Path, program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, text=True)


@pytest.mark.long
def test_processes_that_start_and_end_take_no_folder_from_each_other(
    tmp_path: Path, repository: Path
) -> None:
    processes = [
        python(repository, OPENING, what, tmp_path / "0", 250) for what in ("own", "copy", "copy")
    ]
    try:
        said = [process.communicate(timeout=BOUND_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [json.loads(one) for one in said] == [[], [], []]


# Stopping halfway ---------------------------------------------------------------------

STOPPING = """
import os, signal, sys
from strandline.changelog.local_storage import LocalStorage
from strandline.statestore.engine import StorePosition
from strandline.statestore.engines.folders import open_when_free

folder, act, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
real, left = getattr(LocalStorage, act), [number]

def acting(*arguments):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), getattr(signal, sys.argv[4]))
    return real(*arguments)

setattr(LocalStorage, act, acting)
engine = open_when_free(folder)
engine.write([b"\\x02a"], [b"8"], StorePosition("t1", 0, 8))
print(engine.folder.name, engine.get(b"\\x02a").decode())
engine.close()
"""
HALFWAY = [("remove_tree", 4), ("remove_tree", 9), ("rename", 3), ("rename", 5), ("make_dir", 9)]


def is_stopped(process: subprocess.Popen[str]) -> bool:
    options = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    status = os.waitid(os.P_PID, process.pid, options)
    return status is not None and status.si_code == os.CLD_STOPPED


@pytest.mark.parametrize(("act", "number"), HALFWAY)
def test_a_process_stopped_while_choosing_blocks_no_other_and_continues_without_harm(
    act: str, number: int, tmp_path: Path, repository: Path, eventually: Eventually
) -> None:
    fill(tmp_path, 1, 0, 2, 3)
    chooser = python(repository, STOPPING, tmp_path / "0", act, number, "SIGSTOP")
    try:
        eventually(lambda: is_stopped(chooser), what="the chooser stopped")
        meanwhile = [put(at_once(tmp_path / "0"), 5), put(beside(tmp_path / "0"), 6)]
        chooser.send_signal(signal.SIGCONT)
        assert chooser.communicate(timeout=BOUND_S)[0] == "0 8\n"
        assert [value(engine) for engine in meanwhile] == [5, 6]
        put(meanwhile[0], 9)
    finally:
        chooser.kill()
    for engine in meanwhile:
        engine.close()
    last = at_once(tmp_path / "0")
    assert value(last) == 9
    assert folders(tmp_path) == ["0"]
    last.close()


@pytest.mark.parametrize(("act", "number"), HALFWAY)
def test_a_process_killed_while_choosing_leaves_the_latest_state(
    act: str, number: int, tmp_path: Path, repository: Path
) -> None:
    fill(tmp_path, 1, 0, 2, 3)
    chooser = python(repository, STOPPING, tmp_path / "0", act, number, "SIGKILL")
    assert chooser.communicate(timeout=BOUND_S)[0] == ""
    last = at_once(tmp_path / "0")
    assert value(last) == 3
    assert folders(tmp_path) == ["0"]
    last.close()


class Killed(BaseException):
    """The end of a process without a chance to clean up."""


def test_a_process_killed_while_removing_leaves_no_partial_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink, killed = os.unlink, 0
    for number in range(1, 200):
        state, left = tmp_path / str(number), [number]
        fill(state, 1, 0, 2, 3)

        def dying(path: str, left: list[int] = left, **options: int) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            unlink(path, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", dying)
            with contextlib.suppress(Killed):
                open_when_free(state / "0").close()
        killed += left[0] <= 0
        for database in state.glob("*/db"):
            with inspected(database.parent) as content:
                assert [key for key, _ in content.entries()] == [KEY]
        if left[0] > 0:
            break
    assert killed > 10, "nothing was removed"


@pytest.mark.parametrize(("act", "number"), STEPS)
def test_a_step_on_a_full_disk_leaves_the_latest_state_and_all_folders_unlocked(
    act: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 1, 0, 2, 3)

    def fail() -> None:
        raise DiskFull("No space left on device")

    # Some steps are not required for opening.
    with before(monkeypatch, act, number, fail), contextlib.suppress(DiskFull):
        open_when_free(tmp_path / "0").close()
    last = at_once(tmp_path / "0")
    assert last.folder == tmp_path / "0"
    assert value(last) == 3
    assert folders(tmp_path) == ["0"]
    last.close()


# Repair, reset ------------------------------------------------------------------------


def test_repair_does_not_move_an_open_folder(tmp_path: Path) -> None:
    folder = "state/app/s/0"
    engine = put(open_when_free(tmp_path / folder), 1)
    plan = RepairPlan()
    add_stores(plan, CheckedStores(bad={folder: "it differs"}))
    with pytest.raises(LogLocked, match=r"state/app/s/0 open; stop that worker"):
        carry_out(plan, LocalStorage(tmp_path), CLOCK)
    assert value(put(engine, 2)) == 2
    engine.close()
    kept = carry_out(plan, LocalStorage(tmp_path), CLOCK)
    assert (tmp_path / kept / folder / "db").is_dir()
    assert not (tmp_path / folder).exists()


def test_an_apps_state_is_removed_whole_and_not_while_a_folder_is_open(tmp_path: Path) -> None:
    root = tmp_path / "app"
    engines = [put(open_when_free(root / store / "0"), 1) for store in ("s", "t")]
    engines.append(put(beside(root / "s" / "0"), 2))
    for engine in engines:
        with pytest.raises(LogLocked, match="stop that worker"):
            remove_all(root)
        assert all(engine.folder.exists() for engine in engines)
        engine.close()
    remove_all(root)
    assert list(tmp_path.iterdir()) == []
