"""Committed values of a Faust table's partition."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from strandline.changelog.client.producer import Producer
from strandline.changelog.clock import SystemClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import TopicPartition
from strandline.framework.faust.table_partition import TablePartition

CHANGES = TopicPartition("changes", 0)


def test_a_value_that_was_read_is_read_again_after_a_commit(tmp_path: Path) -> None:
    with closing(Owner(MemoryStorage(), background=False)) as owner:
        owner.create_topic("changes", 1)
        part = TablePartition(CHANGES, tmp_path / "0", SystemClock(), standby=False)
        part.restore(owner)
        read = []
        with closing(part), Producer(owner) as producer:
            for value in (b"1", b"2", None, b"3"):
                read.append([part.committed(b"k"), part.committed(b"other"), part.committed(b"k")])
                batch = part.committing({b"k": value})
                [appended] = producer.append_batches([(CHANGES, batch.columns(0), 0)])
                part.apply(batch, appended)
            read.append([part.committed(b"k")])
        assert read == [
            [None, None, None],
            [b"1", None, b"1"],
            [b"2", None, b"2"],
            [None, None, None],
            [b"3"],
        ]
