from __future__ import annotations

import pytest

from tests.log.kit import World


@pytest.fixture
def world() -> World:
    """A log in memory with the topic `t` of two partitions."""
    world = World()
    world.owner.create_topic("t", 2)
    return world


@pytest.fixture
def offsets_may_exceed_the_end() -> bool:
    return True
