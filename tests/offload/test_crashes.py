"""Loads that stop at any step: the next run leaves each committed record once.

A Parquet target is in memory, where the power can be cut too. The libraries of tables write their own
files, so that those targets are in a real folder, and the process stops before or after each
operation on the folder and each commit of the library.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidConfig, StorageFailed
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.log import Log
from strandline.framework.offload.api import Format, OffloadOptions, Place, offload, run
from strandline.framework.offload.delta import DeltaTarget
from strandline.framework.offload.folder import TargetFolder
from strandline.framework.offload.iceberg import IcebergTarget
from tests.crash.twin import Died, Operation, PowerStorage
from tests.forms import by_form
from tests.offload.kit import (
    SALE,
    append,
    committed,
    create,
    data_files,
    delta,
    iceberg_files,
    iceberg_table,
    manifests,
    places,
    sales,
    stored,
)

HOUR = 3_600_000
SEEDS = by_form(1, 30)
"""Number of outcomes of a power cut that are tried for each operation."""


@pytest.fixture
def source(log: Log) -> Log:
    create(log, "t", 2, schema=SALE)
    append(log, "t", sales(0, 12, every_ms=HOUR), 2)
    return log


# A Parquet target in memory -------------------------------------------------------------------


class Twin:
    """A Parquet target whose power can be cut, as a reader by pattern and one by manifests see it."""

    def __init__(self, source: Log, chance: Random | None = None) -> None:
        self.source = source
        self.storage = PowerStorage(chance)
        self.operations = 0

    def load(self) -> int:
        """Load the topic in commits of a few records, and return the number of rows."""
        options = OffloadOptions(partition_by="day", commit_records=4, tasks=1)
        place = Place(Path("/twin"), self.storage, SystemClock())
        return run(self.source.broker, "t", None, place, options, lambda _done, _total: None).rows

    def load_until(self, stop: int) -> bool:
        """Load, and die at an operation. Return False if the load has fewer operations."""
        numbers = count()

        def hook(_: Operation) -> None:
            if next(numbers) == stop:
                raise Died

        self.storage.hook = hook
        try:
            self.load()
        except Died:
            return True
        self.storage.hook = None
        return False

    def by_pattern(self) -> list[tuple[int, int]]:
        """Return the places of all records in files that a pattern finds."""
        return _places(self.storage, self.storage.paths("", ".parquet"))

    def by_manifests(self) -> list[tuple[int, int]]:
        """Return the places of all records in files that the manifests list."""
        listed: list[str] = []
        for path in self.storage.paths("_strandline/commits", ".json"):
            manifest = json.loads(self.storage.content(path))
            listed += [file["path"] for file in manifest["files"]]
        return _places(self.storage, listed)


def _places(storage: PowerStorage, paths: list[str]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for path in paths:
        found += places(pq.read_table(io.BytesIO(storage.content(path))))
    return sorted(found)


def crash(twin: Twin) -> None:
    """Kill the process."""
    twin.storage.crash()


def cut(twin: Twin) -> None:
    """Cut the power."""
    twin.storage.power_cut()
    twin.storage.crash()


@pytest.mark.parametrize(
    ("death", "seeds"), [(crash, 1), (cut, SEEDS)], ids=["a kill", "a power cut"]
)
def test_a_parquet_target_that_stops_at_any_operation_has_each_record_once(
    source: Log, death: Callable[[Twin], None], seeds: int
) -> None:
    whole = committed(source, "t")
    tried = 0
    for seed in range(seeds):
        for stop in count():
            twin = Twin(source, Random(1_000 * seed + stop))
            died = twin.load_until(stop)
            if not died:
                break
            death(twin)
            check_readers(twin, whole)
            if twin.load_until(tried % 7):  # the next run dies too, early
                death(twin)
                check_readers(twin, whole)
            twin.load()
            assert twin.by_pattern() == twin.by_manifests() == whole
            assert not twin.storage.paths("_strandline/staging")
            tried += 1
    assert tried > 50 * seeds


def check_readers(twin: Twin, whole: list[tuple[int, int]]) -> None:
    """Check that no reader sees a record twice, or one that does not stay."""
    seen, listed = twin.by_pattern(), twin.by_manifests()
    assert len(set(seen)) == len(seen)
    assert set(listed) <= set(seen) <= set(whole)
    before = set(twin.storage.paths("", ".parquet"))
    clone = Twin(twin.source)
    clone.storage = twin.storage.clone()
    clone.load()
    assert before <= set(clone.storage.paths("", ".parquet"))


def test_a_parquet_target_goes_on_after_a_failure_of_the_disk_at_any_operation(
    source: Log,
) -> None:
    whole = committed(source, "t")
    for stop in count():
        twin = Twin(source)
        numbers = count()

        def hook(operation: Operation, numbers: Iterator[int] = numbers, stop: int = stop) -> None:
            if next(numbers) == stop:
                raise StorageFailed(f"cannot {operation.kind} {operation.path}")

        twin.storage.hook = hook
        try:
            twin.load()
        except StorageFailed:
            twin.storage.hook = None
        else:
            break
        twin.load()
        assert twin.by_pattern() == twin.by_manifests() == whole
    assert stop > 50


# Any target in a folder ---------------------------------------------------------------------


class StoppingStorage(LocalStorage):
    """A folder on disk where the process dies before the n-th operation."""

    def __init__(self, root: Path, stop: int) -> None:
        super().__init__(root)
        self.left = stop

    def step(self) -> None:
        """Count an operation, or die before it."""
        self.left -= 1
        if self.left < 0:
            raise Died

    def create(self, path: str) -> Any:
        self.step()
        return _StoppingFile(super().create(path), self)

    def open(self, path: str, *, writable: bool = False) -> Any:
        return _StoppingFile(super().open(path, writable=writable), self)

    def rename(self, source: str, target: str) -> None:
        self.step()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self.step()
        super().unlink(path)

    def make_dir(self, path: str) -> None:
        self.step()
        super().make_dir(path)

    def remove_tree(self, path: str) -> None:
        self.step()
        super().remove_tree(path)

    def sync_dir(self, path: str) -> None:
        self.step()
        super().sync_dir(path)


class _StoppingFile:
    """A file of a StoppingStorage."""

    def __init__(self, file: Any, storage: StoppingStorage) -> None:
        self._file = file
        self._storage = storage

    def append(self, *parts: Any) -> int:
        self._storage.step()
        return int(self._file.append(*parts))

    def sync(self) -> None:
        self._storage.step()
        self._file.sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


STEPS = {
    "delta": [(DeltaTarget, "_commit"), (DeltaTarget, "_extend")],
    "iceberg": [(IcebergTarget, "_commit"), (IcebergTarget, "_created")],
    "parquet": [],
}
"""Functions of the targets that let a library change the table."""


def stop_around_commits(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count as operations what happens before and after each change by a library."""
    for target, name in STEPS[form]:
        whole = getattr(target, name)

        def counted(self: Any, *arguments: Any, whole: Any = whole) -> Any:
            self._folder.storage.step()
            done = whole(self, *arguments)
            self._folder.storage.step()
            return done

        monkeypatch.setattr(target, name, counted)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "delta", "iceberg"])
def test_a_target_that_stops_at_any_step_has_each_record_once(
    source: Log, tmp_path: Path, form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_around_commits(form, monkeypatch)
    options = OffloadOptions(format=form, partition_by="day", commit_records=5, tasks=1)

    def load(path: Path, stop: int = 1_000_000) -> None:
        place = Place(path, StoppingStorage(path, stop), SystemClock())
        run(source.broker, "t", None, place, options, lambda _done, _total: None)

    whole = committed(source, "t")
    for stop in count(step=by_form(3, 1)):
        to = tmp_path / str(stop)
        try:
            load(to, stop)
        except Died:
            pass
        else:
            break
        with contextlib.suppress(Died):
            load(to, stop % 9)
        load(to)
        found = stored(form, to)
        assert places(found) == whole
        assert data_files(to) == _files_of(form, to)
        assert len(found) == len(whole)
        shutil.rmtree(to)
    assert stop > 50


def _files_of(form: Format, to: Path) -> set[str]:
    """Return the names of the files that a target has."""
    if form == "delta":
        return {Path(uri).name for uri in delta(to).file_uris()}
    if form == "iceberg":
        return {Path(name).name for name in iceberg_files(to)}
    return {Path(file["path"]).name for one in manifests(to) for file in one["files"]}


# Tables that other programs change after a crash -----------------------------------------------


def crash_after_the_commit(
    source: Log, to: Path, form: Format, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> None:
    """Load, and die after the table's own commit, before `pending.json` is removed."""

    def died(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(TargetFolder, "settle_pending", died)
        with pytest.raises(Died):
            offload("t", to, log=source, format=form, **options)
    assert (to / "_strandline/pending.json").exists()


def crash_in_the_second_load(
    source: Log, to: Path, form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Load all records, and crash after the commit of a load of later ones."""
    offload("t", to, log=source, format=form)
    append(source, "t", sales(12, 6, every_ms=HOUR), 2)
    crash_after_the_commit(source, to, form, monkeypatch)


def test_a_delta_table_whose_log_expires_after_a_crash_keeps_its_files(
    source: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "lake"
    crash_in_the_second_load(source, to, "delta", monkeypatch)
    table = delta(to)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    table.create_checkpoint()
    last = delta(to).version()
    for entry in (to / "_delta_log").glob("*.json"):
        if int(entry.stem) < last:
            entry.unlink()
    assert not any("strandline.offload" in entry for entry in delta(to).history())
    assert offload("t", to, log=source, format="delta").rows == 0
    assert places(stored("delta", to)) == committed(source, "t")


def test_an_iceberg_table_that_is_rolled_back_after_a_crash_can_return_to_its_snapshots(
    source: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "lake"
    crash_in_the_second_load(source, to, "iceberg", monkeypatch)
    whole = committed(source, "t")
    with iceberg_table(to) as table:
        last = table.current_snapshot()
        first = table.history()[0].snapshot_id
        table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert offload("t", to, log=source, format="iceberg").rows == 6
    assert places(stored("iceberg", to)) == whole
    with iceberg_table(to) as table:
        assert places(table.scan(snapshot_id=last.snapshot_id).to_arrow()) == whole


def test_a_run_with_another_catalog_after_a_crash_removes_no_files(
    source: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is not in that catalog, and the files are in it all the same."""
    to, shared = tmp_path / "lake", tmp_path / "shared"
    shared.mkdir()
    catalog = {"type": "sql", "uri": f"sqlite:///{shared}/catalog.db", "warehouse": str(shared)}
    crash_after_the_commit(source, to, "iceberg", monkeypatch, catalog=catalog)
    for _ in range(2):
        with pytest.raises(InvalidConfig, match="of another catalog than the one given now; name"):
            offload("t", to, log=source, format="iceberg")
    assert offload("t", to, log=source, format="iceberg", catalog=catalog).rows == 0
    assert places(stored("iceberg", shared)) == committed(source, "t")


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_files_of_a_pending_commit_that_the_table_lacks_are_removed(
    source: Log, tmp_path: Path, form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "lake"
    offload("t", to, log=source, format=form)
    append(source, "t", sales(12, 6, every_ms=HOUR), 2)

    def died(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr({"delta": DeltaTarget, "iceberg": IcebergTarget}[form], "_commit", died)
        with pytest.raises(Died):
            offload("t", to, log=source, format=form)
    assert data_files(to) > _files_of(form, to)
    assert offload("t", to, log=source, format=form).rows == 6
    assert data_files(to) == _files_of(form, to)
    assert places(stored(form, to)) == committed(source, "t")
