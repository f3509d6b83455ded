"""Streams of Faust whose `group_by` and `through` apply the policy to a record that they cannot pass on.

Faust takes a record whose key function raises, or is stopped, for handled. An error of the send goes
to the next stream of the chain, whose agent takes it for one of its own record.
"""

from __future__ import annotations

from typing import Any

from faust.exceptions import Skip
from faust.streams import Stream
from faust.types.models import FieldDescriptorT
from mode.utils.futures import maybe_async


class RecordStream(Stream):
    """Stream of records."""

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
                await self.app.consumer.on_task_error(error)
                raise Skip from error

        self._processors[:] = [settling]
        return following
