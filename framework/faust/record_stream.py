"""Streams of Faust whose chains survive the failed records of their agents.

`group_by` and `through` apply the policy to a record that they cannot pass on. Faust takes a record
whose key function raises, or is stopped, for handled. An error of the send goes to the next stream
of the chain, whose agent takes it for one of its own record.

When an agent fails, Faust stops all streams of its chain, at whatever record they are. Here only the
last one stops, until the agent goes on with it.
"""

from __future__ import annotations

import itertools
from typing import Any

from faust.exceptions import Skip
from faust.streams import Stream
from faust.types.models import FieldDescriptorT
from mode import Service
from mode.utils.futures import maybe_async


class RecordStream(Stream):
    """Stream of records."""

    agent_failed = False
    """True from the failure of the agent at a record of this stream to the end of that iteration."""

    async def stop(self) -> None:
        """Stop the streams of the chain; only this one if its agent has failed and goes on."""
        if self.agent_failed and not self.app.should_stop:
            self.agent_failed = False
            await Service.stop(self)
        else:
            await super().stop()

    async def resume(self, unwrap: Any) -> None:
        """Prepare the last stream of a chain for another run of its agent.

        Args:
            unwrap: Processor that Faust adds before the first run. The agent adds its own ones again.
        """
        self._processors[:] = [one for one in self._processors if one == unwrap]
        chain = list(self.get_root_stream()._iter_ll_forwards())
        for relay, following in itertools.pairwise(chain):
            if following._prev is relay and relay.should_stop:  # something has cancelled the agent
                following.channel.queue._errors.clear()
                relay.service_reset()
                relay._enable_passive(following.channel, declare=True)
                await relay.start()  # at once: an iteration that had to start it would also stop it

    def group_by(self, *arguments: Any, **options: Any) -> Any:
        """Return a stream of the records with new keys."""
        return self._settling(super().group_by(*arguments, **options))

    def through(self, *arguments: Any, **options: Any) -> Any:
        """Return a stream of the records by way of another topic."""
        return self._settling(super().through(*arguments, **options))

    async def _format_key(self, key: Any, value: Any) -> Any:
        if isinstance(key, FieldDescriptorT):
            return key.getattr(value)
        return await maybe_async(key(value))

    def _settling(self, following: Any) -> Any:
        """Let the policy decide about a record that cannot be passed on to the following stream."""
        if following is self:
            return following  # an agent that was restarted has passed here before
        [pass_on] = self._processors

        async def settling(value: Any) -> Any:
            try:
                return await pass_on(value)
            except Skip:
                raise
            except Exception as error:
                self.log.exception("A record cannot be passed on to %s", following.channel)
                await self.app.consumer.settle(error)
                raise Skip from error

        self._processors[:] = [settling]
        return following
