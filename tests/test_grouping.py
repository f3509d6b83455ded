"""The assignment of tests to processes: tests that share a server run in one."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from xdist.remote import WorkerInteractor

from tests.conftest import KAFKA


def test_pytest_xdist_keeps_a_group_in_one_process(request: pytest.FixtureRequest) -> None:
    """With pytest 9.2 it ignored groups, and each process started a broker and a Spark session."""
    item = copy.copy(request.node)
    item.own_markers = [pytest.mark.xdist_group(KAFKA).mark]
    distributed: Any = SimpleNamespace(getvalue=lambda _: True)
    WorkerInteractor.pytest_collection_modifyitems(distributed, distributed, [item])
    assert item.nodeid == f"{request.node.nodeid}@{KAFKA}"
