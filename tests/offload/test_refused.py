"""Loads that are refused, and what they leave: nothing is changed, and the message has a way out."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.errors import (
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    LogLocked,
    MissingDependency,
    OffsetOutOfRange,
    SchemaMismatch,
    UnknownTopic,
)
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition
from strandline.framework.offload.api import Format
from strandline.framework.offload.delta import DeltaTarget
from strandline.framework.offload.folder import Claim, claimed
from strandline.framework.offload.target import PartitionBy
from tests.offload.kit import (
    FORMATS,
    SALE,
    append,
    committed,
    content,
    create,
    delta,
    iceberg_table,
    manifests,
    places,
    refused,
    sales,
    stored,
)

each_format = pytest.mark.parametrize("form", FORMATS)


@pytest.fixture
def loaded(log: Log, to: Path, form: Format) -> Log:
    """A log with a topic of ten records that were loaded."""
    create(log, "t", 2, schema=SALE)
    append(log, "t", sales(0, 10), 2)
    sl.offload("t", to, log=log, format=form)
    return log


@each_format
def test_another_topic_is_refused(loaded: Log, to: Path, form: Format) -> None:
    create(loaded, "other", 2, schema=SALE)
    with refused(to, InvalidConfig, "another topic.*give another folder"):
        sl.offload("other", to, log=loaded, format=form)


@each_format
def test_a_topic_that_was_created_again_is_refused(loaded: Log, to: Path, form: Format) -> None:
    loaded.delete_topic("t")
    create(loaded, "t", 2, schema=SALE)
    append(loaded, "t", sales(0, 100), 2)
    with refused(to, InvalidConfig, "deleted and created again; give another folder"):
        sl.offload("t", to, log=loaded, format=form)


@each_format
def test_another_history_is_refused(tmp_path: Path, to: Path, form: Format) -> None:
    """A backup that was restored and written to since gives the same offsets to other records."""
    with changelog.open(tmp_path / "log") as log:
        create(log, "t", 2, schema=SALE)
        append(log, "t", sales(0, 10), 2)
    shutil.copytree(tmp_path / "log", tmp_path / "copy", ignore=shutil.ignore_patterns("*.sock"))
    with changelog.open(tmp_path / "log") as log:
        append(log, "t", sales(10, 10), 2)
        sl.offload("t", to, log=log, format=form)
    with changelog.open(tmp_path / "copy") as copy:
        with refused(to, InvalidRequest, "restored from a backup.*load into another folder"):
            sl.offload("t", to, log=copy, format=form)
        append(copy, "t", sales(100, 50), 2)
        with refused(to, InvalidRequest, "another history.*load into another folder"):
            sl.offload("t", to, log=copy, format=form)
    with changelog.open(tmp_path / "log") as log:
        append(log, "t", sales(20, 4), 2)
        assert sl.offload("t", to, log=log, format=form).rows == 4
        assert places(stored(form, to)) == committed(log, "t")


@each_format
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            pa.schema([*list(SALE)[:2], ("name", pa.int64())]),
            "'name' of the target is .*, the topic has int64",
        ),
        (pa.schema(list(SALE)[:2]), "'name' of the target is .*, the topic has no such column"),
    ],
)
def test_a_column_that_changed_is_refused(
    loaded: Log,
    to: Path,
    form: Format,
    changed: pa.Schema,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log refuses such a change of a topic; a declaration of an app may make it."""
    info = type(loaded.topic("t"))
    whole = loaded.broker.topic

    def topic(name: str) -> Any:
        found = whole(name)
        values = {slot: getattr(found, slot) for slot in info.__slots__}
        return info(**{**values, "schema": changed})

    append(loaded, "t", sales(10, 2), 2)
    monkeypatch.setattr(loaded.broker, "topic", topic)
    with refused(to, SchemaMismatch, f"{said}; columns can only be added"):
        sl.offload("t", to, log=loaded, format=form)


@each_format
def test_a_folder_with_other_files_is_refused(log: Log, to: Path, form: Format) -> None:
    create(log, "t", schema=SALE)
    to.mkdir(mode=0o700)
    (to / "mine.txt").write_text("mine")
    with refused(to, InvalidConfig, "lake has 'mine.txt'.*give a new or empty folder"):
        sl.offload("t", to, log=log, format=form)


@each_format
def test_another_format_and_another_division_are_refused(
    loaded: Log, to: Path, form: Format
) -> None:
    other: Format = "delta" if form == "parquet" else "parquet"
    with refused(to, InvalidConfig, f"loaded with format '{form}', got '{other}'"):
        sl.offload("t", to, log=loaded, format=other)
    with refused(to, InvalidConfig, "loaded with partition_by 'none', got 'day'"):
        sl.offload("t", to, log=loaded, format=form, partition_by="day")


@each_format
def test_a_second_load_into_the_same_folder_is_refused(loaded: Log, to: Path, form: Format) -> None:
    append(loaded, "t", sales(10, 10), 2)
    claim = Claim(
        topic="t",
        topic_id=loaded.topic("t").topic_id,
        format=form,
        partition_by="none",
        table="default.t" if form == "iceberg" else "",
    )
    with (
        claimed(LocalStorage(to), claim, str(to)),
        refused(to, LogLocked, "another load.*is running"),
    ):
        sl.offload("t", to, log=loaded, format=form)
    assert sl.offload("t", to, log=loaded, format=form).rows == 10


@each_format
def test_records_that_were_deleted_before_the_load_are_named(
    loaded: Log, to: Path, form: Format
) -> None:
    append(loaded, "t", sales(10, 20), 2)
    loaded.broker.delete_records(TopicPartition("t", 1), 9)
    said = "partition 1: records from offset 5 to 8. .*--on-data-loss continue"
    with refused(to, OffsetOutOfRange, said):
        sl.offload("t", to, log=loaded, format=form)
    report = sl.offload("t", to, log=loaded, format=form, on_data_loss="continue")
    assert report.rows == 10 + 6
    assert report.gaps == ((1, 5, 9, False),)
    assert sl.offload("t", to, log=loaded, format=form).rows == 0
    assert len(stored(form, to)) == 26


@each_format
def test_retention_that_overtakes_a_load_is_a_gap_only_if_it_was_not_loaded_before(
    log: Log, to: Path, form: Format
) -> None:
    """The records are deleted while another partition is read."""
    create(log, "t", 2, schema=SALE)
    append(log, "t", sales(0, 20), 2)

    def deleting(end: int) -> Callable[[int, int], object]:
        ends = iter((end,))

        def delete(_done: int, _total: int) -> None:
            if next(ends, None) is not None:
                log.broker.delete_records(TopicPartition("t", 1), end)

        return delete

    first = sl.offload("t", to, log=log, format=form, tasks=1, progress=deleting(4))
    assert (first.rows, first.gaps) == (10 + 6, ())
    append(log, "t", sales(20, 20), 2)
    before = places(stored(form, to))
    with pytest.raises(OffsetOutOfRange, match="partition 1: records from offset 10 to 15"):
        sl.offload("t", to, log=log, format=form, tasks=1, progress=deleting(16))
    assert places(stored(form, to)) == before
    assert not [*(to / "_strandline/staging").iterdir()]
    accepts = {"tasks": 1, "progress": deleting(18), "on_data_loss": "continue"}
    report = sl.offload("t", to, log=log, format=form, **accepts)  # type: ignore[arg-type]
    assert report.rows == 10 + 2
    assert report.gaps == ((1, 10, 18, False),)


@each_format
def test_a_gap_up_to_the_end_of_the_topic_is_accepted_once(
    loaded: Log, to: Path, form: Format
) -> None:
    append(loaded, "t", sales(10, 20), 2)
    for partition in range(2):
        loaded.broker.delete_records(TopicPartition("t", partition), -1)
    report = sl.offload("t", to, log=loaded, format=form, on_data_loss="continue")
    assert (report.rows, len(report.gaps), report.commits) == (0, 2, 1)
    append(loaded, "t", sales(30, 2), 2)
    assert sl.offload("t", to, log=loaded, format=form).rows == 2


def test_a_partition_that_lost_its_beginning_before_the_first_load_has_no_gap(
    log: Log, to: Path
) -> None:
    create(log, "t", 2, schema=SALE)
    append(log, "t", sales(0, 10), 2)
    log.broker.delete_records(TopicPartition("t", 0), 5)
    report = sl.offload("t", to, log=log)
    assert (report.rows, report.gaps) == (5, ())
    append(log, "t", sales(10, 2), 2)
    assert sl.offload("t", to, log=log).rows == 2


def test_a_value_that_cannot_be_decoded_is_named(log: Log, to: Path) -> None:
    create(log, "t")
    log.append("t", [{"value": b"\x07"}, {"value": b"\xc1"}])
    numbers = sl.App("shop", log=log).topic("t", key=str, value=int)
    with pytest.raises(InvalidRecord, match=r"the value at t\[0\]@1 cannot be read"):
        sl.offload(numbers, to)
    assert [*manifests(to)] == []


@each_format
@pytest.mark.parametrize("names", [("_day", "_offset"), ("_Day", "_OFFSET")])
def test_a_typed_topic_with_a_column_of_the_load_is_refused(
    log: Log, to: Path, form: Format, names: tuple[str, str]
) -> None:
    """Before, DuckDB read the date in the name of the folder from a column `_Day`."""
    create(log, "t", schema=pa.schema([(name, pa.int64()) for name in names]))
    with pytest.raises(
        InvalidConfig, match=f"columns of its own called {', '.join(sorted(names))}"
    ):
        sl.offload("t", to, log=log, format=form, partition_by="day")
    assert not to.exists()


@pytest.mark.parametrize("name", ["utc_day", "UTC_Day"])
def test_a_column_that_the_names_of_folders_have_is_refused(log: Log, to: Path, name: str) -> None:
    create(log, "t", schema=pa.schema([(name, pa.int64())]))
    log.append("t", [{name: 7}])
    with pytest.raises(
        SchemaMismatch, match=f"column '{name}', which files divided by the day have"
    ):
        sl.offload("t", to, log=log, partition_by="day")
    assert sl.offload("t", to.with_name("whole"), log=log).rows == 1


@pytest.mark.parametrize("form", ["delta", "iceberg"])
@pytest.mark.parametrize(
    "kind", [pa.duration("us"), pa.decimal256(50, 2), pa.month_day_nano_interval()]
)
def test_a_column_without_a_type_in_the_table_is_named(
    log: Log, to: Path, form: Format, kind: pa.DataType
) -> None:
    create(log, "t", schema=pa.schema([("x", kind)]))
    with pytest.raises(SchemaMismatch, match="'x'"):
        sl.offload("t", to, log=log, format=form)
    assert len([*to.rglob("*.json")]) == 1  # the claim


@pytest.mark.parametrize(
    ("form", "module"), [("delta", "deltalake"), ("iceberg", "pyiceberg.catalog")]
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    log: Log, to: Path, form: Format, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(log, "t", schema=SALE)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependency, match=r'pip install "strandline\[lake\]"'):
        sl.offload("t", to, log=log, format=form)
    assert not to.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "csv"}, "format must be one of 'parquet', 'delta', 'iceberg', got 'csv'"),
        ({"partition_by": "week"}, "partition_by must be one of 'none', 'day', 'hour', got 'week'"),
        ({"on_data_loss": "x"}, "on_data_loss must be one of 'fail', 'continue'"),
        ({"max_file_rows": 0}, "max_file_rows is at least 1, got 0"),
        ({"tasks": 0}, "tasks is at least 1"),
        ({"table": "a.b"}, "table and catalog are for iceberg"),
        *(
            ({"format": "iceberg", "table": name}, f"namespace and the name .*; got '{name}'")
            for name in ("one", "a.b.c", "x.", ".x", "x. ", "a..b", "")
        ),
        ({"log": None}, "which log has topic 't'"),
    ],
)
def test_wrong_options_are_refused(log: Log, to: Path, options: dict[str, Any], said: str) -> None:
    create(log, "t")
    with pytest.raises(InvalidConfig, match=said):
        sl.offload("t", to, **({"log": log} | options))
    assert not to.exists()


def test_a_url_and_an_unknown_topic_are_refused(log: Log, to: Path) -> None:
    create(log, "t")
    with pytest.raises(InvalidConfig, match="s3://bucket/x is not a local folder"):
        sl.offload("t", "s3://bucket/x", log=log)
    with pytest.raises(UnknownTopic):
        sl.offload("missing", to, log=log)
    assert not to.exists()
    declared = sl.App("shop", log=log).topic("t", key=bytes, value=bytes)
    with pytest.raises(InvalidConfig, match="has the log of its app"):
        sl.offload(declared, to, log=log)


@pytest.mark.parametrize("inside", ["lake", "topics/{id}/lake", "topics/{id}/0/lake", "state/lake"])
def test_a_folder_in_a_log_is_refused(log: Log, to: Path, tmp_path: Path, inside: str) -> None:
    """Files in the folder of a topic were removed together with it."""
    create(log, "t")
    place = tmp_path / "log" / inside.format(id=log.broker.topic("t").topic_id)
    to.symlink_to(tmp_path / "log")
    for folder in (place, to / place.relative_to(tmp_path / "log")):
        with pytest.raises(
            InvalidConfig, match="is in the folder of the log .*/log, where files are"
        ):
            sl.offload("t", folder, log=log)
    assert not place.exists()


# Tables that other programs have changed -----------------------------------------------------


def test_a_delta_table_that_was_restored_is_refused(log: Log, to: Path) -> None:
    create(log, "t", schema=SALE)
    for number in range(3):
        append(log, "t", sales(number, 1), 1)
        sl.offload("t", to, log=log, format="delta")
    delta(to).restore(1)
    with refused(to, InvalidConfig, "restored to an earlier version.*load into another folder"):
        sl.offload("t", to, log=log, format="delta")


def add_constraint(to: Path) -> None:
    delta(to).alter.add_constraint({"few": "user < 10"})


def add_invariant(to: Path) -> None:
    """Rewrite the first entry of the log, because delta-rs adds none."""
    entry = to / "_delta_log/00000000000000000000.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            (user,) = [field for field in schema["fields"] if field["name"] == "user"]
            rule = {"expression": {"expression": "user < 10"}}
            user["metadata"]["delta.invariants"] = json.dumps(rule)
            action["metaData"]["schemaString"] = json.dumps(schema)
    entry.write_text("\n".join(map(json.dumps, actions)) + "\n")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (add_constraint, "delta.constraints.few"),
        (add_invariant, "user: delta.invariants"),
    ],
)
def test_a_delta_table_with_rules_that_a_load_does_not_check_is_refused(
    log: Log, to: Path, change: Callable[[Path], object], rule: str
) -> None:
    """Before, the table got rows that its constraint forbids."""
    create(log, "t", schema=SALE)
    append(log, "t", sales(0, 10), 1)
    sl.offload("t", to, log=log, format="delta")
    change(to)
    append(log, "t", sales(10, 10), 1)
    with refused(to, InvalidConfig, f"does not check .*{rule}.*; remove them"):
        sl.offload("t", to, log=log, format="delta")
    if change is add_constraint:
        delta(to).alter.drop_constraint("few")
        assert sl.offload("t", to, log=log, format="delta").rows == 10


@pytest.mark.parametrize(("by", "said"), [("none", "no column"), ("day", "_day")])
def test_a_delta_table_that_another_program_has_partitioned_is_refused(
    log: Log, to: Path, by: PartitionBy, said: str
) -> None:
    """Before, the column of the new partition was null in all rows that were loaded later."""
    from deltalake import write_deltalake

    create(log, "t", schema=SALE)
    append(log, "t", sales(0, 10), 1)
    sl.offload("t", to, log=log, format="delta", partition_by=by)
    write_deltalake(
        str(to),
        delta(to).to_pyarrow_table(),
        mode="overwrite",
        schema_mode="overwrite",
        partition_by=["name"],
    )
    append(log, "t", sales(10, 10), 1)
    with refused(
        to, InvalidConfig, f"partitioned by name, .* divides it by {said}:.*as before, or"
    ):
        sl.offload("t", to, log=log, format="delta", partition_by=by)


def test_a_delta_table_that_is_partitioned_between_two_commits_is_refused(
    log: Log, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import write_deltalake

    create(log, "t", schema=SALE)
    append(log, "t", sales(0, 20), 1)
    commit = DeltaTarget._commit

    def overtaken(self: DeltaTarget, *arguments: Any) -> Any:
        table = commit(self, *arguments)
        write_deltalake(
            str(to),
            table.to_pyarrow_table(),
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=["name"],
        )
        table.update_incremental()
        return table

    monkeypatch.setattr(DeltaTarget, "_commit", overtaken)
    with pytest.raises(InvalidConfig, match="partitioned by name"):
        sl.offload("t", to, log=log, format="delta", commit_records=10)
    assert places(stored("delta", to)) == committed(log, "t")[:10]


def test_a_delta_column_that_must_not_be_null_is_refused(log: Log, to: Path) -> None:
    """Before, nulls were added to such a column, which readers may rely on."""
    from deltalake import write_deltalake

    create(log, "t", schema=SALE)
    append(log, "t", sales(0, 10), 1)
    sl.offload("t", to, log=log, format="delta")
    rows = delta(to).to_pyarrow_table()
    strict = pa.schema([field.with_nullable(field.name != "name") for field in rows.schema])
    write_deltalake(str(to), rows.cast(strict), mode="overwrite", schema_mode="overwrite")
    append(log, "t", sales(10, 10), 1)
    with refused(to, SchemaMismatch, "'name' of the target must not be null.*make it nullable"):
        sl.offload("t", to, log=log, format="delta")


def divide(to: Path, column: str, transform: str) -> None:
    """Add a hidden partition to an Iceberg table, as another program does."""
    from pyiceberg.transforms import parse_transform

    with iceberg_table(to) as table, table.update_spec() as spec:
        spec.add_field(column, parse_transform(transform), "theirs")


@pytest.mark.parametrize(
    ("column", "transform", "by"),
    [("name", "identity", "none"), ("user", "bucket[4]", "day"), ("_timestamp", "hour", "day")],
)
def test_an_iceberg_table_that_another_program_has_partitioned_is_refused(
    log: Log, to: Path, column: str, transform: str, by: PartitionBy
) -> None:
    """Before, the run ended with an error of PyIceberg after it had written its files."""
    create(log, "t", schema=SALE)
    append(log, "t", sales(0, 10), 1)
    sl.offload("t", to, log=log, format="iceberg", partition_by=by)
    divide(to, column, transform)
    append(log, "t", sales(10, 10), 1)
    said = f"partition 'theirs', .*{column}.*, of another program.*remove that partition, or load"
    with refused(to, InvalidConfig, said):
        sl.offload("t", to, log=log, format="iceberg", partition_by=by)
    with iceberg_table(to) as table, table.update_spec() as spec:
        spec.remove_field("theirs")
    assert sl.offload("t", to, log=log, format="iceberg", partition_by=by).rows == 10


@pytest.mark.parametrize(
    ("column", "transform", "by"),
    [("_topic_partition", "identity", "none"), ("_timestamp", "month", "day")],
)
def test_an_iceberg_partition_that_is_the_same_in_each_file_stays(
    log: Log, to: Path, column: str, transform: str, by: PartitionBy
) -> None:
    create(log, "t", 2, schema=SALE)
    append(log, "t", sales(0, 10), 2)
    sl.offload("t", to, log=log, format="iceberg", partition_by=by)
    divide(to, column, transform)
    append(log, "t", sales(10, 10), 2)
    assert sl.offload("t", to, log=log, format="iceberg", partition_by=by).rows == 10
    assert places(stored("iceberg", to)) == committed(log, "t")


@pytest.mark.parametrize(
    ("form", "pattern"), [("delta", "_delta_log/*.json"), ("iceberg", "metadata/*.metadata.json")]
)
def test_a_table_whose_metadata_is_damaged_is_named(
    log: Log, to: Path, form: Format, pattern: str
) -> None:
    """Before, the run ended with an error of the table's library."""
    create(log, "t", schema=SALE)
    append(log, "t", sales(0, 10), 1)
    sl.offload("t", to, log=log, format=form)
    last = max(to.glob(pattern), key=lambda file: file.stat().st_mtime_ns)
    whole = last.read_bytes()
    last.write_bytes(whole[: len(whole) // 2])
    with refused(to, sl.StorageFailed, "table .* cannot be read: .*put it back from a backup"):
        sl.offload("t", to, log=log, format=form)
    last.write_bytes(whole)
    assert sl.offload("t", to, log=log, format=form).rows == 0


def test_files_without_any_manifest_are_not_loaded_again(log: Log, to: Path) -> None:
    """Before, each record was in the folder twice afterwards."""
    create(log, "t", schema=SALE)
    append(log, "t", sales(0, 10), 1)
    sl.offload("t", to, log=log)
    (to / "_strandline/commits").rename(to.parent / "kept")
    with pytest.raises(sl.CorruptLog, match="no manifest in _strandline/commits: put .* back"):
        sl.offload("t", to, log=log)
    shutil.rmtree(to / "_strandline/commits", ignore_errors=True)
    (to.parent / "kept").rename(to / "_strandline/commits")
    assert sl.offload("t", to, log=log).rows == 0
    assert places(stored("parquet", to)) == committed(log, "t")


def test_a_delta_table_may_be_optimized_vacuumed_and_forget_its_log(log: Log, to: Path) -> None:
    create(log, "t", schema=SALE)
    for number in range(3):
        append(log, "t", sales(10 * number, 10), 1)
        sl.offload("t", to, log=log, format="delta", partition_by="day")
    delta(to).optimize.compact()
    delta(to).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    append(log, "t", sales(30, 10), 1)
    assert sl.offload("t", to, log=log, format="delta", partition_by="day").rows == 10
    delta(to).optimize.compact()
    delta(to).create_checkpoint()
    last = delta(to).version()
    for entry in (to / "_delta_log").glob("*.json"):
        if int(entry.stem) < last:
            entry.unlink()
    append(log, "t", sales(40, 10), 1)
    assert sl.offload("t", to, log=log, format="delta", partition_by="day").rows == 10
    assert places(stored("delta", to)) == committed(log, "t")


def test_an_iceberg_table_that_was_rolled_back_is_loaded_again_from_there(
    log: Log, to: Path
) -> None:
    from pyiceberg.catalog import load_catalog

    create(log, "t", schema=SALE)
    for number in range(3):
        append(log, "t", sales(number, 1), 1)
        sl.offload("t", to, log=log, format="iceberg")
    with load_catalog("strandline", type="sql", uri=f"sqlite:///{to}/catalog.db") as catalog:
        table = catalog.load_table("default.t")
        table.manage_snapshots().rollback_to_snapshot(table.history()[0].snapshot_id).commit()
    assert len(stored("iceberg", to)) == 1
    assert sl.offload("t", to, log=log, format="iceberg").rows == 2
    assert places(stored("iceberg", to)) == committed(log, "t")


@each_format
def test_a_copied_target_is_loaded_except_of_an_iceberg_table_which_is_refused(
    loaded: Log, to: Path, form: Format
) -> None:
    """Before, the metadata of the copy stayed in the original's folder, and went with it."""
    copy = to.with_name("copy")
    shutil.copytree(to, copy)
    append(loaded, "t", sales(10, 10), 2)
    if form == "iceberg":
        before = content(to)
        said = (
            f"{copy} is at file://{to}: an Iceberg table cannot be copied or moved.*another folder"
        )
        with refused(copy, InvalidConfig, said):
            sl.offload("t", copy, log=loaded, format=form)
        assert content(to) == before
    else:
        assert sl.offload("t", copy, log=loaded, format=form).rows == 10
        assert places(stored(form, copy)) == committed(loaded, "t")
    assert sl.offload("t", to, log=loaded, format=form).rows == 10
    assert places(stored(form, to)) == committed(loaded, "t")


@each_format
def test_a_moved_target_is_loaded_except_of_an_iceberg_table_which_is_refused(
    loaded: Log, to: Path, form: Format
) -> None:
    """Before, the message took the metadata for damaged."""
    moved = to.rename(to.with_name("moved"))
    append(loaded, "t", sales(10, 10), 2)
    if form == "iceberg":
        said = (
            f"{moved} has its metadata in another folder.*cannot be copied or moved.*move it back"
        )
        with refused(moved, InvalidConfig, said):
            sl.offload("t", moved, log=loaded, format=form)
        moved.rename(to)
    else:
        to = moved
    assert sl.offload("t", to, log=loaded, format=form).rows == 10
    assert places(stored(form, to)) == committed(loaded, "t")


@each_format
def test_a_target_may_be_named_by_another_path_to_its_folder(
    loaded: Log, to: Path, form: Format
) -> None:
    (link := to.with_name("link")).symlink_to(to)
    append(loaded, "t", sales(10, 10), 2)
    assert sl.offload("t", link, log=loaded, format=form).rows == 10
    assert places(stored(form, to)) == committed(loaded, "t")


def test_another_iceberg_table_in_the_catalog_is_refused(
    log: Log, to: Path, tmp_path: Path
) -> None:
    from pyiceberg.catalog import load_catalog

    create(log, "t", schema=SALE)
    options = {"type": "sql", "uri": f"sqlite:///{tmp_path}/shared.db", "warehouse": str(tmp_path)}
    with load_catalog("strandline", **options) as catalog:
        catalog.create_namespace("sales")
        catalog.create_table("sales.mine", SALE)
    append(log, "t", sales(0, 3), 1)
    with pytest.raises(InvalidConfig, match=r"sales\.mine exists, and was not made by a load"):
        sl.offload("t", to, log=log, format="iceberg", table="sales.mine", catalog=options)
    again = tmp_path / "again"
    sl.offload("t", again, log=log, format="iceberg", table="sales.theirs", catalog=options)
    with load_catalog("strandline", **options) as catalog:
        found = catalog.load_table("sales.theirs").scan().to_arrow()
    assert places(found) == committed(log, "t")
    with pytest.raises(InvalidConfig, match="loaded with table 'sales.theirs'"):
        sl.offload("t", again, log=log, format="iceberg", catalog=options)


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_commit_that_another_program_overtakes_changes_nothing(
    log: Log, to: Path, form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other load has not seen the lock, as on a shared file system without locks."""
    create(log, "t", schema=SALE)
    append(log, "t", sales(0, 10), 1)
    sl.offload("t", to, log=log, format=form)
    append(log, "t", sales(10, 10), 1)
    overtaken: list[int] = []
    name = "strandline.framework.offload." + (
        "delta.DeltaTarget._commit" if form == "delta" else "iceberg.IcebergTarget._commit"
    )
    whole = pytest.importorskip(name.rsplit(".", 2)[0])
    target = getattr(whole, name.split(".")[-2])
    commit = target._commit

    def late(self: Any, *arguments: Any) -> Any:
        if not overtaken:
            overtaken.append(1)
            self._folder.storage.rename("_strandline/pending.json", "_strandline/mine.json")
            files = self._folder.read("_strandline/mine.json", _commit_type()).files
            monkeypatch.setattr(LocalStorage, "lock", lambda *_, **__: _NoLock())
            for file in files:  # the other load has a staging of its own
                self._folder.storage.make_dir("_strandline/other")
                self._folder.storage.rename(file.path, "_strandline/other/" + file.path)
            sl.offload("t", to, log=log, format=form)
            for file in files:
                self._folder.storage.rename("_strandline/other/" + file.path, file.path)
            self._folder.storage.rename("_strandline/mine.json", "_strandline/pending.json")
        return commit(self, *arguments)

    monkeypatch.setattr(target, "_commit", late)
    with pytest.raises(InvalidRequest, match="another program has changed.*run this again"):
        sl.offload("t", to, log=log, format=form)
    assert places(stored(form, to)) == committed(log, "t")
    assert sl.offload("t", to, log=log, format=form).rows == 0


def test_files_of_a_delta_commit_that_failed_after_it_was_made_stay(
    log: Log, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake.exceptions import CommitFailedError

    create(log, "t", schema=SALE)
    append(log, "t", sales(0, 10), 1)
    commit = DeltaTarget._commit

    def failing(self: DeltaTarget, *arguments: Any) -> Any:
        commit(self, *arguments)
        raise CommitFailedError("the checkpoint failed")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTarget, "_commit", failing)
        with pytest.raises(sl.StorageFailed, match="the next run goes on after them"):
            sl.offload("t", to, log=log, format="delta")
    append(log, "t", sales(10, 10), 1)
    assert sl.offload("t", to, log=log, format="delta").rows == 10
    assert places(stored("delta", to)) == committed(log, "t")


class _NoLock:
    def release(self) -> None:
        """Do nothing."""


def _commit_type() -> Any:
    from strandline.framework.offload.folder import Commit

    return Commit


def test_an_unreadable_manifest_is_named(log: Log, to: Path) -> None:
    create(log, "t", schema=SALE)
    append(log, "t", sales(0, 3), 1)
    sl.offload("t", to, log=log)
    (last,) = (to / "_strandline/commits").iterdir()
    whole = last.read_bytes()
    last.write_bytes(whole[: len(whole) // 2])
    with refused(to, sl.CorruptLog, "was not written by an offload, or is damaged"):
        sl.offload("t", to, log=log)
    last.write_bytes(whole.replace(b'"version": 1', b'"version": 9', 1))
    with refused(to, sl.CorruptLog, "version 9 of offloads; this Strandline knows 2: upgrade"):
        sl.offload("t", to, log=log)
