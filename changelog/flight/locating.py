"""Brokers that say where the records of a fetch are, without reading them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from strandline.changelog.broker import Broker
from strandline.changelog.flight.messages import Located
from strandline.changelog.records import Isolation, TopicPartition


class Locate(Protocol):
    """Signature of `Owner.locate`, which returns where records are instead of the records."""

    def __call__(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_bytes: int,
        isolation: Isolation,
        timeout: float,
    ) -> Located: ...


class LocatingBroker(Broker, Protocol):
    """The log of an owner: in this process, or over its socket."""

    @property
    def locate(self) -> Locate:
        """The call that waits for records like `fetch`, and reads none."""
        ...
