"""The settings of a topic that is moved: while it is copied, and afterwards.

While it is copied it keeps and admits everything, with the times that records have: retention or compaction
would take away what is still to be compared. Only what is verified gets the settings that the topic had.

What decides which records a topic keeps and admits is to count in the target as it did in the source, also
where nobody had set it: defaults differ. How it is laid out (segments, compression) is the target's affair,
unless it was set.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.records import TopicInfo
from strandline.changelog.settings import LONG_MAX

KEEPING_ALL = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(LONG_MAX),
    "message.timestamp.after.max.ms": str(LONG_MAX),
}
"""As long as it is copied."""
LARGEST = {"max.message.bytes": str(1000 << 20)}
"""Likewise, if the target lets it: managed clusters have their own limit."""
RULES = (
    *KEEPING_ALL,
    *LARGEST,
    "delete.retention.ms",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
)
"""What decides which records are kept, and admitted."""

LeftOut = dict[str, str]
"""Settings that the target does not take, and why."""


def hold(target: Broker, source: TopicInfo, present: TopicInfo) -> LeftOut:
    """Let the topic keep all, and be laid out as it is in the source."""
    layout = {name: value for name, value in source.config.items() if name not in RULES}
    _apply(target, present, KEEPING_ALL, must=True)
    left_out = _apply(target, target.topic(present.name), {**LARGEST, **layout})
    return {name: why for name, why in left_out.items() if name in layout}


def release(
    target: Broker, source: TopicInfo, present: TopicInfo, defaults: Mapping[str, str]
) -> LeftOut:
    """Let it keep and admit what it did in the source; `defaults` are `rules` of it as it was made."""
    had = rules(source)
    wanted: dict[str, str | None] = {
        name: None if name not in source.config and had[name] == defaults.get(name) else had[name]
        for name in RULES
    }
    return _apply(target, present, wanted)


def rules(topic: TopicInfo) -> dict[str, str]:
    """What decides now which records a topic keeps and admits."""
    everything = topic.effective.as_strings()
    return {name: everything[name] for name in RULES}


def _apply(
    target: Broker, present: TopicInfo, wanted: Mapping[str, str | None], *, must: bool = False
) -> LeftOut:
    """Change what is not so yet; all at once, or else one by one what is possible."""
    changes = {name: value for name, value in wanted.items() if present.config.get(name) != value}
    if not changes:
        return {}
    try:
        target.alter_topic(present.name, changes)
    except InvalidConfig:
        if must:
            raise
        return _one_by_one(target, present.name, changes)
    return {}


def _one_by_one(target: Broker, name: str, changes: Mapping[str, str | None]) -> LeftOut:
    left_out: LeftOut = {}
    for setting, value in changes.items():
        try:
            target.alter_topic(name, {setting: value})
        except InvalidConfig as error:
            left_out[setting] = str(error)
    return left_out
