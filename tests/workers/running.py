"""The pipeline, run by processes of its own: its log, its input, and its workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from strandline.changelog.groups import MemberInfo
from tests.systems import System
from tests.workers.pipeline import Pipeline, judge, pipeline, some
from tests.workers.processes import Process

TARGET = "tests.workers.supervised:app"
"""App of the pipeline, for `strandline run`."""

Eventually = Callable[..., None]


class AttachedPipeline:
    """A pipeline that other processes run, as this process sees it.

    Args:
        system: System that holds the log.
        eventually: Function that waits for a condition.
    """

    def __init__(self, system: System, eventually: Eventually) -> None:
        self.system = system
        self.given: list[tuple[str, int]] = []
        self.processes: list[Process] = []
        self._eventually = eventually
        self._made: Pipeline | None = None

    @property
    def made(self) -> Pipeline:
        """The app, attached to the log, or in a folder its owner if there is no other."""
        if self._made is None:
            self._made = pipeline(self.system.url, prefix=self.system.prefix)
            self._made.app.prepare()
        return self._made

    def write(self, count: int) -> None:
        more = some(count, start=len(self.given))
        self.made.words.append(more)
        self.given += more

    def members(self) -> list[MemberInfo]:
        return list(self.made.app.broker().describe_group(self.made.app.name).members)

    def close(self) -> None:
        if self._made is not None:
            self._made.app.close()
            self._made = None


class RunningPipeline(AttachedPipeline):
    """A pipeline whose workers `strandline run` starts.

    Args:
        system: System that holds the log.
        folder: Folder for the output of the processes.
        eventually: Function that waits for a condition.
        patience_s: Seconds to wait for workers.
    """

    def __init__(
        self, system: System, folder: Path, eventually: Eventually, patience_s: float = 60
    ) -> None:
        super().__init__(system, eventually)
        self.said = folder / "said"
        self._patience_s = patience_s

    def run(self, target: str, *options: str) -> Process:
        """Start `strandline run`, and wait until it has the log."""
        arguments = ["strandline", "run", target, "--log", self.system.url, *options]
        environment = {"STATE": str(self.system.state), "PREFIX": self.system.prefix}
        self.processes.append(Process(arguments, self.said, environment=environment))
        self._eventually(lambda: "Ctrl-C commits" in self.text(), timeout=60, what="a start")
        return self.processes[-1]

    def text(self) -> str:
        return self.said.read_text() if self.said.exists() else ""

    def pids(self) -> list[int]:
        """Return the process ids of the workers that are members of the app's group."""
        return [int(member.client.rpartition("-")[2]) for member in self.members() if member.held]

    def at_work(self, count: int, *, but: int = 0) -> list[int]:
        """Wait until `count` workers share the partitions, none of which is process `but`."""

        def are() -> bool:
            pids = self.pids()
            return len(pids) == count and but not in pids

        self._eventually(are, timeout=self._patience_s, what=f"{count} workers at work")
        return self.pids()

    def all_right(self) -> bool:
        """Return True if every record is counted once; False while some are still to come."""
        return judge(self.made, self.given) == []
