"""`strandline dead-letters`: what failed, and putting it back."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.framework.cli import output
from strandline.framework.cli.loading import opened
from strandline.framework.cli.options import JsonOption, LogOption
from strandline.framework.dead_letters import ENDINGS, retry, waiting

commands = typer.Typer(help="Dead letters: list their topics, put them back.", no_args_is_help=True)


@commands.command("list")
def list_topics(log: LogOption = None, json: JsonOption = False) -> None:
    """List the dead-letter topics, with the number of letters that were not put back."""
    with opened(log) as where:
        names = [one.name for one in where.topics() if one.name.endswith(ENDINGS)]
        rows = [{"topic": name, "letters": waiting(where.broker, name)} for name in names]
    output.listing(rows, ("topic", "letters"), json=json, empty="no dead-letter topics")


@commands.command("retry")
def retry_letters(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A dead-letter topic.")],
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Put dead letters back into the partitions that they came from, each once.

    Fix the handler first: what fails again becomes another dead letter.
    """
    with opened(log) as where:
        done = retry(where.broker, topic)
    if json:
        output.document({"topic": topic, "put_back": done.records, "left": done.left})
        return
    for name, count in sorted(done.records.items()):
        output.line(f"{output.number(count)} put back into {name}")
    if done.left:
        output.line(f"{output.number(done.left)} left, which have no record to put back")
    if not done.records and not done.left:
        output.line("nothing to put back")
