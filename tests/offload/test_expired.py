"""Tables whose loads have expired: other programs have rolled them back, or gone on with them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from deltalake import CommitProperties

import strandline as sl
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.log import Log
from strandline.framework.offload.api import Format
from tests.offload.kit import (
    SALE,
    append,
    committed,
    create,
    delta,
    iceberg_table,
    places,
    sales,
    stored,
)

PROGRESS = "strandline.offload"
SNAPSHOT = "strandline.offload.snapshot"


def load(log: Log, to: Path, count: int, form: Format = "iceberg") -> int:
    """Append records to the topic, load it, and return the number of rows that were added."""
    append(log, "t", sales(log.read("t").num_rows, count), 1)
    return sl.offload("t", to, log=log, format=form).rows


def offsets(log: Log, to: Path, form: Format = "iceberg") -> list[int]:
    """Load the topic, and return the offsets in the table."""
    sl.offload("t", to, log=log, format=form)
    return [offset for _, offset in places(stored(form, to))]


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


# Delta Lake ----------------------------------------------------------------------------------


def expire_log(to: Path) -> None:
    """Remove all log entries of a table but a last one, which another program makes."""
    change_nothing(to, {})
    delta(to).create_checkpoint()
    last = delta(to).version()
    for entry in (to / "_delta_log").glob("*.json"):
        if int(entry.stem) < last:
            entry.unlink()


def change_nothing(to: Path, metadata: dict[str, str]) -> None:
    """Make a commit that changes no row, with custom metadata."""
    delta(to).alter.set_table_properties(
        {"owner": "me"},
        raise_if_not_exists=False,
        commit_properties=CommitProperties(metadata),
    )


def refusal(log: Log, to: Path) -> str:
    """Expect two runs to be refused in the same words, and return them."""
    said = set()
    for _ in range(2):
        with pytest.raises(InvalidConfig, match=r"expired.*before the offsets 0: \d+ \(") as raised:
            sl.offload("t", to, log=log, format="delta")
        said.add(str(raised.value))
    (message,) = said
    return message


def load_twice(log: Log, to: Path) -> None:
    """Create the topic, and load ten records into a Delta table, two times."""
    create(log, "t", schema=SALE)
    load(log, to, 10, "delta")
    load(log, to, 10, "delta")


def state(to: Path, message: str) -> None:
    """Make the commit that the message of a refusal advises."""
    (progress,) = re.findall(r"custom metadata strandline\.offload=(\{.*\});", message)
    change_nothing(to, {PROGRESS: progress})


def test_a_delta_table_that_was_restored_is_refused_after_its_log_has_expired(
    log: Log, to: Path
) -> None:
    """Before, the second ten records were lost."""
    load_twice(log, to)
    delta(to).restore(0)
    expire_log(to)
    refusal(log, to)
    expire_log(to)
    append(log, "t", sales(20, 5), 1)
    refusal(log, to)


def test_a_record_of_the_last_delta_load_shows_that_it_was_not_undone(log: Log, to: Path) -> None:
    load_twice(log, to)
    delta(to).delete("user >= 11")
    delta(to).optimize.compact()
    expire_log(to)
    assert load(log, to, 5, "delta") == 5
    assert offsets(log, to, "delta") == [*range(11), *range(20, 25)]


def test_a_delta_table_whose_last_load_was_deleted_goes_on_when_that_is_stated(
    log: Log, to: Path
) -> None:
    load_twice(log, to)
    delta(to).delete("user >= 10")
    expire_log(to)
    state(to, refusal(log, to))
    assert load(log, to, 5, "delta") == 5
    expire_log(to)
    assert load(log, to, 5, "delta") == 5
    assert offsets(log, to, "delta") == [*range(10), *range(20, 30)]


def test_a_delta_table_of_an_earlier_version_goes_on_while_its_log_has_the_last_load(
    log: Log, to: Path
) -> None:
    """Such a target has not recorded its last load."""
    create(log, "t", schema=SALE)
    load(log, to, 10, "delta")
    (to / "_strandline/last.json").unlink()
    assert load(log, to, 5, "delta") == 5
    (to / "_strandline/last.json").unlink()
    expire_log(to)
    state(to, refusal(log, to))
    assert load(log, to, 5, "delta") == 5


def test_a_delta_table_of_an_empty_topic_goes_on_after_its_log_has_expired(
    log: Log, to: Path
) -> None:
    create(log, "t", schema=SALE)
    sl.offload("t", to, log=log, format="delta")
    expire_log(to)
    assert load(log, to, 5, "delta") == 5
    expire_log(to)
    assert offsets(log, to, "delta") == [*range(5)]
