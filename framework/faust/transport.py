"""The classes that Faust creates for `broker="strandline:///path"` (entry point `faust.transports`)."""

from __future__ import annotations

from typing import Any, ClassVar

import faust.transport.base
from faust.transport.conductor import Conductor
from yarl import URL

from strandline.framework.faust.address import parse
from strandline.framework.faust.consumer import FaustConsumer
from strandline.framework.faust.log_link import FaustLink, link_of
from strandline.framework.faust.producer import FaustProducer, OneTransaction

RESUBSCRIBE_S = 0.5
"""Seconds for which new topics are gathered before the subscription changes; Faust waits 45."""


class PromptConductor(Conductor):
    """Faust's conductor, which reads topics soon after they were added."""

    _resubscribe_sleep_lock_seconds: float = RESUBSCRIBE_S

    def add(self, topic: Any) -> None:
        """Register a channel; it gets records at once if its topic is read already.

        Faust waits for the next rebalance, which for replies to `ask` may be long over.
        """
        super().add(topic)
        if topic.active_partitions is None:
            for tp, channels in self._tp_index.items():
                if tp.topic in topic.topics:
                    channels.add(topic)


class FaustTransport(faust.transport.base.Transport):
    """Transport of a Faust app on a Strandline log."""

    Consumer: ClassVar[Any] = FaustConsumer
    Producer: ClassVar[Any] = FaustProducer
    TransactionManager: ClassVar[Any] = OneTransaction
    Conductor: ClassVar[Any] = PromptConductor
    driver_version = "strandline"

    def __init__(self, url: list[URL], app: Any, loop: Any = None) -> None:
        super().__init__(url, app, loop)
        self.link: FaustLink = link_of(app, parse(url))
