"""Options of writing with `format("strandline")`, parsed and checked in one place.

path             folder or URL of the log: the argument of `save(path)` and `start(path)`
topic            topic to write; without it, the column `topic` of each row
key              column with the keys of records; by default `key`, if that is not a column of
                 the value
timestamp        column with their times; by default `timestamp`, likewise
partitions       create the topic with so many partitions if it does not exist
topic.<setting>  setting of a topic that is created, such as topic.cleanup.policy
mergeSchema      "true": add columns that a typed topic does not have, as nullable ones
sinkId           name under which committed batches are recorded; default: the query's id
batchId          number of the batch, for a batch write with `sinkId`
failOnDataLoss   "true" (default): fail if the log lacks batches that the query has written
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.changelog.errors import InvalidConfig
from strandline.framework.spark.option_values import count_of, flag_of, known_name, log_path

KNOWN = (
    "path",
    "topic",
    "key",
    "timestamp",
    "partitions",
    "mergeSchema",
    "sinkId",
    "batchId",
    "failOnDataLoss",
)
"""Names of all options, except settings of topics."""

SETTING = "topic."
"""Beginning of the options that are settings of a topic."""

_SPARKS_OWN = ("checkpointlocation", "queryname", "outputmode", "trigger")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of one write."""

    path: str = field(repr=False)
    """Absolute path or URL of the log. A URL may contain secrets."""
    topic: str | None = None
    key: str | None = None
    timestamp: str | None = None
    partitions: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    """Settings of a topic that is created."""
    merge_schema: bool = False
    sink_id: str | None = None
    batch_id: int | None = None
    fail_on_data_loss: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Return the options given to Spark, whose names ignore case. Raise InvalidConfig."""
        config, given = {}, {}
        for name, text in options.items():
            if name.lower().startswith(SETTING):
                config[name.lower().removeprefix(SETTING)] = text
            elif not name.startswith("__") and name.lower() not in _SPARKS_OWN:
                given[known_name(name, KNOWN, "when it writes")] = text
        parsed = cls(
            path=log_path(given.get("path"), ".save('path/of/the/log')"),
            topic=given.get("topic"),
            key=given.get("key"),
            timestamp=given.get("timestamp"),
            partitions=count_of("partitions", given),
            config=config,
            merge_schema=flag_of("mergeSchema", given, default=False),
            sink_id=_sink_id(given.get("sinkId")),
            batch_id=count_of("batchId", given, least=0),
            fail_on_data_loss=flag_of("failOnDataLoss", given, default=True),
        )
        parsed._check()
        return parsed

    def of_batch(self) -> SinkOptions:
        """Return the options, checked for a batch write. Raise InvalidConfig."""
        if (self.sink_id is None) != (self.batch_id is None):
            raise InvalidConfig(
                "a batch write takes sinkId and batchId together: the sink remembers the number, "
                "and skips a write with that number or a lower one"
            )
        return self

    def of_stream(self) -> SinkOptions:
        """Return the options, checked for a streaming write. Raise InvalidConfig."""
        if self.batch_id is not None:
            raise InvalidConfig("batchId is for batch writes; a stream numbers its batches itself")
        return self

    def _check(self) -> None:
        if self.config and self.partitions is None:
            raise InvalidConfig(
                f"settings of a topic ({', '.join(map(repr, self.config))}) are used when it is "
                "created; to allow that, say with how many partitions: .option('partitions', '4')"
            )
        if self.partitions is not None and self.topic is None:
            raise InvalidConfig(
                "partitions is for a topic that is named by .option('topic', …); topics that are "
                "named by a column must exist"
            )


def _sink_id(text: str | None) -> str | None:
    if text is not None and not (0 < len(text) <= MAX_SINK_ID and text.isprintable()):
        raise InvalidConfig(f"sinkId has 1 to {MAX_SINK_ID} printable characters, got {text!r}")
    return text


MAX_SINK_ID = 900
"""Maximum number of characters of a sink id, which is part of a transactional id."""
