"""Tables whose loads have expired: other programs have rolled them back, or gone on with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import strandline as sl
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.log import Log
from tests.offload.kit import SALE, append, committed, create, iceberg_table, places, sales, stored

PROGRESS = "strandline.offload"
SNAPSHOT = "strandline.offload.snapshot"


def load(log: Log, to: Path, count: int) -> int:
    """Append records to the topic, load it, and return the number of rows that were added."""
    append(log, "t", sales(log.read("t").num_rows, count), 1)
    return sl.offload("t", to, log=log, format="iceberg").rows


def offsets(log: Log, to: Path) -> list[int]:
    """Load the topic, and return the offsets in the table."""
    sl.offload("t", to, log=log, format="iceberg")
    return [offset for _, offset in places(stored("iceberg", to))]


# Iceberg -------------------------------------------------------------------------------------


def expire(to: Path, *, parent: int | None = None, metadata: bool = True) -> None:
    """Remove all snapshots of a table before its current one.

    Args:
        to: Folder of the table.
        parent: Identifier of a removed snapshot that the current one still names, as after
            Iceberg's Java library; None after PyIceberg, which removes the link.
        metadata: False: earlier metadata files are gone as well.
    """
    with iceberg_table(to) as table:
        current = table.current_snapshot().snapshot_id
        others = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != current]
        table.maintenance.expire_snapshots().by_ids(others).commit()
        last = Path(table.metadata_location.removeprefix("file://"))
    if parent is not None:
        content = json.loads(last.read_bytes())
        for snapshot in content["snapshots"]:
            snapshot["parent-snapshot-id"] = parent
        last.write_text(json.dumps(content))
    if not metadata:
        for file in to.glob("metadata/*.metadata.json"):
            if file != last:
                file.unlink()


def current(to: Path) -> int:
    with iceberg_table(to) as table:
        return int(table.current_snapshot().snapshot_id)


def deleted(to: Path, user: int) -> None:
    """Delete a row, as another program."""
    with iceberg_table(to) as table:
        table.delete(f"user = {user}")


def rolled_back(log: Log, to: Path) -> int:
    """Load twice ten records, roll the second load back, and return the snapshot of the first."""
    create(log, "t", schema=SALE)
    load(log, to, 10)
    first = current(to)
    load(log, to, 10)
    with iceberg_table(to) as table:
        table.manage_snapshots().rollback_to_snapshot(first).commit()
    return first


def set_property(to: Path, name: str, value: str | None) -> None:
    with iceberg_table(to) as table, table.transaction() as change:
        if value is None:
            change.remove_properties(name)
        else:
            change.set_properties({name: value})


@pytest.mark.parametrize("java", [False, True])
def test_an_iceberg_load_whose_snapshot_has_expired_is_not_repeated(
    log: Log, to: Path, java: bool
) -> None:
    """Before, PyIceberg's expiry made the next run load all records again."""
    create(log, "t", schema=SALE)
    load(log, to, 10)
    first = current(to)
    deleted(to, 3)
    expire(to, parent=first if java else None)
    assert load(log, to, 5) == 5
    assert offsets(log, to) == [0, 1, 2, *range(4, 15)]


@pytest.mark.parametrize("java", [False, True])
def test_an_iceberg_load_that_was_rolled_back_is_repeated_after_its_snapshot_has_expired(
    log: Log, to: Path, java: bool
) -> None:
    """Before, the second ten records were lost."""
    first = rolled_back(log, to)
    deleted(to, 3)
    expire(to, parent=first if java else None)
    assert offsets(log, to) == [0, 1, 2, *range(4, 20)]


def test_a_file_of_the_last_iceberg_load_shows_that_it_was_not_rolled_back(
    log: Log, to: Path
) -> None:
    create(log, "t", schema=SALE)
    load(log, to, 10)
    load(log, to, 10)
    deleted(to, 3)  # rewrites the file of the first load
    expire(to, metadata=False)
    assert load(log, to, 5) == 5
    assert offsets(log, to) == [0, 1, 2, *range(4, 25)]


def undecided(log: Log, to: Path) -> int:
    """Refuse a load after one of which nothing shows whether it is in the table.

    Return the current snapshot.
    """
    expire(to, metadata=False)
    for _ in range(2):
        with pytest.raises(InvalidConfig, match=r"rolled back\. .* before the offsets 0: 20 \("):
            sl.offload("t", to, log=log, format="iceberg")
    return current(to)


def test_an_iceberg_table_that_nothing_decides_on_goes_on_when_its_position_is_stated(
    log: Log, to: Path
) -> None:
    create(log, "t", schema=SALE)
    load(log, to, 10)
    load(log, to, 10)
    for user in (3, 13):  # rewrites the files
        deleted(to, user)
    set_property(to, SNAPSHOT, str(undecided(log, to)))
    deleted(to, 4)
    assert load(log, to, 5) == 5
    assert offsets(log, to) == [0, 1, 2, *range(5, 13), *range(14, 25)]


def test_an_iceberg_table_that_nothing_decides_on_is_loaded_again_without_its_property(
    log: Log, to: Path
) -> None:
    rolled_back(log, to)
    deleted(to, 3)
    undecided(log, to)
    with iceberg_table(to) as table:
        table.delete()
    expire(to)
    set_property(to, PROGRESS, None)
    assert places(stored("iceberg", to)) == []
    assert offsets(log, to) == [offset for _, offset in committed(log, "t")]


@pytest.mark.parametrize("metadata", [True, False])
def test_the_property_of_an_earlier_version_is_read(log: Log, to: Path, metadata: bool) -> None:
    """It does not name the snapshot."""
    create(log, "t", schema=SALE)
    load(log, to, 10)
    set_property(to, SNAPSHOT, None)
    deleted(to, 3)
    expire(to, metadata=metadata)
    if not metadata:
        with pytest.raises(InvalidConfig, match="set its property 'strandline.offload.snapshot'"):
            sl.offload("t", to, log=log, format="iceberg")
        set_property(to, SNAPSHOT, str(current(to)))
    assert load(log, to, 5) == 5
