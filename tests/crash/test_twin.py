"""Promises of the storage twin: what it keeps, and what it may lose."""

from __future__ import annotations

import pytest

from strandline.changelog.errors import StorageFailed
from tests.crash.twin import Died, Operation, Outcome, PowerStorage, read_all


def a_storage() -> PowerStorage:
    """Return a storage: one file with a synced and an unsynced half, another only created."""
    storage = PowerStorage()
    file = storage.create("a")
    file.append(b"safe")
    file.sync()
    storage.sync_dir("")
    file.append(b"lost")
    storage.create("b")
    return storage


def left(storage: PowerStorage, outcome: Outcome) -> dict[str, bytes]:
    """Return the files after a power cut."""
    twin = storage.clone()
    twin.cut(outcome)
    return {name: read_all(twin, name) for name in twin.list_dir("")}


def test_the_outcomes_of_a_power_cut_cover_each_unsynced_thing() -> None:
    storage = a_storage()
    found = {outcome.name: left(storage, outcome) for outcome in storage.outcomes()}
    assert found == {
        "nothing": {"a": b"safe"},
        "everything": {"a": b"safelost", "b": b""},
        "all but create b": {"a": b"safelost"},
        "all but bytes of a": {"a": b"safe", "b": b""},
    }


def test_outcomes_can_be_limited_to_those_that_keep_a_file() -> None:
    storage = a_storage()
    names = {path: [o.name for o in storage.outcomes(keeping=path)] for path in ("a", "b")}
    assert names == {
        "a": ["everything", "all but create b"],
        "b": ["everything", "all but bytes of a"],
    }


def test_a_seed_always_leaves_the_same_files() -> None:
    storage = a_storage()
    seeded = [left(storage, Outcome("seed", seed=seed)) for seed in range(40)]
    assert seeded == [left(storage, Outcome("seed", seed=seed)) for seed in range(40)]
    assert {len(files["a"]) for files in seeded} == set(range(4, 9))


def test_with_everything_synced_there_is_one_outcome() -> None:
    storage = PowerStorage()
    storage.create("a").sync()
    storage.sync_dir("")
    assert [outcome.name for outcome in storage.outcomes()] == ["nothing"]


def test_a_clone_does_not_affect_the_original() -> None:
    storage = a_storage()
    twin = storage.clone()
    twin.open("a", writable=True).append(b"!")
    twin.unlink("b")
    assert read_all(storage, "a") == b"safelost"
    assert storage.exists("b")


def test_a_stop_after_an_operation_leaves_it_done() -> None:
    storage = PowerStorage()
    file = storage.create("a")

    def stop(operation: Operation) -> None:
        raise Died(str(operation))

    storage.after = stop
    with pytest.raises(Died):
        file.append(b"done")
    with pytest.raises(Died):  # a dead process stays dead, with or without a hook
        file.append(b"not done")
    storage.crash()
    assert read_all(storage, "a") == b"done"


def fail(operation: Operation) -> None:
    raise StorageFailed(f"cannot {operation.kind} {operation.path}")


def test_a_failed_fsync_can_be_repeated_unless_the_system_is_forgetful() -> None:
    for forgetful, kept in (False, b"safelost"), (True, b"safe\0\0\0\0"):
        storage = a_storage()
        storage.forgetful = forgetful
        file = storage.open("a", writable=True)
        storage.hook = fail
        with pytest.raises(StorageFailed):
            file.sync()
        storage.hook = None
        file.sync()
        assert read_all(storage, "a") == b"safelost"
        storage.power_cut()
        assert read_all(storage, "a") == kept


def test_bytes_dropped_by_a_forgetful_system_are_safe_once_written_again() -> None:
    storage = a_storage()
    storage.forgetful = True
    file = storage.open("a", writable=True)
    storage.hook = fail
    with pytest.raises(StorageFailed):
        file.sync()
    storage.hook = None
    file.truncate(4)
    file.append(b"lost")
    file.sync()
    storage.power_cut()
    assert read_all(storage, "a") == b"safelost"


def test_a_torn_write_leaves_a_part_of_its_bytes() -> None:
    storage = a_storage()
    storage.shorten("a", 3)
    assert read_all(storage, "a") == b"safel"
    storage.power_cut()
    assert read_all(storage, "a") == b"safe"


def test_the_size_of_a_failed_write_can_be_chosen() -> None:
    storage = a_storage()
    storage.short = lambda size: size // 2
    storage.hook = fail
    with pytest.raises(StorageFailed):
        storage.open("a", writable=True).append(b"1234")
    storage.hook = None
    assert read_all(storage, "a") == b"safelost12"
