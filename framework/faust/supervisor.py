"""Supervisor of Faust's agents. With `skip` and `dead_letter` many records in a row may fail."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

from mode.supervisors import OneForOneSupervisor

from strandline.framework.faust.settings import change_setting

LOOK_S = 0.001
"""Seconds between two looks whether the iteration of a failed agent has ended."""


class PromptSupervisor(OneForOneSupervisor):
    """Supervisor that restarts an agent at once, as often as its records fail.

    Faust's default waits 5 s if an agent fails again while it is restarted, and ends the worker
    if two agents fail within 10 ms. A worker that must stop at a failed record does not need
    that: it stops at the first one.
    """

    def __init__(self, *services: Any, **options: Any) -> None:
        changed = {"max_restarts": math.inf, "over": math.inf, "replacement": self._resume}
        super().__init__(*services, **{**options, **changed})

    async def restart_services(self, services: list[Any]) -> None:
        """Restart agents that failed, also before they counted as started, and meanwhile."""
        while True:
            services = [one for one in self._services if not self.service_operational(one)]
            if not services or self._is_ending(services[0]):
                return
            await super().restart_services(services)

    def _is_ending(self, actor: Any) -> bool:
        """Return True if the agent or its worker stops: nothing would stop one that starts now."""
        app = actor.agent.app
        return bool(self.should_stop or app.should_stop or app.crashed)

    async def _resume(self, failed: Any, index: int) -> Any:
        """Start the agent's function on the last stream of its chain (`group_by`, `through`).

        Faust starts it on the first stream, where `group_by` and `through` then do nothing. The
        records that the failed run has passed on are in the channels of the chain, so these are kept.
        """
        chain = list(failed.stream.get_root_stream()._iter_ll_forwards())
        last = chain[-1]
        relays = [one for one in chain[:-1] if one._next._prev is one]
        await self._end(failed, last, relays)
        if self._is_ending(failed):
            return failed
        for relay in relays:
            await _start_again(relay)
        agent, partitions = failed.agent, failed.active_partitions
        # The function adds its own processors once more.
        unwrap = agent._maybe_unwrap_reply_request
        last._processors[:] = [one for one in last._processors if one == unwrap]
        if partitions is not None:
            last.app.topics.add(last.channel)  # whose end has removed it
        return await agent._start_one(
            index=index, active_partitions=partitions, stream=last, channel=last.channel
        )

    async def _end(self, failed: Any, last: Any, relays: list[Any]) -> None:
        """Wait until the failed run has ended: Faust closes its iteration in a task of its own."""
        for relay in relays:
            relay.channel._throw(StopAsyncIteration())  # ends it after the record it is at
        for iteration in list(getattr(last, "_active_agens", ())):
            with contextlib.suppress(RuntimeError):  # it is being closed
                await iteration.aclose()
        while last.started and not self._is_ending(failed):  # noqa: ASYNC110 - Faust sets no event
            await asyncio.sleep(LOOK_S)


async def _start_again(relay: Any) -> None:
    """Let a stream that was stopped pass on its records to the next one again."""
    relay.channel.queue._errors.clear()
    relay.service_reset()
    relay._enable_passive(relay._next.channel, declare=True)
    await relay.start()  # at once: an iteration that had to start it would also stop it


def restart_promptly(conf: Any) -> None:
    """Let agents have the supervisor above, unless the app has chosen another one."""
    if conf.agent_supervisor is OneForOneSupervisor:
        change_setting(conf, "agent_supervisor", PromptSupervisor)
