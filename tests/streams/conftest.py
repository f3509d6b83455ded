"""Fixtures for tests of streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from strandline.statestore.column_store import ColumnStore


@pytest.fixture
def entries_read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the keys of all entries that scans of stores of columns have read, as a list."""
    found: list[bytes] = []
    scan = ColumnStore._stored

    def counted(self: Any, *bounds: Any, **order: Any) -> Iterator[Any]:
        for entry in scan(self, *bounds, **order):
            found.append(entry[0])
            yield entry

    monkeypatch.setattr(ColumnStore, "_stored", counted)
    return found
