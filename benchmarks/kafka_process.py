"""Run the standard job on Kafka, or a restore after a lost disk, in a process of its own.

    python -m benchmarks.kafka_process count|restore SERVERS NAME RECORDS

It prints records a second. For `count` the time runs from the first record to the end of the last
commit, for `restore` from the first look at the changelog until the stores are complete.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time

import strandline as sl
from strandline.framework.container.restore import RestoreProgress
from strandline.statestore.serdes import Long

PARTITIONS = 4


def main(what: str, servers: str, name: str, records: int) -> None:
    """Count and print the rate; for `restore`, then delete the state and print the restore's
    rate."""
    with tempfile.TemporaryDirectory(prefix="strandline-kafka-") as state:
        rate = _counted(servers, name, state, records)
        if what == "restore":
            shutil.rmtree(f"{state}/{name}")
            rate = _restored(servers, name, state)
    print("rate", rate)


def _counted(servers: str, name: str, state: str, records: int) -> float:
    begun: list[float] = []
    with _app(servers, name, state, begun) as app:
        handled = app.run(count=records)
        ended = time.perf_counter()
    assert handled == records, (handled, records)
    return records / (ended - begun[0])


def _restored(servers: str, name: str, state: str) -> float:
    progress: list[RestoreProgress] = []
    with _app(servers, name, state, []) as app:
        app.run(until="idle", progress=progress.append)
    assert progress[-1].done, progress[-1]
    return progress[-1].rate


def _app(servers: str, name: str, state: str, begun: list[float]) -> sl.App:
    """Return the job as a user writes it. It also notes when its first record comes."""
    app = sl.App(name, log=f"kafka://{servers}", state_dir=state)
    views = app.topic("views", key=str, value=int, serde=Long(), partitions=PARTITIONS)
    updates = app.topic(f"{name}-counts", key=str, value=int, partitions=PARTITIONS)
    counts = app.store("per-user", key=str, value=int)

    @app.task(views, stores=[counts])
    def count(record: sl.Record[str, int]) -> None:
        if not begun:
            begun.append(time.perf_counter())
        seen = counts.get(record.key, 0) + 1
        counts[record.key] = seen
        updates.send(record.key, seen)

    return app


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
