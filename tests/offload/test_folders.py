"""Folders of Parquet targets that are divided by time, as readers of folders find them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.changelog.log import Log
from strandline.framework.offload import api
from strandline.framework.offload.target import PartitionBy
from tests.offload.kit import (
    HOUR_MS,
    PERIODS,
    SALE,
    append,
    committed,
    create,
    places,
    sales,
    stored,
)


@pytest.mark.parametrize("by", PERIODS)
def test_readers_of_a_folder_find_all_records(log: Log, to: Path, by: PartitionBy) -> None:
    """Before, PyArrow and pandas skipped the folders `_day=…`, and found no record."""
    create(log, "t", 2, schema=SALE)
    append(log, "t", sales(0, 60, every_ms=HOUR_MS), 2)
    sl.offload("t", to, log=log, partition_by=by)
    assert places(pq.read_table(to)) == committed(log, "t")
    assert places(ds.dataset(to, partitioning="hive").to_table()) == committed(log, "t")
    assert len(pd.read_parquet(to)) == 60


def test_a_target_of_an_earlier_version_keeps_the_names_of_its_folders(
    log: Log, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(log, "t", schema=SALE)
    append(log, "t", sales(0, 2), 1)
    with monkeypatch.context() as earlier:
        earlier.setattr(api, "VISIBLE", "_")
        earlier.setattr(api, "NEWEST", 1)
        sl.offload("t", to, log=log, partition_by="hour")
    append(log, "t", sales(2, 1, every_ms=24 * HOUR_MS), 1)
    assert sl.offload("t", to, log=log, partition_by="hour").rows == 1
    assert {path.parent.parent.name[:5] for path in to.rglob("*.parquet")} == {"_day="}
    assert places(stored("parquet", to)) == committed(log, "t")
