"""Options of `format("strandline")`: Kafka's names for the same meaning. Unknown ones are
refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.changelog.errors import InvalidConfig
from strandline.framework.spark.options import AtTime, SourceOptions


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({"path": "/log"} | options)


def test_names_do_not_depend_on_case() -> None:
    parsed = SourceOptions.parse(
        {"PATH": "/log", "SUBSCRIBE": "b, a ,b", "failondataloss": "FALSE"}
    )
    assert parsed.topics == ("a", "b")
    assert parsed.fail_on_data_loss is False


def test_a_relative_path_becomes_absolute_because_workers_run_elsewhere() -> None:
    assert parse(path="data", subscribe="a").path == str(Path("data").absolute())


def test_a_url_stays_as_it_is() -> None:
    assert parse(path="kafka://host:9092", subscribe="a").path == "kafka://host:9092"


def test_offsets_are_words_or_kafkas_json() -> None:
    assert parse(subscribe="a", startingOffsets="EARLIEST").starting == "earliest"
    assert parse(subscribe="a", endingOffsets='{"a": {"0": 23, "1": -1}}').ending == {
        "a": {0: 23, 1: -1}
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "say what to read"),
        ({"subscribe": "a", "store": "x/y"}, "say what to read"),
        ({"subscribe": " , "}, "say what to read"),
        ({"subscribe": "a", "startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"subscribe": "a", "minPartition": "3"}, "has no option 'minPartition'"),
        ({"subscribe": "a", "failOnDataLoss": "no"}, "must be 'true' or 'false', got 'no'"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "0"}, "whole number above 0"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "1e3"}, "whole number above 0"),
        ({"subscribe": "a", "startingOffsets": '{"a": 3}'}, "JSON like"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -3}}'}, "0 or more"),
        ({"subscribe": "a", "decode": "false"}, "decode can be used with store only"),
        ({"store": "a/b", "startingOffsets": "earliest"}, "with subscribe only"),
        (
            {"subscribe": "a", "startingTimestamp": "yesterday"},
            "number of milliseconds, or a time like",
        ),
        ({"subscribe": "a", "startingTimestamp": "-1"}, "number of milliseconds, or a time like"),
        ({"subscribe": "a", "startingTimestamp": "1760000400"}, "Timestamp: .*looks like seconds"),
        ({"subscribe": "a", "endingTimestamp": "1760000400000000"}, "looks like microseconds"),
        ({"store": "a/b", "asOfTimestamp": "1760000400"}, "asOfTimestamp: .*looks like seconds"),
        (
            {"subscribe": "a", "startingOffsetsByTimestamp": '{"a": {"0": 0, "1": 1760000400}}'},
            "startingOffsetsByTimestamp: .*looks like seconds",
        ),
        (
            {"subscribe": "a", "endingOffsetsByTimestamp": '{"a": {"0": 1760000400}}'},
            "endingOffsetsByTimestamp: .*looks like seconds",
        ),
        ({"subscribe": "a", "endingOffsetsByTimestamp": "5"}, "must be JSON like"),
        ({"subscribe": "a", "endingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "0 or more"),
        (
            {"subscribe": "a", "startingOffsetsByTimestampStrategy": "earliest"},
            "must be 'error' or 'latest'",
        ),
    ],
)
def test_invalid_options_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        parse(**options)


def test_a_log_must_be_named() -> None:
    with pytest.raises(InvalidConfig, match="load"):
        SourceOptions.parse({"subscribe": "a"})


def test_a_batch_reads_from_earliest_to_latest_by_default() -> None:
    assert parse(subscribe="a").start_of_batch() == "earliest"
    assert parse(subscribe="a").end_of_batch() == "latest"
    with pytest.raises(InvalidConfig, match="startingOffsets"):
        parse(subscribe="a", startingOffsets="latest").start_of_batch()
    with pytest.raises(InvalidConfig, match="endingOffsets"):
        parse(subscribe="a", endingOffsets='{"a": {"0": -2}}').end_of_batch()


def test_a_stream_begins_at_latest_and_has_no_end_by_default() -> None:
    assert parse(subscribe="a").start_of_stream() == "latest"
    with pytest.raises(InvalidConfig, match="no end"):
        parse(subscribe="a", endingOffsets="latest").start_of_stream()


def test_a_store_is_its_changelog_and_decoded_by_default() -> None:
    assert parse(store="flights/totals").table == "flights-totals-changelog"
    assert parse(store="flights/totals").decode is True
    assert parse(store="flights/totals", decode="false").decode is False


def test_a_compacted_topic_is_read_as_a_table_by_its_name() -> None:
    assert parse(store="prices").table == "prices"
    assert parse(store="prices").decode is False


def test_a_time_for_all_goes_before_times_and_times_before_offsets() -> None:
    times = {"startingOffsetsByTimestamp": '{"a": {"0": 7}}', "startingOffsets": "earliest"}
    assert parse(subscribe="a", **times).start_of_batch() == AtTime(
        {"a": {0: 7}}, "startingOffsetsByTimestamp", or_latest=False
    )
    found = parse(subscribe="a", startingTimestamp="0", **times).start_of_stream()
    assert found == AtTime(0, "startingTimestamp", or_latest=False)
    latest = parse(
        subscribe="a", startingTimestamp="0", startingOffsetsByTimestampStrategy="latest"
    )
    assert latest.start_of_stream() == AtTime(0, "startingTimestamp")
    with pytest.raises(InvalidConfig, match="no end"):
        parse(subscribe="a", endingTimestamp="5").start_of_stream()


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1760000400000", 1_760_000_400_000),
        ("2025-10-09T09:00", 1_760_000_400_000),
        ("2025-10-09 11:00:00+02:00", 1_760_000_400_000),
        ("2025-10-09T09:00:00.0005", 1_760_000_400_001),
        ("1970-01-21T08:53:20.400", 1_760_000_400),
    ],
)
def test_a_time_is_milliseconds_or_iso_8601(text: str, ms: int) -> None:
    start = parse(subscribe="a", startingTimestamp=text).start_of_batch()
    assert start == AtTime(ms, "startingTimestamp", or_latest=False)
    end = parse(subscribe="a", endingTimestamp=text).end_of_batch()
    assert end == AtTime(ms, "endingTimestamp")


@pytest.mark.parametrize("text", ["1760000400000", "2025-10-09T09:00:00.0005"])
def test_a_table_as_of_a_time_has_the_records_up_to_its_millisecond(text: str) -> None:
    as_of = parse(store="a/b", asOfTimestamp=text).as_of
    assert as_of == AtTime(1_760_000_400_001, "asOfTimestamp")
