"""Supervisor of Faust's agents. With `skip` and `dead_letter` many records in a row may fail."""

from __future__ import annotations

import math
import warnings
from typing import Any

from mode.supervisors import OneForOneSupervisor


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
            services = [one for one in self._services if not self.service_operational(one)]
            if not services:
                return
            await super().restart_services(services)


def restart_promptly(conf: Any) -> None:
    """Let agents have the supervisor above, unless the app has chosen another one."""
    if conf.agent_supervisor is OneForOneSupervisor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it was read already: no agent has started
            conf.agent_supervisor = PromptSupervisor
