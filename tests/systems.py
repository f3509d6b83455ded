"""Systems that can hold a log. Tests of a promise that holds on each of them run on each of them.

Kafka is a real broker ([brokers.py](kafka/brokers.py)). A test of one system only names it:

    @pytest.mark.parametrize("system", ["embedded"], indirect=True)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from strandline import changelog
from strandline.changelog.log import Log

SYSTEMS = ["embedded", "kafka"]


@dataclass
class System:
    """One system under test."""

    name: str
    url: str
    state: Path
    """Folder for apps' stores. For a log in a folder it is the default folder."""
    prefix: str
    """Prefix for names of apps and topics, unique to this test."""
    _opened: list[Log] = field(default_factory=list)

    @property
    def is_kafka(self) -> bool:
        return self.name == "kafka"

    def open(self, **options: Any) -> Log:
        """Open one more client, closed after the test."""
        self._opened.append(changelog.open(self.url, **options))
        return self._opened[-1]

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> Iterator[System]:
    """Each system in turn."""
    kind = str(request.param)
    if kind == "kafka":
        url, state = request.getfixturevalue("kafka"), tmp_path / "state"
    else:
        url, state = str(tmp_path / "log"), tmp_path / "log" / "state"
    tested = System(kind, url, state, f"{name}-")
    yield tested
    tested.close()


def is_on_kafka(item: pytest.Item) -> bool:
    """Return True if a test takes `system` and that is the Kafka cluster."""
    call = getattr(item, "callspec", None)
    return call is not None and call.params.get("system") == "kafka"
