"""Output of a supervisor: a table on a terminal, otherwise summary lines, or JSON for programs.

JSON goes to standard output, one document per line. Everything else goes to standard error.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from strandline.changelog.clock import Clock
from strandline.changelog.printable import printable
from strandline.framework.supervisor.slots import WorkerRow, lag_of

TABLE_SECONDS, JSON_SECONDS, SUMMARY_SECONDS = 0.5, 1.0, 10.0
"""Seconds between two updates of the table, of JSON documents and of summary lines."""


class StatusView(Protocol):
    """Output for the status of workers, and for lines."""

    every: float
    """Seconds from one `show` to the next."""

    def show(self, rows: Sequence[WorkerRow]) -> None:
        """Show the status of all workers."""
        ...

    def lines(self, lines: Sequence[str]) -> None:
        """Show lines."""
        ...

    def close(self) -> None:
        """End the display of the status; `lines` may still be called."""
        ...


def view_for(app: str, *, json: bool, clock: Clock, out: Out | None = None) -> StatusView:
    """Return a view that fits the output; `out` takes lines instead of standard error."""
    if json:
        return JsonLines(app, clock, out)
    if out is not None:
        return SummaryView(app, out)
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveTable(app, console)
    return SummaryView(app)


Out = Callable[[Sequence[str]], None]
"""Outputs lines."""


def to_stderr(lines: Sequence[str]) -> None:
    """Print lines to standard error, with control characters escaped."""
    sys.stderr.write("".join(f"{printable(line)}\n" for line in lines))
    sys.stderr.flush()


class SummaryView:
    """View that prints one summary line about all workers."""

    every = SUMMARY_SECONDS

    def __init__(self, app: str, out: Out | None = None) -> None:
        self._app = app
        self._out = out or to_stderr

    def show(self, rows: Sequence[WorkerRow]) -> None:
        self.lines([f"app {self._app}: {_states(rows)}, {_figures(rows)}"])

    def lines(self, lines: Sequence[str]) -> None:
        self._out(lines)

    def close(self) -> None:
        """Do nothing: printed lines stay."""


class JsonLines(SummaryView):
    """View that prints one JSON document per line."""

    every = JSON_SECONDS

    def __init__(self, app: str, clock: Clock, out: Out | None = None) -> None:
        super().__init__(app, out)
        self._clock = clock

    def show(self, rows: Sequence[WorkerRow]) -> None:
        document: dict[str, Any] = {
            "app": self._app,
            "time": self._clock.now_ms(),
            "records": sum(row.records for row in rows),
            "records_per_s": sum(row.records_per_s for row in rows),
            "lag": lag_of(rows),
            "workers": rows,
        }
        sys.stdout.write(printable(msgspec.json.encode(document).decode()) + "\n")
        sys.stdout.flush()


class SilentView:
    """View without output, after the reader of the output is gone."""

    every = SUMMARY_SECONDS

    def show(self, rows: Sequence[WorkerRow]) -> None:
        """Do nothing."""

    def lines(self, lines: Sequence[str]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class LiveTable:
    """View with a live table below the lines, until it is closed."""

    every = TABLE_SECONDS

    def __init__(self, app: str, console: Console) -> None:
        self._app = app
        self._console = console
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def show(self, rows: Sequence[WorkerRow]) -> None:
        self._live.update(self._table(rows), refresh=True)

    def lines(self, lines: Sequence[str]) -> None:
        self._console.print(Text(printable("\n".join(lines))), soft_wrap=True)

    def close(self) -> None:
        self._live.stop()

    def _table(self, rows: Sequence[WorkerRow]) -> Table:
        title = Text(printable(f"app {self._app}: {_figures(rows)}"), style="bold")
        table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
        table.add_column("worker", justify="right")
        table.add_column("pid", justify="right")
        table.add_column("state", min_width=len("waiting for the log"))
        for name in ("partitions", "records/s", "lag", "restarts"):
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in _cells(row)))
        return table


def _cells(row: WorkerRow) -> list[str]:
    return [
        str(row.worker),
        "–" if row.pid is None else str(row.pid),
        _state(row),
        f"{len(row.partitions):,}",
        f"{row.records_per_s:,.0f}",
        "–" if row.silent_s else f"{sum(row.lag.values()):,}",
        f"{row.restarts:,}",
    ]


def _states(rows: Sequence[WorkerRow]) -> str:
    """Return the number of running workers and the states of the others.

    >>> at_work = WorkerRow(0, 41, "running", (), 0, 0.0, 0, {}, 0, None)
    >>> waiting = WorkerRow(1, 42, "waiting for the log", (), 0, 0.0, 0, {}, 0, None, 12.3)
    >>> _states([at_work, waiting])
    '1 of 2 workers running, 1 waiting for the log (12 s)'
    """
    others = Counter(row.state for row in rows if row.state != "running")
    running = f"{len(rows) - others.total()} of {len(rows)} workers running"
    return ", ".join([running, *(f"{n} {_since(state, rows)}" for state, n in others.items())])


def _since(state: str, rows: Sequence[WorkerRow]) -> str:
    """Return a state, with the seconds for which the log has not answered workers in it."""
    silent = max(row.silent_s for row in rows if row.state == state)
    return f"{state} ({silent:.0f} s)" if silent else state


def _state(row: WorkerRow) -> str:
    if row.state != "restoring" or row.restoring is None:
        return _since(row.state, [row])
    done, left = row.restoring.records, row.restoring.remaining
    return f"restoring {done:,} of {done + left:,}"


def _figures(rows: Sequence[WorkerRow]) -> str:
    records, rate = sum(r.records for r in rows), sum(r.records_per_s for r in rows)
    return f"{records:,} records, {rate:,.0f} a second, lag {_behind(rows)}"


def _behind(rows: Sequence[WorkerRow]) -> str:
    """Return the lag by topic; "not known" if a worker's is missing, which would lower the sum."""
    silent = max(row.silent_s for row in rows)
    if silent:
        return f"not known for {silent:.0f} s"
    return ", ".join(f"{topic} {lag:,}" for topic, lag in lag_of(rows).items()) or "not known"
