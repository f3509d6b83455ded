"""`strandline reset APP`: delete an app's offsets, state and internal topics, or some of them.

A plan is made from the contents of the log. It is carried out after the user has agreed. Input and
output topics stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.changelog.broker import Broker
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidRequest
from strandline.changelog.location import is_url
from strandline.changelog.records import TopicPartition
from strandline.framework.cli import output
from strandline.framework.cli.loading import location, opened
from strandline.framework.cli.options import JsonOption, LogOption, YesOption, confirmed
from strandline.framework.container.reset import check_at_rest, delete_all
from strandline.framework.declarations import check_app_name
from strandline.statestore.internal_names import CHANGELOG, REPARTITION
from strandline.statestore.ownership import InternalTopics

if TYPE_CHECKING:
    from strandline.framework.app import App

OffsetsOption = Annotated[
    bool,
    typer.Option(
        "--offsets",
        help="Delete its committed offsets; those of repartition topics with --changelogs only.",
    ),
]
StateOption = Annotated[
    bool,
    typer.Option("--state", help="Remove the files of its stores; changelogs restore them."),
]
ChangelogsOption = Annotated[
    bool,
    typer.Option(
        "--changelogs", help="Delete its changelogs; with --offsets also rows on their way."
    ),
]


@dataclass(frozen=True)
class ResetPlan:
    """Steps of a reset."""

    app: str
    offsets: tuple[TopicPartition, ...] = ()
    """Partitions whose committed offsets are deleted."""
    topics: tuple[str, ...] = ()
    """Internal topics that are deleted."""
    state: Path | None = None
    """Folder that is removed."""

    @property
    def steps(self) -> list[str]:
        """Each step in words."""
        inputs = ", ".join(sorted({tp.topic for tp in self.offsets}))
        steps = [f"forget {len(self.offsets)} committed offsets in {inputs}"] if inputs else []
        steps += [f"delete topic {topic}" for topic in self.topics]
        return [*steps, f"remove {self.state}"] if self.state is not None else steps

    @property
    def warning(self) -> str | None:
        """Warning if state and offsets would no longer match."""
        changelogs = any(topic.endswith(CHANGELOG) for topic in self.topics)
        if self.offsets and not changelogs:
            return "the state stays, so records that are read again count a second time"
        if changelogs and not self.offsets:
            return "the offsets stay, so the stores begin empty in the middle of the input"
        return None


def reset(
    app: Annotated[str, typer.Argument(metavar="APP", help="The app's name.")],
    offsets: OffsetsOption = False,
    state: StateOption = False,
    changelogs: ChangelogsOption = False,
    yes: YesOption = False,
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Reset an app: delete offsets, state and changelogs, or only those that are chosen.

    Shows the plan and asks before it changes anything. The app must not be running. Input and
    output topics stay as they are.
    """
    with opened(log) as where:
        plan = plan_for(where.broker, app, location(log))
        plan = chosen(plan, offsets=offsets, state=state, changelogs=changelogs)
        carry_out(where.broker, plan, yes=yes, json=json)


def command_of(app: App) -> Callable[..., None]:
    """Return the command `reset` of one app."""

    def reset_app(
        offsets: OffsetsOption = False,
        state: StateOption = False,
        changelogs: ChangelogsOption = False,
        yes: YesOption = False,
        log: LogOption = None,
        json: JsonOption = False,
    ) -> None:
        """Reset the app: delete offsets, state and changelogs, or only those chosen."""
        where = log if log is not None else str(app.log)
        reset(app.name, offsets, state, changelogs, yes, where, json)

    return reset_app


def plan_for(broker: Broker, app: str, log: str) -> ResetPlan:
    """Return the plan that deletes all of an app. Raise InvalidRequest if there is nothing."""
    check_app_name(app)  # because it names a folder that is removed
    groups = broker.groups()
    root = Path("state") if is_url(log) else Path(log) / "state"
    state = root / app
    plan = ResetPlan(
        app,
        tuple(sorted(broker.committed(app, require_stable=False))) if app in groups else (),
        tuple(InternalTopics(broker, SystemClock()).of(app)),
        state if state.is_dir() else None,
    )
    if not plan.steps:
        known = ", ".join(groups) or "none"
        raise InvalidRequest(f"app {app!r} has left nothing to reset here; groups: {known}")
    return plan


def chosen(plan: ResetPlan, *, offsets: bool, state: bool, changelogs: bool) -> ResetPlan:
    """Return the chosen parts of a plan; all of it if none is chosen.

    Repartition topics are deleted if both their offsets and the changelogs are chosen. Otherwise
    they stay with their offsets: the next run handles the rows on their way, and no other row again,
    because the input that is read again produces new ones.
    """
    if not (offsets or state or changelogs):
        return plan
    begins_anew = offsets and changelogs
    between = {name for name in plan.topics if name.endswith(REPARTITION)}
    topics = [name for name in plan.topics if begins_anew or name not in between]
    inputs = [tp for tp in plan.offsets if begins_anew or tp.topic not in between]
    return replace(
        plan,
        offsets=tuple(inputs) if offsets else (),
        topics=tuple(topics) if changelogs else (),
        state=plan.state if state else None,
    )


def carry_out(broker: Broker, plan: ResetPlan, *, yes: bool, json: bool) -> None:
    """Show a plan, ask, and carry it out. Raise InvalidRequest first if the app is running."""
    check_at_rest(broker, plan.app)
    if not json:
        output.note(f"resetting {plan.app} would" if not yes else f"resetting {plan.app}:")
        for step in plan.steps:
            output.note(f"  {step}")
        if plan.warning:
            output.note(f"note: {plan.warning}")
    agreed = confirmed("Do it?", yes=yes)
    if agreed:
        if not yes:
            check_at_rest(broker, plan.app)  # the app may have started before the answer
        delete_all(broker, plan.app, plan.state, plan.topics, plan.offsets)
    if json:
        output.document({"app": plan.app, "done": agreed, "steps": plan.steps})
    elif not agreed:
        output.note("nothing was changed; --yes does it")
    if not agreed:
        raise typer.Exit(1)
