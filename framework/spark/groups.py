"""Aggregations of streams as tables: columns of the group, the window and the figures.

A row is what `framework.querying` returns of the same state: a group, or an open window, merged
from its panes if need be. A group is in one partition, so there is no column for that. If records
were not placed by the key of their topic, each partition gives a row for its part of a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidConfig
from strandline.framework.querying.declared import as_recorded, form_of
from strandline.framework.querying.folded import ReplayedSource
from strandline.framework.querying.groups import GroupQuery, last_closed
from strandline.framework.spark.options import SourceOptions
from strandline.framework.spark.planning import OffsetRange, StoredValues
from strandline.framework.streams.stored_groups import StoredGroups, closed_of
from strandline.framework.table_types import fit, spark_type
from strandline.statestore.declaration import Declaration
from strandline.statestore.spec import UNSET, changelog_topic

if TYPE_CHECKING:
    import polars as pl

STORED = {"key", "value", "partition"}
"""Columns of stores whose keys and values are read as they are stored."""


def groups_of(options: SourceOptions, stored: StoredValues | None) -> StoredGroups | None:
    """Return the layout of the store that is read; None if it is no aggregation of a stream.

    Raises InvalidConfig if its declaration cannot be read.
    """
    if not options.decode or stored is None or stored.declaration is None:
        return None
    declaration = Declaration.from_bytes(stored.declaration)
    return StoredGroups.of_declaration(options.store or "", declaration)


def groups_schema(groups: StoredGroups) -> pa.Schema:
    """Return the columns of an aggregation, in types that Spark has.

    Raises InvalidConfig if only the functions of the app can merge its windows.
    """
    import polars as pl

    groups.check_readable()
    columns = pl.DataFrame(schema=groups.columns).to_arrow().schema
    return pa.schema(
        [pa.field(field.name, spark_type(field.type, field.name)) for field in columns]
    )


def takes_columns(groups: StoredGroups | None, target: pa.Schema) -> bool:
    """Return True if a schema has columns of an aggregation, and not stored keys and values.

    Raises InvalidConfig for a column that it has not.
    """
    if groups is None:
        return False
    unknown = [name for name in target.names if name not in groups.columns]
    if unknown and not STORED.issuperset(target.names):
        raise InvalidConfig(
            f"store {groups.name!r} has no column {', '.join(unknown)}; its columns are"
            f" {', '.join(groups.columns)}"
        )
    return not unknown


def with_closed(
    broker: Broker, options: SourceOptions, groups: StoredGroups, ranges: list[OffsetRange]
) -> list[OffsetRange]:
    """Return planned ranges with the last closed window of each, which is read after planning.

    So a window that was closed since is left out, and none has only a part of its panes.
    """
    if not groups.is_merged:
        return ranges
    app, _, store = (options.store or "").partition("/")
    topic = broker.topic(changelog_topic(app, closed_of(store)))
    source = ReplayedSource(broker, topic.name, topic.partitions, app=app)
    found = []
    for each in ranges:
        assert each.stored is not None
        closed = last_closed(source, each.partition)
        found.append(replace(each, stored=each.stored._replace(closed=closed)))
    return found


def group_batches(
    table: pa.Table | None,
    groups: StoredGroups,
    stored: StoredValues,
    target: pa.Schema,
    batch_rows: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition in the columns of `target`.

    Args:
        table: Encoded keys and values; None if there are none.
        groups: Layout of the store.
        stored: Declaration of the store, and the last closed window.
        target: Columns to return.
        batch_rows: Maximum number of rows of a batch, and of entries that are decoded at a time
            unless windows are merged from them.
    """
    if table is None:
        return
    assert stored.declaration is not None
    declaration = Declaration.from_bytes(stored.declaration)
    query = GroupQuery(form_of(groups.name, as_recorded(declaration), UNSET, UNSET), groups)
    for rows in _rows(table, query, stored.closed, batch_rows):
        for batch in rows.to_arrow().to_batches(max_chunksize=batch_rows):
            arrays = [fit(batch.column(f.name), f, groups.name) for f in target]
            yield pa.RecordBatch.from_arrays(arrays, schema=target)


def _rows(
    table: pa.Table, query: GroupQuery, closed: int | None, batch_rows: int
) -> Iterator[pl.DataFrame]:
    if not query.groups.is_merged:
        for batch in table.to_batches(max_chunksize=batch_rows):
            yield query.groups.rows([query.states(dict(_entries(batch)))], query.of)
    else:
        entries = dict(sorted(_entries(table)))  # panes are merged in their order
        yield query.groups.rows([query.states(entries, closed)], query.of)


def _entries(table: pa.Table | pa.RecordBatch) -> Iterable[tuple[bytes, bytes]]:
    return zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
