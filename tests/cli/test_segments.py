"""`strandline segments` shows the content of the files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from strandline.changelog.log import Log
from tests.cli.conftest import Command


def rolled(log: Log) -> None:
    """Roll the partition into several segments: 40 records in one Arrow frame each."""
    log.create_topic("orders", config={"segment.bytes": "8192", "retention.ms": "-1"})
    for n in range(5):
        rows = [
            {"key": str(i), "value": bytes(100), "timestamp": 1_700_000_000_000 + n}
            for i in range(40)
        ]
        log.append("orders", rows)


def test_segments_are_listed(log: Log, strandline: Command) -> None:
    rolled(log)
    rows = strandline("segments", "orders", "--json").lines
    assert [row["active"] for row in rows] == [False] * (len(rows) - 1) + [True]
    assert rows[0]["base_offset"] == 0
    assert [row["end_offset"] for row in rows[:-1]] == [row["base_offset"] for row in rows[1:]]
    assert rows[-1]["end_offset"] == 200
    assert all(row["size"] > 0 for row in rows)
    shown = strandline("segments", "orders").out
    assert ".log" in shown
    assert "KiB" in shown


def test_frames_show_the_fields_of_their_headers(log: Log, strandline: Command) -> None:
    rolled(log)
    frames = strandline("segments", "orders", "--frames", "--json").lines
    assert [(frame["base_offset"], frame["last_offset"]) for frame in frames] == [
        (n, n + 39) for n in range(0, 200, 40)
    ]
    assert {frame["kind"] for frame in frames} == {"ARROW"}
    assert {"producer_id", "producer_epoch", "base_sequence", "payload_crc"} <= set(frames[0])
    assert "ARROW" in strandline("segments", "orders", "--frames").out


def test_frames_are_shown_from_an_offset_up_to_a_number(log: Log, strandline: Command) -> None:
    rolled(log)
    rows = strandline(
        "segments", "orders", "--frames", "--from", "90", "--max", "1", "--json"
    ).lines
    assert [row["base_offset"] for row in rows] == [80]


def test_records_of_each_frame_are_shown_with_markers_and_aborted_ones(
    log: Log, strandline: Command
) -> None:
    log.create_topic("orders")
    with log.producer(transactional_id="t") as producer:
        with producer.transaction():
            producer.send("orders", b"yes", key="a")
        producer.begin_transaction()
        producer.append("orders", [{"value": b"no!"}])
        producer.abort_transaction()
    rows = strandline("segments", "orders", "--records", "--json").lines
    assert [row["kind"] for row in rows] == ["ROWS", "CONTROL", "ROWS", "CONTROL"]
    assert [row["attributes"] for row in rows] == ["TRANSACTIONAL"] * 4
    values = [[record.get("value") for record in row["records"]] for row in rows[::2]]
    assert values == [[{"utf8": "yes"}], [{"utf8": "no!"}]]
    assert [row["records"] for row in rows[1::2]] == [[{"marker": "commit"}], [{"marker": "abort"}]]
    assert '"marker":"abort"' in strandline("segments", "orders", "--records").out


def test_typed_records_are_shown(log: Log, strandline: Command) -> None:
    log.create_topic("flights", schema=pa.schema([("delay", pa.float64())]))
    log.append("flights", [{"delay": 2.5}])
    [row] = strandline("segments", "flights", "--records", "--json").lines
    assert row["records"][0]["value"] == {"delay": 2.5}
    assert row["schema_id"] == 1


@pytest.mark.damages
def test_a_frame_that_is_being_written_is_left_out(
    log: Log, strandline: Command, folder: Path
) -> None:
    rolled(log)
    active = max(folder.glob("topics/*/0/*.log"), key=lambda path: path.name)
    topic = log.topic("orders").topic_id
    active = max(folder.glob(f"topics/{topic}/0/*.log"))
    log.close()
    with active.open("rb+") as file:
        file.truncate(active.stat().st_size - 1)
    frames = strandline("segments", "orders", "--frames", "--json").lines
    assert frames[-1]["last_offset"] == 159


@pytest.mark.damages
def test_damage_is_reported_with_its_place(log: Log, strandline: Command, folder: Path) -> None:
    rolled(log)
    topic = log.topic("orders").topic_id
    log.close()
    first = min(folder.glob(f"topics/{topic}/0/*.log"))
    with first.open("rb+") as file:
        file.seek(300)
        file.write(b"!")
    assert strandline("segments", "orders", "--frames").code == 0
    outcome = strandline("segments", "orders", "--records")
    assert outcome.code == 1
    assert "CorruptLog" in outcome.err
    assert first.name in outcome.err


def test_an_unknown_topic_or_partition_is_reported(log: Log, strandline: Command) -> None:
    log.create_topic("orders")
    outcome = strandline("segments", "odrers")
    assert (outcome.code, "orders" in outcome.err) == (1, True)
    assert strandline("segments", "orders", "-p", "1").code == 1
    assert "nothing" in strandline("segments", "orders").err


def test_segments_refuses_a_log_over_tcp(strandline: Command) -> None:
    outcome = strandline("segments", "orders", "--log", "strandline://db:1?token=t")
    assert (outcome.code, "the folder itself" in outcome.err) == (1, True)
