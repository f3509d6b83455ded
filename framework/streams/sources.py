"""Sources of streams: topics as rows, and the settings of reading them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.changelog.errors import InvalidConfig
from strandline.framework.streams.durations import Given, milliseconds_of
from strandline.framework.streams.graph import StreamGraph
from strandline.framework.streams.nodes import MergedStreams, Node, StreamOptions, TopicSource
from strandline.framework.streams.outputs import fields_of
from strandline.framework.streams.places import refusal, user_place
from strandline.framework.streams.rows import schema_differences
from strandline.framework.streams.schemas import (
    KEY,
    TIME,
    Keying,
    check_names,
    internal_columns,
    key_type,
    value_fields,
)
from strandline.framework.task import ON_ERROR, OnError
from strandline.framework.topic import Topic

_WHAT = "app.stream"


@dataclass(frozen=True)
class StreamSettings:
    """Settings of a stream as a user gave them; `App.stream` describes them."""

    delay: Given = 0
    idle: Given | None = "30s"
    close_idle: Given | None = None
    late: Topic[Any, Any] | str | None = None
    on_error: OnError = "fail"


def source(graph: StreamGraph, topics: Sequence[Any], settings: StreamSettings) -> Node:
    """Return the node that gives the rows of one topic, or of several that have the same columns.

    Raises InvalidConfig.
    """
    if not topics:
        raise refusal(_WHAT, "there is no topic; give one, as app.stream(app.topic(…))")
    options = stream_options(graph, settings)
    sources = [_topic_source(graph, topic, options) for topic in topics]
    if len(set(topics)) < len(topics):
        raise refusal(_WHAT, "a topic is named twice; its rows would be counted twice")
    for topic in topics:
        if options.late is not None and not options.late.can_read(topic):
            raise refusal(
                _WHAT,
                f"late={options.late.name!r} has other types than {topic.name!r}, whose late records"
                " go there as they are; declare it with the same key and value",
            )
    return sources[0] if len(sources) == 1 else merged(sources, _WHAT)


def topic_rows(topic: Topic[Any, Any], operator: str) -> tuple[dict[str, str], Any, Keying]:
    """Return the columns by field of a topic's values, the schema of its rows, and their key."""
    import polars as pl

    wanted = value_fields(topic, operator)
    check_names(wanted, operator)
    fields = fields_of(topic, list(wanted))
    schema = {fields[name]: dtype for name, dtype in wanted.items()}
    keyed = (fields[topic.key_column],) if topic.key_column else (KEY,)
    if topic.key_column is None:
        schema = {KEY: key_type(topic, operator), **schema}
    # A serde of its own writes other bytes, by which an equal key is in another partition.
    placed_by = keyed if topic.key_serde is None else ()
    keying = Keying(keyed, topic.key_column is not None, placed_by)
    return fields, pl.Schema({**schema, TIME: pl.Int64(), **internal_columns()}), keying


def merged(inputs: Sequence[Node], operator: str) -> MergedStreams:
    """Return the node that gives the rows of several nodes. Raise InvalidConfig if they differ."""
    first, *others = inputs
    for other in others:
        differences = schema_differences(other.visible, first.visible)
        if differences:
            raise refusal(
                operator,
                f"merged streams have the same columns, and of another one {'; '.join(differences)}"
                "; use select(…), rename(…) or cast",
            )
    _check_options(inputs, operator)
    alike = all(node.keying == first.keying for node in others)
    return MergedStreams(
        inputs=tuple(inputs),
        schema=first.schema,
        keying=first.keying if alike else Keying(),
        where=user_place(),
    )


def _check_options(inputs: Sequence[Node], operator: str) -> None:
    """Raise InvalidConfig if sources that will be read together have settings that exclude others.

    The task that reads them has one policy for errors and one for silence, and each topic one
    watermark.
    """
    first: TopicSource | None = None
    of_topic: dict[str, TopicSource] = {}
    for source in _sources_of(inputs):
        first = first or source
        same = of_topic.setdefault(source.topic.name, source)
        names = [n for n in _OF_STAGE if getattr(source.options, n) != getattr(first.options, n)]
        names += [n for n in _OF_TOPIC if getattr(source.options, n) != getattr(same.options, n)]
        if names:
            raise refusal(
                operator,
                f"{_ARGUMENTS[names[0]]}= of app.stream({source.topic.name}) differs from that of"
                f" app.stream({(same if names[0] in _OF_TOPIC else first).topic.name}), and their"
                " rows are handled together; give both the same",
            )


def _sources_of(inputs: Sequence[Node]) -> Iterator[TopicSource]:
    """Yield the topics that nodes have rows of, each once."""
    waiting, seen = list(inputs)[::-1], set[Node]()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, TopicSource):
            yield node
        waiting += node.inputs[::-1]


_ARGUMENTS = {
    "on_error": "on_error",
    "idle_ms": "idle",
    "close_idle_ms": "close_idle",
    "delay_ms": "delay",
    "late": "late",
}
"""Argument of `App.stream` by setting of a source."""
_OF_STAGE = ("on_error", "idle_ms", "close_idle_ms")
"""Settings that all sources of a stage share."""
_OF_TOPIC = ("delay_ms", "late")
"""Settings that all sources of one topic in a stage share."""


def stream_options(graph: StreamGraph, settings: StreamSettings) -> StreamOptions:
    """Return the settings of a source, checked. Raise InvalidConfig."""
    if settings.on_error not in ON_ERROR:
        raise refusal(_WHAT, f"on_error={settings.on_error!r} is none of {', '.join(ON_ERROR)}")
    return StreamOptions(
        delay_ms=_ms("delay", settings.delay, zero=True) or 0,
        idle_ms=_ms("idle", settings.idle),
        close_idle_ms=_ms("close_idle", settings.close_idle),
        late=_late_topic(graph, settings.late),
        on_error=settings.on_error,
    )


def _topic_source(graph: StreamGraph, topic: Any, options: StreamOptions) -> TopicSource:
    if not isinstance(topic, Topic):
        raise refusal(_WHAT, f"expected a topic as app.topic(…) returns it, got {topic!r:.100}")
    if graph.declared.topics.get(topic.name) is not topic:
        raise refusal(
            _WHAT,
            f"topic {topic.name!r} belongs to app {topic.session.app!r}; declare it with app.topic"
            f" of app {graph.session.app!r} as well",
        )
    fields, schema, keying = topic_rows(topic, _WHAT)
    return TopicSource(
        schema=schema,
        keying=keying,
        where=user_place(),
        topic=topic,
        fields=fields,
        options=options,
    )


def _late_topic(graph: StreamGraph, late: Any) -> Topic[Any, Any] | None:
    """Return the topic of late records, which the app must have declared."""
    topic = graph.declared.topics.get(late) if isinstance(late, str) else late
    if late is None or (isinstance(topic, Topic) and topic in graph.declared.topics.values()):
        return topic
    raise refusal(
        _WHAT,
        f"late={late!r:.100} is no topic of the app; declare one with app.topic and the types of"
        " the input, since late records go there as they were",
    )


def _ms(name: str, given: Any, *, zero: bool = False) -> int | None:
    """Return a duration in ms; None for None. Raise InvalidConfig with the user's place."""
    if given is None:
        return None
    try:
        return milliseconds_of(given, name, zero=zero)
    except InvalidConfig as error:
        raise refusal(_WHAT, str(error)) from None
