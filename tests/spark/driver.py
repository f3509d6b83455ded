"""A driver that dies in the middle of its first batch: python driver.py LOG CHECKPOINT FOLDER.

Before that it writes the rows of the batch to FOLDER/rows.json.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from strandline.framework.spark import session
from tests.spark.conftest import SMALL


def rows_of(frame: Any) -> list[list[Any]]:
    """Return offset, key and value of each row."""
    rows = [[r.offset, bytes(r.key).decode(), bytes(r.value).decode()] for r in frame.collect()]
    return sorted(rows)


def main(log: str, checkpoint: str, folder: str) -> None:
    spark = session("dies", master="local[2]", config=SMALL)
    stream = spark.readStream.format("strandline").option("subscribe", "t")

    def take(frame: Any, _: int) -> None:
        Path(folder, "rows.json").write_bytes(msgspec.json.encode(rows_of(frame)))
        os.kill(os.getpid(), signal.SIGKILL)

    reader = stream.option("startingOffsets", "earliest").load(log)
    writer = reader.writeStream.option("checkpointLocation", checkpoint).foreachBatch(take)
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
