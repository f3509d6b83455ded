"""Each guarantee shows what it allows, on Kafka as in a folder: the worker dies between the two halves of a commit.

What processes do that are killed anywhere, tests/chaos shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framework.options import Guarantee
from tests.kafka.apps import totals


class Died(BaseException):
    """The worker is gone."""


@pytest.mark.parametrize(
    ("guarantee", "call", "sums"),
    [
        ("exactly_once", "end_transaction", [1, 2]),
        ("at_least_once", "commit_offsets", [1, 2, 3]),
        ("at_most_once", "append", [1]),
    ],
)
def test_a_worker_dies_in_its_commit_and_the_next_goes_on(
    kafka: str, name: str, tmp_path: Path, guarantee: Guarantee, call: str, sums: list[int]
) -> None:
    made = totals(name, kafka, tmp_path, processing_guarantee=guarantee)
    with made.app:
        made.words.append([("a", 1)])
        made.app.run(until="idle")
        made.words.append([("a", 2)])
        setattr(made.app.broker, call, _dies)
        with pytest.raises(Died):
            made.app.run(until="idle")
    made = totals(name, kafka, tmp_path, processing_guarantee=guarantee)
    with made.app:
        made.app.run(until="idle")
        assert made.sent() == {"a": sums}
        assert made.app.query(made.seen).to_dict() == {"a": sums[-1]}


def _dies(*_: Any, **__: Any) -> None:
    raise Died
