"""Settings that this transport and store refuse, with the reason and a way out."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from faust import Record
from faust.app import App
from faust.auth import SASLCredentials
from faust.types.auth import SASLMechanism
from faust.utils.urls import urllist

from strandline.changelog.errors import InvalidConfig, MissingDependency
from strandline.changelog.kafka.address import parse_url
from strandline.framework.faust.address import FaustAddress, parse
from strandline.framework.faust.consumer import _check_store
from strandline.framework.faust.log_link import FaustLink


class Pair(Record):
    """A value with a key."""

    key: str


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("strandline:///data/log", FaustAddress("/data/log")),
        ("strandline:///d?on_error=skip&commit_ms=50", FaustAddress("/d", "skip", 50)),
        ("strandline://db:7070", FaustAddress("strandline://db:7070")),
        ("strandline+kafka://a:9092", FaustAddress("kafka://a:9092")),
        ("strandline+kafka://a;b:1,[::1]:2", FaustAddress("kafka://a,b:1,[::1]:2")),
        (
            "strandline+kafka://a:1,b?client.id=me&on_error=skip",
            FaustAddress("kafka://a:1,b?client.id=me", "skip"),
        ),
    ],
)
def test_a_url_names_a_log_and_options(url: str, address: FaustAddress) -> None:
    assert parse(urllist(url)) == address


def test_properties_of_a_cluster_keep_their_values() -> None:
    given = "sasl.password=a%2Cb%3B%26%25+%20&ssl.ca.location=/pem"
    cluster = parse_url(parse(urllist(f"strandline+kafka://h:1,h:2?{given}")).log, {})
    assert cluster.secrets["sasl.password"].reveal() == "a,b;&%+ "
    assert cluster.properties == {"ssl.ca.location": "/pem", "bootstrap.servers": "h:1,h:2"}


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("kafka://host:9092", r"use strandline:///path .* or strandline\+kafka://"),
        ("strandline+kafka://a;strandline://b", "use strandline:///path"),
        ("strandline+kafka://host:9092/path", "without a path"),
        ("strandline+kafka://", "write strandline"),
        ("strandline+kafka://h?sasl.password=a,b", "commas in them as %2C"),
        ("strandline+kafka://h?on_error=ignore", "on_error='ignore'; use one of fail, skip"),
        ("strandline:///d;strandline:///e", "takes one strandline:// URL"),
        ("strandline:///d?on_error=ignore", "on_error='ignore'; use one of fail, skip"),
        ("strandline:///d?commit_ms=0", "use a number from 1 to 60000"),
        ("strandline:///d?linger=5", "unknown options"),
        ("strandline://", "names no log"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        parse(urllist(url))


def test_messages_leave_secrets_out() -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse(urllist("strandline+kafka://me:s3cret@h/path?sasl.password=s3cret"))
    assert "s3cret" not in str(refused.value)
    assert "s3cret" not in repr(parse(urllist("strandline+kafka://h?sasl.password=s3cret")))


def app(broker: str = "strandline:///nowhere/log", **settings: Any) -> App:
    """Return an app that is never started."""
    return App("refused", broker=broker, store="strandline://", **settings)


def test_tables_without_a_partition_of_their_records_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="GlobalTable is not supported"):
        _ = app().GlobalTable("everywhere").data
    with pytest.raises(InvalidConfig, match="use_partitioner=True is not supported"):
        _ = app().Table("anywhere", use_partitioner=True).data


def test_a_table_of_sets_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="SetTable is not supported"):
        _ = app().SetTable("people").data.storage


def test_exactly_once_refuses_one_table_in_another_store() -> None:
    careless = app(processing_guarantee="exactly_once")
    careless.Table("safe")
    _check_store(careless)
    careless.Table("unsafe", store="rocksdb://?driver=rocksdict")
    with pytest.raises(InvalidConfig, match="got 'rocksdb:.*' for table 'unsafe'"):
        _check_store(careless)


async def test_joins_are_refused_by_faust_itself() -> None:
    """The guide says so: Faust has the methods, and no join behind them."""
    topic = app().topic("left", value_type=Pair)
    joined = topic.stream().join(Pair.key)
    with pytest.raises(NotImplementedError):
        await joined.join_strategy.process(None)
    with pytest.raises(NotImplementedError):
        app().Table("right").inner_join(Pair.key)


def test_our_store_on_another_broker_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="needs broker='strandline:///path'"):
        _ = app("kafka://127.0.0.1:9").Table("counts").data


def test_credentials_for_fausts_own_client_are_refused_on_a_cluster() -> None:
    me = SASLCredentials(username="me", password="pw", mechanism=SASLMechanism.PLAIN)
    with pytest.raises(InvalidConfig, match="broker_credentials= is for Faust's own kafka://"):
        _ = app("strandline+kafka://127.0.0.1:9", broker_credentials=me).transport


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("strandline.changelog.kafka.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingDependency, match=r"pip install 'strandline\[kafka\]'"):
        await FaustLink(FaustAddress("kafka://127.0.0.1:9")).acquire()
