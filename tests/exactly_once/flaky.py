"""A log whose calls fail as planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strandline.changelog.broker import Broker

CALLS = ("append", "add_offsets", "end_transaction", "commit_offsets")


class Flaky:
    """A log whose calls fail: `plan[call]` lists the fate of the next calls, one by one.

    None     the call works
    error    it is raised instead of the call
    after    a tuple ("after", error): it is raised after the call was carried out
    action   it is called before the call
    """

    def __init__(self, broker: Broker) -> None:
        self.plan: dict[str, list[Any]] = {}
        for name in CALLS:
            setattr(broker, name, self._wrapped(name, getattr(broker, name)))

    def will(self, plan: Mapping[str, Sequence[Any]]) -> None:
        """Follow another plan from now on."""
        self.plan = {name: list(planned) for name, planned in plan.items()}

    @property
    def is_done(self) -> bool:
        """True once everything planned has happened."""
        return not any(self.plan.values())

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def flaky(*args: Any, **options: Any) -> Any:
            planned = self.plan.get(name)
            what = planned.pop(0) if planned else None
            if isinstance(what, BaseException):
                raise what
            if callable(what):
                what()
            answer = call(*args, **options)
            if isinstance(what, tuple):
                raise what[1]
            return answer

        return flaky
