"""The classes that Faust creates for a broker of ours (entry point `faust.transports`).

Both schemes, `strandline://` and `strandline+kafka://`, lead to them: only the log is another one.
"""

from __future__ import annotations

from typing import Any, ClassVar

import faust.transport.base
from faust.transport.conductor import Conductor
from yarl import URL

from strandline.changelog.errors import InvalidConfig
from strandline.framework.faust.address import parse
from strandline.framework.faust.consumer import FaustConsumer
from strandline.framework.faust.failures import take_decode_errors
from strandline.framework.faust.log_link import FaustLink, link_of
from strandline.framework.faust.producer import FaustProducer, OneTransaction, find_promptly
from strandline.framework.faust.record_event import RecordEvent
from strandline.framework.faust.record_stream import RecordStream
from strandline.framework.faust.restarts import restart_promptly
from strandline.framework.faust.settings import extend_class

RESUBSCRIBE_S = 0.5
"""Seconds for which new topics are gathered before the subscription changes; Faust waits 45."""


class PromptConductor(Conductor):
    """Faust's conductor, which reads topics soon after they were added."""

    _resubscribe_sleep_lock_seconds: float = RESUBSCRIBE_S

    def _compile_message_handler(self) -> Any:
        """Return the function that hands a record to its channels; it seldom takes Faust's lock."""
        locked = super()._compile_message_handler()
        if self.app.client_only:
            return locked
        changing, handlers = self._tp_to_callback_lock, self._tp_to_callback

        def on_message(message: Any) -> Any:
            return locked(message) if changing.locked() else handlers[message.tp](message)

        return on_message

    def add(self, topic: Any) -> None:
        """Register a channel; it gets records at once if its topic is read already.

        Faust waits for the next rebalance, which for replies to `ask` may be long over.
        """
        super().add(topic)
        if not self.app.client_only:
            take_decode_errors(topic, self.app.transport.link)
        if topic.active_partitions is None:
            for tp, channels in self._tp_index.items():
                if tp.topic in topic.topics:
                    channels.add(topic)

    def catch_up(self) -> None:
        """Subscribe to topics that were added during a rebalance, when Faust forgets them."""
        changed = self._subscription_changed
        if changed is None or self.app.rebalancing:
            return
        known = self._topic_name_index
        if any(topic not in known for channel in self._topics for topic in channel.topics):
            changed.set()


class FaustTransport(faust.transport.base.Transport):
    """Transport of a Faust app on a Strandline log."""

    Consumer: ClassVar[Any] = FaustConsumer
    Producer: ClassVar[Any] = FaustProducer
    TransactionManager: ClassVar[Any] = OneTransaction
    Conductor: ClassVar[Any] = PromptConductor
    driver_version = "strandline"

    def __init__(self, url: list[URL], app: Any, loop: Any = None) -> None:
        super().__init__(url, app, loop)
        address = parse(url)
        if address.is_kafka and app.conf.broker_credentials is not None:
            raise InvalidConfig(
                "broker_credentials= is for Faust's own kafka://; with strandline+kafka:// write "
                "security.protocol=…, sasl.… and ssl.… into the URL or into the environment "
                "variable STRANDLINE_KAFKA"
            )
        self.link: FaustLink = link_of(app, address)
        restart_promptly(app.conf)
        extend_class(app.conf, "Event", RecordEvent)
        extend_class(app.conf, "Stream", RecordStream)
        find_promptly(app)
