"""State == fold(committed input), and every running total once, after any crashes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from strandline.framework.testing import CRASH, TestDriver
from tests.exactly_once.apps import expected, running_totals, totals_sent
from tests.forms import by_form


def scenario(seed: int, records: int = 40) -> list:
    """Return records of few keys with crashes among them."""
    chance = random.Random(seed)
    given: list = []
    for number in range(records):
        given.append((chance.choice("abcdef"), number))
        if chance.random() < 0.2:
            given.append(CRASH)
    return given


@pytest.mark.parametrize("seed", range(by_form(8, 25)))
def test_totals_are_right_after_crashes_at_random_moments(seed: int) -> None:
    given = scenario(seed)
    app, out, seen = running_totals(commit_records=random.Random(seed).randint(1, 9))
    driver = TestDriver(app).run(given)
    counts, totals = expected(given)
    assert driver.store(seen) == counts
    assert totals_sent(driver, out) == totals


@pytest.mark.parametrize("seed", range(by_form(1, 3)))
def test_totals_are_right_after_crashes_on_a_folder_on_disk(seed: int, tmp_path: Path) -> None:
    given = scenario(seed, 20)
    app, out, seen = running_totals(commit_records=3)
    driver = TestDriver(app, folder=tmp_path).run(given)
    counts, totals = expected(given)
    assert driver.store(seen) == counts
    assert totals_sent(driver, out) == totals
