"""Cost of a time to live: processor time of commits in 64 partitions of 5,000 keys each.

The app of the workload `partitions` counts 64 records in each commit, one in each partition. No
value expires, which is the usual case: what is measured is the search for values that have. The
peer is the same app whose store has no time to live.
"""

from __future__ import annotations

import time

from benchmarks.harness import Figure, folder, of_pairs
from benchmarks.partitions import commit, running

PARTITIONS = 64
HOUR_MS = 60 * 60 * 1000


def run(*, quick: bool = False) -> list[Figure]:
    """Measure the processor time of a commit (target: 1.5 × that without a time to live)."""
    keys, commits, rounds = (500, 5, 1) if quick else (5_000, 50, 3)
    pairs = [
        (_processor_ms(keys, commits, HOUR_MS), _processor_ms(keys, commits, None))
        for _ in range(rounds)
    ]
    return [
        of_pairs(
            f"time to live: a commit in {PARTITIONS} partitions of {keys:,} keys, processor time",
            pairs,
            peer_name="without",
            unit="ms",
            target=None if quick else 1.5,
            at_most=True,
        )
    ]


def _processor_ms(keys: int, commits: int, ttl_ms: int | None) -> float:
    """Return the milliseconds of processor time of a commit, with everything that belongs to it."""
    with folder() as path, running(path, PARTITIONS, ttl_ms=ttl_ms) as log:
        names = [b"key-%05d" % number for number in range(keys)]
        commit(log, names, keys, touched=PARTITIONS)
        before = time.process_time()
        for number in range(1, commits + 1):
            commit(log, names[number : number + 1], keys + number, touched=PARTITIONS)
        return (time.process_time() - before) * 1_000 / commits
