"""Input of the test driver that is refused."""

from __future__ import annotations

from typing import Any

import pytest

import strandline as sl
from strandline.framework.testing import CRASH, TestDriver


def test_an_invalid_record_leaves_none_of_its_run_in_the_log() -> None:
    app = sl.App("app")
    given = app.topic("in", key=str, value=int)
    seen = list[int]()

    @app.task(given)
    def see(record: sl.Record[str, int]) -> None:
        seen.append(record.value)

    invalid: Any = ("c", "three")
    with TestDriver(app) as driver:
        with pytest.raises(sl.InvalidRecord):
            driver.run([("a", 1), ("b", 2), invalid])
        driver.settle()
        assert seen == []
        with pytest.raises(sl.InvalidRecord):
            driver.run([("a", 1), CRASH, ("b", 2), invalid])
        driver.settle()
        assert 2 not in seen
        assert seen[-1] == 1
