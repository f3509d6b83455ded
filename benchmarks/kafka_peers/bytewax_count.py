"""The standard job in Bytewax, from and to memory: bytewax_count.py RECORDS USERS.

Bytewax has neither transactions nor a state beyond memory, so it counts a list and collects the
updates, without recovery. It runs in an environment of its own, and prints records a second.
"""

import random
import sys
import time
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.testing import TestingSink, TestingSource, run_main


def main(records: int, users: int) -> None:
    """Count all records and print the rate."""
    chance = random.Random(0)
    views = [(f"user-{chance.randrange(users):05}", number % 1_000) for number in range(records)]
    updates: list[Any] = []
    flow = Dataflow("count")
    read = op.input("read", flow, TestingSource(views, batch_size=1_000))
    counted = op.stateful_map("count", read, count)
    op.output("write", counted, TestingSink(updates))
    begun = time.perf_counter()
    run_main(flow)
    assert len(updates) == records
    print("rate", records / (time.perf_counter() - begun), flush=True)


def count(state: int | None, _value: int) -> tuple[int, int]:
    """Return the state and the update of a key after one more record."""
    total = (state or 0) + 1
    return total, total


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
