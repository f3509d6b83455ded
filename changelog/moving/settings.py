"""The settings of a target topic, during copying and afterwards.

During copying a topic keeps and accepts all records with their timestamps, because retention or
compaction would remove records that are still to be compared. After verification it gets the
settings of the source topic.

Settings that decide which records are kept and accepted get the effective value of the source, even
if it is a default, because defaults differ between logs. Layout settings (segments, compression)
are copied only if they were set.
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
"""Settings during copying."""
LARGEST = {"max.message.bytes": str(1000 << 20)}
"""Settings during copying if the target accepts them: managed clusters have limits of their own."""
RULES = (
    *KEEPING_ALL,
    *LARGEST,
    "delete.retention.ms",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
)
"""Settings that decide which records are kept and accepted."""

LeftOut = dict[str, str]
"""Reason for each setting that the target does not accept."""


def hold(target: Broker, source: TopicInfo, present: TopicInfo) -> LeftOut:
    """Set the target topic to keep all records, with the layout settings of the source."""
    layout = {name: value for name, value in source.config.items() if name not in RULES}
    _apply(target, present, KEEPING_ALL, must=True)
    left_out = _apply(target, target.topic(present.name), {**LARGEST, **layout})
    return {name: why for name, why in left_out.items() if name in layout}


def release(
    target: Broker, source: TopicInfo, present: TopicInfo, defaults: Mapping[str, str]
) -> LeftOut:
    """Give the target topic the `RULES` of the source; `defaults` are its `rules` at creation."""
    had = rules(source)
    wanted: dict[str, str | None] = {
        name: None if name not in source.config and had[name] == defaults.get(name) else had[name]
        for name in RULES
    }
    return _apply(target, present, wanted)


def rules(topic: TopicInfo) -> dict[str, str]:
    """Return the effective values of the `RULES` of a topic."""
    everything = topic.effective.as_strings()
    return {name: everything[name] for name in RULES}


def _apply(
    target: Broker, present: TopicInfo, wanted: Mapping[str, str | None], *, must: bool = False
) -> LeftOut:
    """Change settings that differ: all at once, or one by one if the target refuses some.

    With `must` a refusal raises InvalidConfig.
    """
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
    """Change settings one by one; return the refused ones."""
    left_out: LeftOut = {}
    for setting, value in changes.items():
        try:
            target.alter_topic(name, {setting: value})
        except InvalidConfig as error:
            left_out[setting] = str(error)
    return left_out
