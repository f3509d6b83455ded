"""Settings that this transport and store refuse, with the reason and a way out."""

from __future__ import annotations

import pytest
from faust.app import App
from yarl import URL

from strandline.changelog.errors import InvalidConfig
from strandline.framework.faust.address import FaustAddress, parse


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("strandline:///data/log", FaustAddress("/data/log")),
        ("strandline:///d?on_error=skip&commit_ms=50", FaustAddress("/d", "skip", 50)),
        ("strandline://db:7070", FaustAddress("strandline://db:7070")),
    ],
)
def test_a_url_names_a_log_and_options(url: str, address: FaustAddress) -> None:
    assert parse([URL(url)]) == address


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("strandline+kafka://host:9092", "a Kafka cluster is not supported"),
        ("strandline:///d?on_error=ignore", "on_error='ignore'; use one of fail, skip"),
        ("strandline:///d?commit_ms=0", "use a number from 1 to 60000"),
        ("strandline:///d?linger=5", "unknown options"),
        ("strandline://", "names no log"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        parse([URL(url)])


def app(broker: str = "strandline:///nowhere/log") -> App:
    """Return an app that is never started."""
    return App("refused", broker=broker, store="strandline://")


def test_tables_without_a_partition_of_their_records_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="GlobalTable is not supported"):
        _ = app().GlobalTable("everywhere").data
    with pytest.raises(InvalidConfig, match="use_partitioner=True is not supported"):
        _ = app().Table("anywhere", use_partitioner=True).data


def test_our_store_on_another_broker_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="needs broker='strandline:///path'"):
        _ = app("kafka://127.0.0.1:9").Table("counts").data
