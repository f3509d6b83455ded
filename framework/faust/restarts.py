"""Restarts of Faust's agents after failed records. With `skip` and `dead_letter` many may fail.

A failed agent goes on with the last stream of its chain (`group_by`, `through`, `noack`). Faust
starts it on the first one, where `group_by` and `through` then do nothing. The streams before the
last one pass their records on meanwhile, because those are in the channels of the chain.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from functools import partial
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
        unlimited = {"max_restarts": math.inf, "over": math.inf}
        super().__init__(*services, **{**options, **unlimited})

    async def restart_services(self, services: list[Any]) -> None:
        """Restart agents that failed, also before they counted as started, and meanwhile."""
        while not self.should_stop:
            services = [one for one in self._services if one.crashed and not _is_ending(one)]
            if not services:
                return
            await super().restart_services(services)


def restart_promptly(conf: Any) -> None:
    """Let agents have the supervisor above, unless the app has chosen another one."""
    if conf.agent_supervisor is OneForOneSupervisor:
        change_setting(conf, "agent_supervisor", PromptSupervisor)


def resume_on_last_streams(app: Any) -> None:
    """Let all agents of an app go on with the last streams of their chains."""
    for agent in app.agents.values():
        agent._replace_actor = partial(_resumed, app, agent)


async def _resumed(app: Any, agent: Any, failed: Any, index: int) -> Any:
    """Return an actor that goes on where another one has failed; that one if it must not go on."""
    last = failed.stream.get_active_stream()
    await _wait_for_end(last, failed)
    if _is_ending(failed):
        return failed  # nothing would stop an actor that starts now
    if isinstance(failed.crash_reason, asyncio.CancelledError):
        app.transport.link.ledger.must_rewind = True  # to the record at which it was cut off
    await last.resume(agent._maybe_unwrap_reply_request)
    partitions = failed.active_partitions
    if partitions is not None:
        app.topics.add(last.channel)  # the end of the failed run has removed it
    actor = await agent._start_one(
        index=index, active_partitions=partitions, stream=last, channel=last.channel
    )
    for tp, owner in list(agent._actor_by_partition.items()):
        if owner is failed:
            # Faust stops the new actor when the partition is revoked, because it is listed here.
            agent._actor_by_partition[tp] = actor
    actor.supervisor = agent.supervisor
    # Faust does so within 5 s; the end of the actor is not waited for before.
    await actor.maybe_start()
    return actor


async def _wait_for_end(last: Any, failed: Any) -> None:
    """Wait until the failed run has ended: Faust closes its iteration in a task of its own."""
    for iteration in list(getattr(last, "_active_agens", ())):
        with contextlib.suppress(RuntimeError):  # it is being closed
            await iteration.aclose()
    while last.started and not _is_ending(failed):  # noqa: ASYNC110 - Faust sets no event
        await asyncio.sleep(LOOK_S)


def _is_ending(actor: Any) -> bool:
    """Return True if an actor, its agent or its worker stops."""
    agent = actor.agent
    is_stopped = actor._stopped.is_set() or agent.should_stop
    # A crash sets `should_stop` of the app too.
    return bool(is_stopped or agent.app.should_stop)
