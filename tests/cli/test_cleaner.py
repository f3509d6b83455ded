"""`strandline cleaner` shows clean and dirty parts of topics."""

from __future__ import annotations

from strandline.changelog.log import Log
from tests.cli.conftest import Command


def test_a_topic_that_is_not_compacted_is_not_shown_as_clean(log: Log, strandline: Command) -> None:
    log.create_topic("sales")
    log.append("sales", [{"key": b"a", "value": b"1"}])
    for command in ("cleaner", "clean"):
        outcome = strandline(command, "sales")
        assert outcome.code == 1
        assert "'sales' is not compacted (cleanup.policy=delete)" in outcome.err
        assert "`strandline topics alter sales --config cleanup.policy=compact`" in outcome.err
    assert strandline("topics", "alter", "sales", "--config", "cleanup.policy=compact").code == 0
    assert "sales-0" in strandline("cleaner", "sales").out


def test_records_in_the_active_segment_are_neither_clean_nor_dirty(
    log: Log, strandline: Command
) -> None:
    def told() -> tuple[int, int, int]:
        [status] = strandline("cleaner", "prices", "--json").json
        return status["clean_bytes"], status["dirty_bytes"], status["active_bytes"]

    log.create_topic("prices", config={"cleanup.policy": "compact"})
    log.append("prices", [{"key": b"a", "value": b"1" * 5_000} for _ in range(2)])
    [segment] = strandline("segments", "prices", "--json").lines
    assert told() == (0, 0, segment["size"])
    header, row = strandline("cleaner", "prices").out.splitlines()[1:4:2]
    assert header.split()[1:4] == ["clean", "dirty", "active"]
    assert "0 B" in row
    assert "KiB" in row
    assert strandline("clean", "prices").code == 0
    clean, dirty, active = told()
    assert 5_000 < clean < segment["size"]
    assert (dirty, active) == (0, 0)


def test_spilled_keys_are_shown_next_to_those_in_memory(log: Log, strandline: Command) -> None:
    log.create_topic("prices", config={"cleanup.policy": "compact"})
    assert strandline("config", "set", "log.cleaner.dedupe.buffer.size=4096").code == 0
    log.append("prices", [{"key": b"%d" % n, "value": b"1"} for n in range(100)])
    header, row = strandline("clean", "prices").out.splitlines()[1:4:2]
    assert header.split()[-1] == "map"
    assert row.rstrip(" │").endswith("100%, 2.0 KiB spilled")
    log.append("prices", [{"key": b"1", "value": b"1"}])
    assert strandline("clean", "prices").out.splitlines()[3].rstrip(" │").endswith(" 1%")
