"""Clean a log in a process of its own, on one core, and report its time and memory.

The process has one thread for Polars and one for Arrow, and the log's owner starts none. Old files
are not deleted within the measured time, because Kafka deletes them later too. Before the clock
starts the process cleans a tiny log, so that everything is imported and in memory; Kafka's cleaner
has made a pass before as well.

    python -m benchmarks.cleaning_process PATH BUFFER      # started by `clean`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks.dirty_log import CHANGELOG, check_cleaned, fill
from benchmarks.harness import Stopwatch, folder, pinned
from benchmarks.keyed_records import BATCH_RECORDS, KeyedRecords
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.local_storage import LocalStorage

BOUND_SECONDS = 3600.0

_ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class CleaningUsage:
    """Time and memory of cleaning a log."""

    seconds: float
    processor_seconds: float
    """Seconds on the processor."""
    user_seconds: float
    """Seconds on the processor in the process's own code, without system calls."""
    resident: int
    """Bytes by which the resident memory at its peak exceeds that at the start, pages of any
    kind."""
    arrow: int
    """Bytes by which Arrow's memory pool at its peak exceeds that at the start."""


def clean(path: Path, core: int, buffer: int) -> CleaningUsage:
    """Clean the log at `path` in a new process on `core`, with `buffer` bytes for the keys."""
    module = [sys.executable, "-m", "benchmarks.cleaning_process"]
    done = subprocess.run(
        [*pinned(core), *module, str(path), str(buffer)],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, **_ONE_THREAD},
        cwd=Path(__file__).resolve().parent.parent,
        timeout=BOUND_SECONDS,
    )
    return CleaningUsage(**json.loads(done.stdout))


# The measured process ----------------------------------------------------------------


def _main() -> None:
    path, buffer = Path(sys.argv[1]), int(sys.argv[2])
    pa.set_cpu_count(1)
    with folder() as place:
        tiny = KeyedRecords(3 * BATCH_RECORDS, BATCH_RECORDS)
        fill(place / "log", tiny)
        _measured(place / "log", buffer)
        check_cleaned(place / "log", tiny)
    print(json.dumps(asdict(_measured(path, buffer))))


def _measured(path: Path, buffer: int) -> CleaningUsage:
    pool = pa.default_memory_pool()
    pool.release_unused()
    owner = Owner(LocalStorage(path), background=False)
    owner.alter_config({"log.cleaner.dedupe.buffer.size": str(buffer)})
    resident, arrow = _start_resident(), pool.bytes_allocated()
    watch, before = Stopwatch(), os.times()
    _clean(owner)
    seconds, after = watch.seconds, os.times()
    user, system = after.user - before.user, after.system - before.system
    grown = _status("VmHWM") - resident, pool.max_memory() - arrow
    owner.close()
    return CleaningUsage(seconds, user + system, user, *grown)


def _clean(owner: Owner) -> None:
    """Clean everything that can be cleaned, in as many passes as needed."""
    owner.clean([CHANGELOG.topic])
    (status,) = [one for one in owner.cleaning() if one.topic == CHANGELOG.topic]
    assert status.last is not None, status
    assert status.last.whole, status


def _start_resident() -> int:
    """Return the resident bytes, and reset the peak."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        found, _, size = line.partition(":")
        if found == name:
            return int(size.split()[0]) * 1024
    raise LookupError(f"/proc/self/status has no line {name}")


if __name__ == "__main__":
    _main()
