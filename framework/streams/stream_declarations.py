"""Declaration of streams by an app: the part of `App` that is about streams.

Everything else of this folder is imported when the first stream is declared, because an app of
tasks needs neither Polars nor narwhals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strandline.framework.declarations import Declarations
from strandline.framework.session import Session
from strandline.framework.task import OnError
from strandline.framework.topic import Topic

if TYPE_CHECKING:
    from strandline.framework.streams.durations import Given
    from strandline.framework.streams.graph import StreamGraph
    from strandline.framework.streams.plan import Plan
    from strandline.framework.streams.stream import Stream


class StreamDeclarations:
    """An app that can declare streams: the base of `App`."""

    session: Session
    declared: Declarations
    _graph: StreamGraph | None = None

    def stream(
        self,
        *topics: Topic[Any, Any],
        delay: Given = 0,
        idle: Given | None = "30s",
        close_idle: Given | None = None,
        late: Topic[Any, Any] | str | None = None,
        on_error: OnError = "fail",
    ) -> Stream:
        """Return the rows of topics as a stream, to be selected, changed, grouped and written.

        Several topics are merged; they must have the same columns. Columns are computed with
        expressions (`sl.col`), or by Python functions of a row or of a Polars frame.

        Args:
            *topics: Topics with typed values, or values of str, int, float, bool or bytes, which
                are the column `value`.
            delay: Time by which the watermark stays before the greatest timestamp seen, so that
                records out of order are not late: "10s", a timedelta, or milliseconds. The default
                is 0, for records in order.
            idle: Time of silence, while the machine is awake, after which a partition does not hold
                the watermark back. After a silence of all partitions it begins anew for each. The
                default is "30s"; None waits for ever.
            close_idle: Time of silence after which windows are closed. None, the default, never
                does that, because results would depend on when the app runs.
            late: Topic for records that come after their windows were closed. By default they are
                counted and dropped.
            on_error: "fail" (the default), "skip" or "dead_letter", as in `task`.

        Returns:
            The stream. Nothing runs before `run`, and nothing without an end such as `to`.

        Raises:
            InvalidConfig: A topic's values have no columns, or a setting is not valid.

        >>> import strandline as sl
        >>> app = sl.App("hello")
        >>> words = app.stream(app.topic("words", value=str))
        >>> words.filter(sl.col("value").str.len_chars() > 3).to("long-words")
        Topic('long-words')
        """
        from strandline.framework.streams.sources import StreamSettings, source
        from strandline.framework.streams.stream import Stream

        settings = StreamSettings(delay, idle, close_idle, late, on_error)
        streams = self._streams()
        return Stream(streams, source(streams, topics, settings))

    def plan(self) -> Plan:
        """Return the plan of the app's streams: stages, operators, and their state.

        In a notebook it is shown as a drawing.
        """
        return self._streams().plan()

    @property
    def has_streams(self) -> bool:
        """True if a stream was declared."""
        return self._graph is not None

    def _streams(self) -> StreamGraph:
        """Return the graph of the app's streams; the first call adds their tasks to the app."""
        if self._graph is not None:
            return self._graph
        from strandline.framework.streams.derived_tasks import DerivedTasks
        from strandline.framework.streams.graph import StreamGraph

        self._graph = StreamGraph(self.session, self.declared)
        self.declared.derive = DerivedTasks(self._graph).update
        return self._graph
