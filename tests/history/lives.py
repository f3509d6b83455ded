"""Folders of logs that are copied and put back, as an operator does it, and an app that counts on them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import strandline as sl
from strandline import changelog
from strandline.changelog.log import Log


@dataclass(frozen=True)
class Life:
    """A log folder, a state folder outside of it, and the app that counts keys with both."""

    log: Path
    state: Path

    def count(self, keys: Sequence[str]) -> dict[str, int]:
        """Append one record for each key, let the app handle all of them; return what it has counted."""
        with sl.App("counting", log=self.log, state_dir=self.state) as app:
            seen = app.topic("seen", key=str, value=int, partitions=1)
            totals = app.store("totals", key=str, value=int, default=0)

            @app.task(seen, stores=[totals])
            def count(record: sl.Record[str, int]) -> None:
                totals[record.key] += record.value

            seen.append([(key, 1) for key in keys])
            app.run(until="idle")
            return dict(app.query(totals).all())

    def kept(self, name: str) -> Path:
        """A copy of the log folder, beside it."""
        copy = self.log.parent / name
        shutil.copytree(self.log, copy)
        return copy

    def restored_from(self, copy: Path) -> None:
        """Put a copy in the place of the log folder; the state folder stays as it is."""
        shutil.rmtree(self.log)
        shutil.copytree(copy, self.log)


def counts(*runs: Sequence[str]) -> dict[str, int]:
    """How often each key occurs in all of them."""
    found: dict[str, int] = {}
    for key in (key for run in runs for key in run):
        found[key] = found.get(key, 0) + 1
    return found


def opened(folder: Path) -> Log:
    """The log in a folder, owned by this process."""
    return changelog.open(folder, durability="os")
