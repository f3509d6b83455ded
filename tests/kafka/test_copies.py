"""Standby copies while the group is rebalanced."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from strandline import changelog
from strandline.changelog.client.membership import Membership
from strandline.changelog.clock import SystemClock
from strandline.changelog.groups import Subscription
from strandline.changelog.kafka.coordinators import CoordinatorGroup, Coordinators

Eventually = Callable[..., None]
LOOKS = 6
"""Looks of two members at their group. By then, each has acted on an earlier one."""


@pytest.mark.long
def test_copies_are_kept_until_the_group_has_new_owners(
    kafka: str, name: str, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """During a rebalance Kafka shows no assignment, and so no owner to copy from."""
    how = Subscription((name,), together=[[name]], standby_replicas=1)
    real = Coordinators.group
    looks = []

    def rebalancing(self: Coordinators, group: str) -> CoordinatorGroup | None:
        looks.append(group)
        found = real(self, group)
        return found and found._replace(state="PreparingRebalance")

    with ExitStack() as closing:
        logs = [closing.enter_context(changelog.open(kafka)) for _ in range(2)]
        logs[0].create_topic(name, 2)

        def join(number: int) -> Membership:
            member = Membership(
                logs[number].broker, name, how, SystemClock(), max_poll_interval_ms=60_000
            )
            closing.callback(member.leave)
            return member

        one = join(0)
        joining = ThreadPoolExecutor(1).submit(join, 1)

        def joined() -> bool:
            one.holds(one.allowed())  # the other one waits until it has released a partition
            return joining.done()

        eventually(joined)
        members = [one, joining.result()]

        def share() -> bool:
            for member in members:
                member.holds(member.allowed())
            return all(len(member.standbys()) == 1 for member in members)

        eventually(share)
        before = [member.standbys() for member in members]
        monkeypatch.setattr(Coordinators, "group", rebalancing)
        eventually(lambda: len(looks) >= LOOKS)
        assert [member.standbys() for member in members] == before
