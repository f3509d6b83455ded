"""Folders of logs that are copied and restored by an operator, and an app that counts on them."""

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
        """Append one record for each key, and let the app handle them. Return the counts."""
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
        """Copy the log folder to a folder next to it."""
        copy = self.log.parent / name
        shutil.copytree(self.log, copy)
        return copy

    def restored_from(self, copy: Path) -> None:
        """Replace the log folder by a copy. The state folder stays as it is."""
        shutil.rmtree(self.log)
        shutil.copytree(copy, self.log)


def counts(*runs: Sequence[str]) -> dict[str, int]:
    """Return the number of occurrences of each key in all runs."""
    found: dict[str, int] = {}
    for key in (key for run in runs for key in run):
        found[key] = found.get(key, 0) + 1
    return found


def opened(folder: Path) -> Log:
    """Open the log in a folder, owned by this process."""
    return changelog.open(folder, durability="os")
