"""A process that owns a log and writes transactions to it until it is killed."""

from __future__ import annotations

import sys

from strandline import changelog
from strandline.changelog.records import CommittedOffset, TopicPartition


def main() -> None:
    log = changelog.open(sys.argv[1], role="own")
    producer = log.producer(transactional_id="load")
    done = int(sys.argv[2])
    while True:
        value = (b"%d" % done).ljust(200, b" ")
        producer.begin_transaction()
        for topic in ("left", "right"):
            for partition in range(3):
                producer.send(topic, value, partition=partition)
        offsets = {TopicPartition("left", 0): CommittedOffset(done)}
        producer.send_offsets_to_transaction(offsets, "readers")
        producer.commit_transaction()
        done += 1
        print(done, flush=True)


if __name__ == "__main__":
    main()
