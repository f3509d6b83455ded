"""The field on a Kafka cluster of three brokers, with three replicas and two in sync for acks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from benchmarks.kafka_broker import BrokerProcess, servers
from strandline import changelog
from tests.chaos.blows import FREEZE, PAUSES, Blows, pause
from tests.chaos.field import Field, wait_for
from tests.chaos.report import Report


class Replicas:
    """Replicas of all partitions of a cluster."""

    def __init__(self, brokers: Sequence[BrokerProcess]) -> None:
        self._admin = AdminClient({"bootstrap.servers": servers(brokers), "log_level": 0})

    def are_in_sync(self) -> bool:
        """Return True if all replicas of each partition are in sync."""
        try:
            topics = self._admin.list_topics(timeout=10).topics.values()
        except KafkaException:
            return False
        return all(
            sorted(partition.isrs) == sorted(partition.replicas)
            for topic in topics
            for partition in topic.partitions.values()
        )


class KafkaField(Field):
    """The field on a cluster of these brokers; stores are in `folder`."""

    def __init__(
        self, brokers: Sequence[BrokerProcess], folder: Path, said: Path, **options: Any
    ) -> None:
        self.brokers = brokers
        self._folder = folder
        self._replicas = Replicas(brokers)
        url = f"kafka://{servers(brokers)}"
        super().__init__(changelog.open(url), url, said, typed=False, **options)

    def machine(self, slot: int) -> Path:
        """Return a folder: odd slots have a disk of their own, even ones share one."""
        return self._folder / (f"machine-{slot}" if slot % 2 else "machine")

    def machines(self) -> list[Path]:
        return sorted(self._folder.glob("machine*"))

    def repair(self) -> None:
        for broker in self.brokers:
            if broker.process.poll() is None:
                broker.thaw()
            else:
                broker.start()
        self.wait_for_replicas(60)

    def check(self) -> list[str]:
        """Check that all replicas are in sync. Kafka itself would have to find anything else."""
        return (
            [] if self._replicas.are_in_sync() else ["there are replicas that have fallen behind"]
        )

    def wait_for_outputs(self, timeout: float) -> None:
        """Wait until both stages have committed new outputs."""
        before = [stage.count for stage in self.scribe.stages.values()]

        def is_more() -> bool:
            stages = self.scribe.stages.values()
            return all(s.count > was for s, was in zip(stages, before, strict=True))

        wait_for(is_more, timeout, "outputs")

    def wait_for_replicas(self, timeout: float) -> None:
        """Wait until another broker may be struck."""
        wait_for(self._replicas.are_in_sync, timeout, "replicas that have caught up")


class KafkaBlows(Blows):
    """Blows for a cluster of three brokers, one of which may be away at a time."""

    def __init__(self, on: KafkaField, report: Report, seed: int, only: str) -> None:
        self.cluster = on
        super().__init__(on, report, seed, only)

    def kinds(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            *super().kinds(),
            (3, self.kill_broker),
            (1, self.restart_broker),
            (1, self.freeze_broker),
        ]

    def kill_broker(self) -> None:
        """Kill a broker. The partitions that it led have no leader for a moment."""
        broker = self.chance.choice(self.cluster.brokers)
        broker.kill()
        gone = time.monotonic()
        self.cluster.wait_for_outputs(60)
        self.report.takeovers.append(time.monotonic() - gone)
        broker.start()
        self.cluster.wait_for_replicas(60)

    def restart_broker(self) -> None:
        """Stop a broker in order and start it again."""
        broker = self.chance.choice(self.cluster.brokers)
        broker.stop()
        pause(self.chance.choice(PAUSES))
        broker.start()
        self.cluster.wait_for_replicas(60)

    def freeze_broker(self) -> None:
        """Freeze a broker for longer or shorter than the others take it for dead."""
        broker = self.chance.choice(self.cluster.brokers)
        broker.freeze()
        pause(2 * self.chance.choice(FREEZE))
        broker.thaw()
        self.cluster.wait_for_replicas(60)
