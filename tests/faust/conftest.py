"""Tests of Faust apps. `make faust` runs them, in an environment that has Faust.

They are not collected elsewhere, because Faust needs an older click than the other tools do.
"""

from importlib.util import find_spec

import pytest

from tests.faust.faust_workers import FaustLog
from tests.systems import System

NEED_FAUST = [
    "apps",
    "backups",
    "calls",
    "changed_windows",
    "chaos",
    "credentials",
    "declarations",
    "exactly_once",
    "failures",
    "fetching",
    "group_worker",
    "guide",
    "leader",
    "livecheck",
    "outages",
    "rebalances",
    "recreated",
    "refusals",
    "requests",
    "restarts",
    "stock",
    "stores",
    "streams",
    "tables",
    "topics",
    "windows",
]

collect_ignore = [] if find_spec("faust") else [f"test_{name}.py" for name in NEED_FAUST]


@pytest.fixture
def log(system: System) -> FaustLog:
    """The log, opened by the test, so that it owns a folder and workers attach to it."""
    return FaustLog(system.open(), system.prefix)
