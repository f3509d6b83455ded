"""The standard job in Quix Streams, exactly once: quix_count.py SERVERS NAME RECORDS.

It runs in an environment of its own, and prints records a second, from the first record to the
last.
"""

import sys
import tempfile
import time
from typing import Any

from quixstreams import Application, State


def main(servers: str, name: str, records: int) -> None:
    """Count all records and print the rate."""
    with tempfile.TemporaryDirectory(prefix="strandline-quix-") as state:
        app = Application(
            broker_address=servers,
            consumer_group=name,
            processing_guarantee="exactly-once",
            auto_offset_reset="earliest",
            state_dir=state,
            loglevel="ERROR",
        )
        views = app.topic("views", key_deserializer="str", value_deserializer="bytes")
        counts = app.topic(f"{name}-counts", key_serializer="str", value_serializer="int")
        seen, begun = 0, 0.0

        def count(_value: bytes, state: State) -> Any:
            nonlocal seen, begun
            begun = begun or time.perf_counter()
            total = state.get("count", 0) + 1
            state.set("count", total)
            seen += 1
            if seen == records:
                print("rate", records / (time.perf_counter() - begun), flush=True)
                app.stop()
            return total

        app.dataframe(views).apply(count, stateful=True).to_topic(counts)
        app.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
