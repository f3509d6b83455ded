"""Topic settings and names are Kafka's. A wrong one is named with the reason."""

from __future__ import annotations

import pytest

from strandline.changelog.config import TopicConfig, check_topic_name
from strandline.changelog.errors import InvalidConfig, InvalidTopic


def test_without_settings_there_are_kafkas_defaults() -> None:
    config = TopicConfig.parse({})
    assert (config.delete, config.compact) == (True, False)
    assert config.retention_ms == 7 * 24 * 60 * 60 * 1000
    assert config.retention_bytes == -1
    assert config.message_timestamp_type == "CreateTime"


def test_settings_survive_being_written_and_read() -> None:
    config = TopicConfig.parse(
        {
            "cleanup.policy": "delete, compact",
            "retention.ms": "-1",
            "segment.bytes": "4096",
            "min.cleanable.dirty.ratio": "0.25",
            "compression.type": "zstd",
        }
    )
    assert config.cleanup_policy == "compact,delete"
    assert config.delete
    assert config.compact
    assert TopicConfig.parse(config.as_strings()) == config


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("retention.sm", "5", "did you mean 'retention.ms'"),
        ("segment_bytes", "5000", "did you mean 'segment.bytes'"),
        ("frobnicate", "5", "there are 'cleanup.policy', "),
        ("segment.bytes", "4095", "from 4096 to 2147483647, got 4095"),
        ("retention.ms", "-2", "from -1 to 9223372036854775807, got -2"),
        ("retention.ms", "1e3", "whole number"),
        ("retention.ms", "1_000", "whole number"),
        ("retention.ms", "7d", "whole number"),
        ("min.cleanable.dirty.ratio", "1.1", "from 0.0 to 1.0, got 1.1"),
        ("min.cleanable.dirty.ratio", "nan", "from 0.0 to 1.0, got 'nan'"),
        ("cleanup.policy", "compacted", "did you mean 'compact'"),
        ("compression.type", "LZ4", "did you mean 'lz4'"),
    ],
)
def test_a_wrong_setting_is_named_with_the_allowed_values(
    name: str, value: str, problem: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        TopicConfig.parse({name: value})
    assert name in str(caught.value)
    assert problem in str(caught.value)


def test_lags_of_compaction_must_not_contradict_each_other() -> None:
    with pytest.raises(InvalidConfig, match=r"must not exceed max\.compaction\.lag\.ms"):
        TopicConfig.parse({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})


def test_an_invalid_config_object_cannot_be_built() -> None:
    with pytest.raises(InvalidConfig, match=r"segment\.bytes"):
        TopicConfig(segment_bytes=1)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "_one", "..."])
def test_valid_topic_names_are_accepted(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a/b", "a b", "ä", "a\n", "__x"])
def test_invalid_topic_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopic, match="a topic cannot be called"):
        check_topic_name(name)


def test_reserved_names_are_for_internal_topics() -> None:
    check_topic_name("__consumer_offsets", internal=True)
