"""Rows of the state of streams, for `strandline stores`: columns instead of stored keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.framework.cli import output
from strandline.framework.parts import partitions_asked
from strandline.framework.querying.client import Connection
from strandline.framework.querying.declared import as_recorded, form_of
from strandline.framework.querying.groups import GroupQuery, GroupReader
from strandline.framework.streams.stored_groups import StoredGroups
from strandline.statestore.spec import UNSET

RowDict = dict[str, Any]


class StreamRows:
    """Groups or open windows of the store of one stream's aggregation."""

    def __init__(
        self, connection: Connection, name: str, groups: StoredGroups, partition: int | None
    ) -> None:
        committed = connection.committed(name)
        numbers = partitions_asked(name, len(committed.partitions), partition)
        self._reader = GroupReader(name, committed, numbers, connection.committed)
        form = form_of(name, as_recorded(committed.declaration()), UNSET, UNSET)
        self._query = GroupQuery(form, groups)

    def of_key(self, candidates: Sequence[Any]) -> list[RowDict]:
        """Return the rows of the group whose key is the first suitable one of the candidates.

        Raises InvalidRecord if none of them is of the type of the key.
        """
        for number, key in enumerate(candidates, 1):
            try:
                query = self._query.for_group(key)
            except InvalidRecord:
                if number == len(candidates):
                    raise
            else:
                return self._rows(query)
        return []

    def all(self, prefix: str, limit: int | None) -> list[RowDict]:
        """Return the first rows whose first column is a text that begins with a prefix."""
        first = next(iter(self._query.groups.keys))
        rows = (row for row in self._rows(self._query) if _begins(row[first], prefix))
        return list(islice(rows, limit))

    def _rows(self, query: GroupQuery) -> list[RowDict]:
        try:
            return self._reader.frame(query).rows(named=True)
        except InvalidConfig as error:
            raise InvalidConfig(
                f"{error} (on the command line: --parts shows what is stored)"
            ) from None


def stream_rows(connection: Connection, name: str, partition: int | None) -> StreamRows | None:
    """Return the rows of a store; None if it is not the state of a stream's aggregation."""
    groups = StoredGroups.of_declaration(name, connection.committed(name).recorded())
    return None if groups is None else StreamRows(connection, name, groups, partition)


def print_rows(rows: Sequence[RowDict], *, json: bool) -> None:
    """Print rows as a table, or as one JSON document a line."""
    if json:
        for row in rows:
            output.document(row)
    elif not rows:
        output.note("no keys")
    else:
        cells = [[output.cell(output.rounded(value)) for value in row.values()] for row in rows]
        output.table("", list(rows[0]), cells)


def _begins(value: Any, prefix: str) -> bool:
    return not prefix or (isinstance(value, str) and value.startswith(prefix))
