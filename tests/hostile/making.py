"""Create every kind of file in a log's folder, under a umask chosen by the caller.

    python -m tests.hostile.making <folder> <umask in octal digits>

Its standard output ends with the modes of all files, while the log was open and after a repair.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from pathlib import Path

from strandline import changelog
from strandline.changelog.client.producer import Producer
from strandline.changelog.flight.background import _open_log
from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition
from strandline.framework.cli import main as strandline
from strandline.statestore import StoreSpec, open_store


def make(root: Path) -> None:
    os.close(_open_log(root))
    with changelog.open(root) as log:
        log.create_topic("t", config={"segment.bytes": "4096"})
        log.create_topic("c", config={"cleanup.policy": "compact"})
        with log.producer(transactional_id="tx") as producer:
            for abort in (False, True, False):
                transact(producer, abort=abort)
        keep(log, root / "state" / "app" / "s" / "0")
        tell("open", root)


def transact(producer: Producer, *, abort: bool) -> None:
    """Commit or abort a transaction that fills segments."""
    producer.begin_transaction()
    for number in range(500):
        producer.send("c", b"y", key=b"\x02k%d" % number)
    for _ in range(30):
        producer.send("t", b"x" * 300)
        producer.flush()
    producer.abort_transaction() if abort else producer.commit_transaction()


def keep(log: Log, folder: Path) -> None:
    """Create a store with a value in it."""
    store = open_store(StoreSpec("s", key=bytes, value=bytes), folder)
    store.restore(log.broker, TopicPartition("c", 0))
    store.checkpoint()
    store.close()


def repair_damage(root: Path) -> None:
    """Damage a segment, and let the command repair it."""
    path = max(root.glob("topics/*/0/*.log"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(content)
    with contextlib.suppress(SystemExit):
        strandline(["repair", str(root), "--yes"])
    tell("repaired", root)


def tell(when: str, root: Path) -> None:
    """Print one line of JSON with the mode of each path."""
    paths = [root, *root.rglob("*")]
    modes = {str(p.relative_to(root)): stat.S_IMODE(p.lstat().st_mode) for p in paths}
    print(json.dumps({"when": when, "modes": modes}), flush=True)


if __name__ == "__main__":
    os.umask(int(sys.argv[2], 8))
    place = Path(sys.argv[1])
    place.mkdir(mode=0o755)
    make(place)
    repair_damage(place)
