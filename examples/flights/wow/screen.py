"""Drawing of the screen: totals per carrier, workers, verdict, and news."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from examples.flights.wow.stage import ShowStage

KEYS = "k kill -9   z freeze / thaw   d at_least_once / exactly_once   q quit"
CARRIERS = 16
"""Number of carriers in the data."""


def drawn(stage: ShowStage) -> RenderableType:
    """Return one frame."""
    return Group(
        Text("Strandline · flights from New York, as they leave", style="bold"),
        _carriers(stage),
        _workers(stage),
        _verdict(stage),
        Panel(Text("\n".join(stage.news) or "…"), title="news", title_align="left", height=8),
        Text(KEYS, style="dim"),
    )


def _carriers(stage: ShowStage) -> Table:
    table = Table(box=None, pad_edge=False, expand=True)
    for _ in range(2):
        table.add_column("carrier", style="cyan")
        for name in ("flights", "mean delay", "worst"):
            table.add_column(name, justify="right")
    totals = sorted(stage.witness.totals.items())
    cells = [
        (
            carrier,
            f"{total.n:,}",
            "–" if total.mean is None else f"{total.mean:.1f} min",
            "–" if total.worst is None else f"{total.worst:,} min",
        )
        for carrier, total in totals
    ]
    cells += [("", "", "", "")] * (CARRIERS - len(cells))
    half = CARRIERS // 2
    for left, right in zip(cells[:half], cells[half:], strict=True):
        table.add_row(*left, *right)
    return table


def _workers(stage: ShowStage) -> Text:
    held = stage.members()
    text = Text()
    for worker in stage.workers:
        state = "frozen" if worker.frozen else "at work" if worker.pid in held else "starts"
        style = "yellow" if worker.frozen else "green" if worker.pid in held else "dim"
        text.append(f"worker {worker.number} ", "bold")
        text.append(f"{state}, {held.get(worker.pid, 0)} partitions    ", style)
    text.append(stage.guarantee, "bold green" if stage.guarantee == "exactly_once" else "bold red")
    return text


def _verdict(stage: ShowStage) -> Text:
    witness = stage.witness
    text = Text(f"{witness.outputs:,} outputs, n = 1, 2, 3 … held against the raw flights:  ")
    for what, count in (
        ("lost", witness.lost),
        ("doubled", witness.doubled),
        ("differing", witness.differing),
    ):
        text.append(f"{what} {count:,}  ", "bold red" if count else "bold green")
    text.append(f"({witness.waiting:,} on their way)", "dim")
    return text
