"""Names of columns of Iceberg tables: readers add columns of their own, and refuse others so named."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import strandline as sl
from strandline.changelog.errors import SchemaMismatch
from strandline.changelog.log import Log
from strandline.framework.offload.iceberg import METADATA_COLUMNS, IcebergTarget
from strandline.framework.offload.target import PartitionBy
from tests.offload.kit import (
    SALE,
    append,
    committed,
    create,
    iceberg_table,
    places,
    refused,
    sales,
    stored,
)


@pytest.mark.parametrize("by", ["none", "hour"])
@pytest.mark.parametrize("schema", [SALE, None], ids=["typed", "bytes"])
def test_a_new_table_has_no_column_that_readers_add(
    log: Log, to: Path, schema: pa.Schema | None, by: PartitionBy
) -> None:
    """Before, Spark could not read the column `_partition`, and so not `SELECT *`."""
    create(log, "t", schema=schema)
    append(log, "t", sales(0, 3), 1) if schema else log.append("t", [{"value": b"v"}])
    sl.offload("t", to, log=log, format="iceberg", partition_by=by)
    with iceberg_table(to) as table:
        names = {field.name for field in (*table.schema().fields, *table.spec().fields)}
    assert names.isdisjoint(METADATA_COLUMNS)


def test_a_table_of_an_earlier_version_keeps_its_column_until_it_is_renamed(
    log: Log, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(log, "t", 2, schema=SALE)
    append(log, "t", sales(0, 10), 2)
    with monkeypatch.context() as earlier:
        earlier.setattr(IcebergTarget, "_named", lambda _target, wanted: wanted)
        sl.offload("t", to, log=log, format="iceberg")
    append(log, "t", sales(10, 10), 2)
    assert sl.offload("t", to, log=log, format="iceberg").rows == 10
    assert stored("iceberg", to).column_names[0] == "_partition"
    with iceberg_table(to) as table, table.update_schema() as schema:
        schema.rename_column("_partition", "_topic_partition")
    append(log, "t", sales(20, 10), 2)
    assert sl.offload("t", to, log=log, format="iceberg").rows == 10
    found = stored("iceberg", to)
    assert "_partition" not in found.column_names
    assert found["_topic_partition"].null_count == 0
    assert places(found) == committed(log, "t")


@pytest.mark.parametrize("name", ["_pos", "_row_id", "_topic_partition", "_Topic_Partition"])
def test_a_topic_with_such_a_column_is_refused(log: Log, to: Path, name: str) -> None:
    create(log, "t", schema=pa.schema([("n", pa.int64()), (name, pa.int64())]))
    log.append("t", [{"n": 1, name: 2}])
    with pytest.raises(
        SchemaMismatch, match=f"has the column '{name}', which .* adds to the table"
    ):
        sl.offload("t", to, log=log, format="iceberg")
    assert not [*to.rglob("*.parquet")]
    assert sl.offload("t", to.with_name("as-parquet"), log=log).rows == 1


def test_a_column_so_named_may_not_be_added_to_a_topic_that_is_loaded(log: Log, to: Path) -> None:
    create(log, "t", schema=SALE)
    append(log, "t", sales(0, 3), 1)
    sl.offload("t", to, log=log, format="iceberg")
    log.alter_topic("t", schema=SALE.append(pa.field("_deleted", pa.bool_())))
    append(log, "t", sales(3, 3), 1)
    with refused(to, SchemaMismatch, "has the column '_deleted'"):
        sl.offload("t", to, log=log, format="iceberg")
