"""`strandline sinks`: sinks of Spark queries, and their last committed batches."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from strandline.changelog.clock import SystemClock
from strandline.framework.cli import output
from strandline.framework.cli.loading import location, opened
from strandline.framework.cli.options import JsonOption, LogOption
from strandline.framework.spark.writing.sinks import CommittedBatch, Sinks

commands = typer.Typer(
    help="Sinks of Spark queries, and their last committed batches.", no_args_is_help=True
)


@commands.command("list")
def list_sinks(log: LogOption = None, json: JsonOption = False) -> None:
    """List the sinks that have committed, with the last batch of each."""
    with opened(log) as where:
        found = Sinks(where.broker, location(log), SystemClock()).all()
    rows = [_row(sink, last) for sink, last in found.items()]
    output.listing(
        rows, ("sink", "query", "batch", "at"), json=json, empty="no sink has committed yet"
    )


@commands.command("forget")
def forget_sink(
    sink: Annotated[str, typer.Argument(metavar="SINK", help="The sinkId, or the id of a query.")],
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Forget the last batch of a sink, and delete what its query has staged.

    The next batch of a query that still uses it is refused, because earlier ones seem to be lost.
    """
    with opened(log) as where:
        last = Sinks(where.broker, location(log), SystemClock()).forget(sink)
    if json:
        output.document(_row(sink, last))
    else:
        output.note(f"forgot sink {sink!r}, whose last batch was {last.batch}")


def _row(sink: str, last: CommittedBatch) -> dict[str, Any]:
    return {
        "sink": sink,
        "query": last.query or None,
        "batch": last.batch,
        "at": output.moment(last.at),
    }
