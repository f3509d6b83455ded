"""A process of the tests: it opens a folder, reports its role, and follows commands line by line.

python helper.py DIR ROLE      then on standard input: append N | begin N | commit | topics |
    subscribe SESSION_MS [INSTANCE] | poll | commit-offsets | exit
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable

import pyarrow as pa

from strandline.changelog.client.consumer import Consumer
from strandline.changelog.errors import Retriable, StrandlineError
from strandline.changelog.flight.attach import attach_or_own
from strandline.changelog.records import Append


def columns(count: int, start: int = 0) -> pa.RecordBatch:
    """Return `count` records, numbered from `start` as values."""
    now = time.time_ns() // 1_000_000
    values = [str(start + n).encode() for n in range(count)]
    return pa.record_batch(
        {
            "timestamp": pa.array(range(now, now + count), pa.int64()),
            "key": pa.array(values, pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )


def main() -> None:
    broker = attach_or_own(sys.argv[1], role=sys.argv[2], deadline=10, idle=1)
    say(f"{'owning' if broker.owning else 'attached'} {os.getpid()}")
    producer = broker.init_producer()
    transactional = None
    sequence = 0
    consumer: Consumer | None = None
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "append":
            count = int(rest[0])
            batch = Append("t", 0, columns(count, sequence), producer, sequence)
            say(str(broker.append([batch])[0].base_offset))
            sequence += count
        elif command == "begin":
            transactional = broker.init_producer("helper", timeout_ms=60_000)
            batch = Append("t", 0, columns(int(rest[0])), transactional, 0, transactional=True)
            say(str(broker.append([batch])[0].base_offset))
        elif command == "commit":
            assert transactional is not None
            say(str(broker.end_transaction(transactional, commit=True).epoch))
        elif command == "topics":
            say(" ".join(info.name for info in broker.topics() if not info.internal) or "-")
        elif command == "subscribe":
            instance = rest[1] if len(rest) > 1 else None
            consumer = Consumer(
                broker, group="g", session_timeout_ms=int(rest[0]), instance=instance
            )
            consumer.subscribe("t")
            say("subscribed")
        elif command == "poll":
            assert consumer is not None
            with contextlib.suppress(Retriable):  # the log may have no owner at the moment
                consumer.poll(0.05)
            say(" ".join(str(tp.partition) for tp in consumer.assignment()) or "-")
        elif command == "commit-offsets":
            assert consumer is not None
            say(outcome_of(consumer.commit))
        elif command == "exit":
            break
    broker.close()
    say("closed")


def outcome_of(call: Callable[[], object]) -> str:
    """Return the name of the error that a call raises, or "done"."""
    try:
        call()
    except StrandlineError as error:
        return type(error).__name__
    return "done"


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
