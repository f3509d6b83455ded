"""An app that keeps the last value of each key, and deletes those that become 0.

    python -m tests.workers.keeping LOG STATE CARE      runs a worker until SIGTERM

With "careless" as CARE it does not check whether tombstones were removed from a changelog.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import strandline as sl
from strandline.changelog.records import PartitionOffsets

PARTITIONS = 2


def keeping(log: Any, **options: Any) -> tuple[sl.App, sl.Topic[str, int]]:
    """Return the app on a log, and its input."""
    app = sl.App("keep", log=log, session_timeout_ms=2_000, standby_replicas=1, **options)
    values = app.topic("values", key=str, value=int, partitions=PARTITIONS)
    last = app.store("last", key=str, value=int)

    @app.task(values, stores=[last])
    def keep(record: sl.Record[str, int]) -> None:
        if record.value:
            last[record.key] = record.value
        else:
            last.delete(record.key)

    return app, values


def main() -> None:
    log, state, care = sys.argv[1:]
    if care == "careless":
        PartitionOffsets.must_start_over = lambda *_: False  # type: ignore[assignment]
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    app, _ = keeping(log, state_dir=state, commit_interval_ms=20)
    with app:
        app.run(progress=False)


if __name__ == "__main__":
    main()
