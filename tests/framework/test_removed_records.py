"""A running app whose next records are deleted ends, and continues at the first one that is left."""

from __future__ import annotations

from pathlib import Path

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.errors import OffsetOutOfRange
from strandline.changelog.records import TopicPartition


def test_a_running_app_says_which_records_are_gone_and_continues_after_them(
    tmp_path: Path,
) -> None:
    with changelog.open(tmp_path / "log") as log:
        app = sl.App("app", log=log, state_dir=tmp_path / "state")
        numbers = app.topic("numbers", key=str, value=int)
        handled: list[int] = []

        @app.task(numbers)
        def handle(record: sl.Record[str, int]) -> None:
            if record.offset == 0 and not handled:  # appended and deleted before the next fetch
                log.append("numbers", [{"key": b"a", "value": b"never read"}] * 2)
                log.broker.delete_records(TopicPartition("numbers", 0), 3)
            handled.append(record.value)

        with app:
            numbers.append([("a", 1)])
            gone = r"numbers-0: records from offset 1 on .* left has offset 3\. Start the app again"
            with pytest.raises(OffsetOutOfRange, match=gone):
                app.run(until="idle", progress=False)
            numbers.append([("a", 4)])
            app.run(until="idle", progress=False)
        assert (handled[0], handled[-1]) == (1, 4)
