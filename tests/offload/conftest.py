"""A log and a folder for the target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline import changelog
from strandline.changelog.log import Log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with changelog.open(tmp_path / "log", durability="os") as opened:
        yield opened


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "lake"
