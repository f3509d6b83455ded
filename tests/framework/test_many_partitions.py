"""An app with many partitions pays for those that it touches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.client.partitioner import partition_for
from strandline.changelog.embedded import reading
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import OwnerUnavailable, UnknownTopic
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import TopicPartition
from strandline.framework.container.feeder import Feeder
from strandline.framework.testing import TestDriver
from tests.log.kit import Client, World

PARTITIONS = 64
Eventually = Callable[..., None]


class Counting:
    """An app that counts keys, and the log's calls that commit offsets."""

    def __init__(self, log: Any, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.app = sl.App("many", log=log, state_dir=folder)
        self.views = self.app.topic("views", key=str, value=int, partitions=PARTITIONS)
        seen = self.seen = self.app.store("seen", key=str, value=int, default=0)
        self.committed: list[set[int]] = []

        @self.app.task(self.views, stores=[seen])
        def count(record: sl.Record[str, int]) -> None:
            seen[record.key] += record.value

        broker = self.app.broker()
        add_offsets = broker.add_offsets

        def noted(producer: Any, group: str, offsets: Any, **rest: Any) -> None:
            self.committed.append({tp.partition for tp in offsets})
            add_offsets(producer, group, offsets, **rest)

        monkeypatch.setattr(broker, "add_offsets", noted)


def test_a_commit_has_the_offsets_of_the_partitions_with_work_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with changelog.open(tmp_path / "log") as log:
        made = Counting(log, monkeypatch, tmp_path / "state")
        with made.app:
            made.views.append([("a", 1)])
            made.app.run(until="idle", progress=False)
            made.views.append([("a", 1), ("b", 1)])
            made.app.run(until="idle", progress=False)
            partitions = set(made.views.to_polars()["partition"].to_list())
            assert made.app.query(made.seen).to_dict() == {"a": 2, "b": 1}
    assert set().union(*made.committed) == partitions
    assert len(made.committed[0]) == 1
    # A store without state has no database.
    assert len(list((tmp_path / "state/many/seen").glob("*/db"))) == len(partitions) == 2


def test_an_idle_worker_does_not_look_at_every_partition_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    looks: list[TopicPartition] = []
    view, rests = reading.view, []

    def counted(partition: Any, *arguments: Any, **rest: Any) -> Any:
        looks.append(partition.topic_partition)
        return view(partition, *arguments, **rest)

    def rest(feeder: Feeder, seconds: float, is_needed: Callable[[], bool]) -> None:
        rests.append(seconds)
        waited(feeder, seconds, is_needed)

    waited = Feeder.rest
    monkeypatch.setattr(Feeder, "rest", rest)
    with changelog.open(tmp_path / "log") as log:
        made = Counting(log, monkeypatch, tmp_path / "state")
        with made.app:
            thread = threading.Thread(target=lambda: made.app.run(progress=False))
            thread.start()
            eventually(lambda: len(rests) > 0, what="rest")
            monkeypatch.setattr(reading, "view", counted)
            threading.Event().wait(0.5)  # five polls, each of 64 partitions
            assert len(looks) <= 2 * PARTITIONS
            made.views.append([("a", 1)])
            eventually(lambda: made.committed != [], timeout=2, what="the record")
            made.app.stop()
            thread.join(2)
            assert not thread.is_alive()


def test_a_repeated_fetch_of_nothing_returns_the_same_until_something_changes() -> None:
    world = World()
    world.owner.create_topic("t", 2)
    client = Client(world)
    client.append(b"a")
    at = {TopicPartition("t", 0): 1, TopicPartition("t", 1): 0}
    first = world.owner.fetch(at)
    assert world.owner.fetch(dict(at)) is first
    assert world.owner.fetch(at, isolation="read_uncommitted") is not first
    client.append(b"b")
    second = world.owner.fetch(at)
    assert [one.next_offset for one in second.values()] == [2, 0]
    at = {tp: one.next_offset for tp, one in second.items()}
    assert world.owner.fetch(at) is world.owner.fetch(at)
    world.owner.delete_topic("t")
    with pytest.raises(UnknownTopic):
        world.owner.fetch(at)


def test_a_repeated_fetch_of_a_closed_log_is_refused() -> None:
    owner = Owner(MemoryStorage(), background=False)
    owner.create_topic("t")
    at = {TopicPartition("t", 0): 0}
    assert owner.fetch(at) is owner.fetch(at)
    owner.close()
    with pytest.raises(OwnerUnavailable, match="closed"):
        owner.fetch(at)


def test_a_batch_task_goes_on_while_more_inputs_have_records_than_fit_into_memory() -> None:
    """A fetch that brings too much lowers the number of inputs while records of all are pending."""
    app = sl.App("app")
    topic = app.topic("t", key=str, value=bytes, partitions=4)
    seen: list[int] = []

    @app.task(topic, batch=True)
    def note(batch: sl.Batch) -> None:
        seen.append(len(batch))

    records = [(topic, str(number), bytes(1_000)) for number in range(400)]
    with TestDriver(app) as driver:
        driver.worker._tasks.memory.input_bytes = 2_000
        cycle, driver.worker.cycle = driver.worker.cycle, lambda **_: 0  # type: ignore[method-assign]
        driver._take(records)
        driver.worker.cycle = cycle  # type: ignore[method-assign]
        for instance in driver.worker.instances:
            instance._size.records = 10
        driver.settle()
    assert sum(seen) == len(records)
    assert len(seen) > 4


@pytest.mark.parametrize("inputs", [1, 2])
def test_large_records_of_many_partitions_are_fetched_in_turn(inputs: int) -> None:
    """And small ones of all partitions at the same time."""
    count, size, each = 32, 50_000, 6
    app = sl.App("app")
    topics = [app.topic(f"t{n}", key=str, value=bytes, partitions=count) for n in range(inputs)]
    pending: list[int] = []
    order: list[int] = []

    @app.task(topics)
    def note(record: sl.Record[str, bytes]) -> None:
        sources = [source for instance in driver.worker.instances for source in instance.inputs]
        pending.append(sum(b.columns.nbytes for source in sources for b in source.batches))
        order.append(record.partition)

    keys = [str(n) for n in range(40 * count)]
    found = {partition_for(key.encode(), count): key for key in keys}
    assert len(found) == count
    with TestDriver(app) as driver:
        budget = driver.worker._tasks.memory
        budget.input_bytes = 8 * size
        for topic in topics:
            for _ in range(each):
                driver.run([(topic, found[number], b"") for number in range(count)])
        assert set(order[-count:]) == set(range(count))
        cycle, driver.worker.cycle = driver.worker.cycle, lambda **_: 0  # type: ignore[method-assign]
        for topic in topics:
            for number in range(count):
                driver._take([(topic, found[number], bytes(size)) for _ in range(each)])
        driver.worker.cycle = cycle  # type: ignore[method-assign]
        order.clear()
        pending.clear()
        driver.settle()
    assert sorted(order) == sorted([*range(count)] * each * inputs)
    # The first fetch is of all partitions, because nothing was known about the records.
    assert pending[0] > inputs * (count - 1) * size
    assert max(pending[len(pending) // 2 :]) <= budget.input_bytes
