"""The device fails under a running app: it stops with the place, and the next run loses nothing."""

from __future__ import annotations

import logging

import pytest

from strandline.changelog.errors import StorageFailed
from strandline.framework.testing import TestDriver
from tests.exactly_once.apps import expected, running_totals, totals_sent
from tests.log.power import Operation, PowerStorage

GIVEN = [(key, 1) for key in "abacabad"]


class Failing:
    """Hook that fails every write from the operation after `count` others on."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.failed = False

    def __call__(self, operation: Operation) -> None:
        if operation.kind == "read":
            return
        self.count -= 1
        if self.count < 0:
            self.failed = True
            raise StorageFailed(f"cannot {operation.kind} {operation.path}: Input/output error")


@pytest.mark.parametrize("end", ["crash", "power_cut"])
def test_an_app_whose_disk_fails_at_any_step_stops_and_the_next_run_continues(
    end: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("strandline.framework.testing.MemoryStorage", PowerStorage)
    caplog.set_level(logging.CRITICAL, "strandline")
    for count in range(200):
        app, out, seen = running_totals()
        with TestDriver(app) as driver:
            storage = driver._storage
            assert isinstance(storage, PowerStorage)
            driver.run(GIVEN)
            driver._take(GIVEN)
            failing = storage.hook = Failing(count)
            if not came_through(driver):
                getattr(storage, end)()
                driver.crash()
            storage.hook = None
            driver.run(GIVEN)
            assert (driver.store(seen), totals_sent(driver, out)) == expected(GIVEN * 3)
            if not failing.failed:
                assert count > 10
                return
    raise AssertionError("the app never came through")


def came_through(driver: TestDriver) -> bool:
    try:
        driver.settle()
    except StorageFailed as error:
        return "Input/output error" not in str(error)
    return True
