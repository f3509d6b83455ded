"""Topics that are added while an app runs."""

from __future__ import annotations

import asyncio

from faust.app import App

from strandline.framework.faust.transport import PromptConductor


async def test_a_topic_that_is_added_during_a_rebalance_is_subscribed_to_afterwards() -> None:
    """Faust forgets it: `ask()` would wait for its reply for ever."""
    app = App("topics", broker="strandline:///nowhere/log")
    conductor = PromptConductor(app)
    changed = conductor._subscription_changed = asyncio.Event()
    app.rebalancing = True
    conductor.add(app.topic("replies"))
    changed.clear()  # as Faust does during a rebalance
    conductor.catch_up()
    assert not changed.is_set(), "the rebalance is not over"
    app.rebalancing = False
    conductor.catch_up()
    assert changed.is_set()
    changed.clear()
    await conductor._update_indices()
    conductor.catch_up()
    assert not changed.is_set(), "it is known by now"
