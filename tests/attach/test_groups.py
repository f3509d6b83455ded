"""Members of a group in several processes: deaths, stalls, takeover."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline import changelog
from tests.attach.conftest import Process

Start = Callable[..., Process]
Eventually = Callable[..., None]
ALL = {"0", "1", "2", "3"}


def with_topic(folder: Path) -> changelog.Log:
    """Open the log, owned by the test, with the topic that the helpers subscribe to."""
    log = changelog.open(folder)
    log.create_topic("t", 4)
    log.append("t", [{"key": b"%d" % n, "value": b""} for n in range(100)])
    return log


def assigned(process: Process) -> set[str]:
    return set(process.ask("poll").split()) - {"-"}


def shared(*processes: Process) -> bool:
    """Return True if the processes own all partitions, each one once, in equal numbers."""
    shares = [assigned(process) for process in processes]
    return sorted(p for share in shares for p in share) == sorted(ALL) and all(shares)


def test_the_partitions_of_a_killed_member_are_assigned_to_the_other_at_once(
    tmp_path: Path, start: Start, eventually: Eventually
) -> None:
    with with_topic(tmp_path / "log"):
        one, other = start(), start()
        for process in (one, other):
            process.ask("subscribe 60000")
        eventually(lambda: shared(one, other), what="sharing")
        begun = time.monotonic()
        one.kill()
        eventually(lambda: assigned(other) == ALL, timeout=20, what="taking over")
        assert time.monotonic() - begun < 20  # sooner than the session timeout of a minute
        assert other.ask("commit-offsets") == "done"


def test_a_member_that_stalls_past_its_session_is_fenced_and_rejoins(
    tmp_path: Path, start: Start, eventually: Eventually
) -> None:
    with with_topic(tmp_path / "log"):
        one, other = start(), start()
        for process in (one, other):
            process.ask("subscribe 1000")
        eventually(lambda: shared(one, other), what="sharing")
        one.stop()
        eventually(lambda: assigned(other) == ALL, what="taking over")
        one.go_on()
        assert one.ask("commit-offsets") == "MemberFenced"
        eventually(lambda: shared(one, other), what="sharing again")
        assert one.ask("commit-offsets") == other.ask("commit-offsets") == "done"


@pytest.mark.long
def test_a_static_member_keeps_its_partitions_while_it_is_away_for_less_than_a_session(
    tmp_path: Path, start: Start, eventually: Eventually
) -> None:
    with with_topic(tmp_path / "log"):
        one, other = start(), start()
        one.ask("subscribe 60000 first")
        other.ask("subscribe 60000 second")
        eventually(lambda: shared(one, other), what="sharing")
        before = assigned(one), assigned(other)
        one.kill()
        back = start()
        back.ask("subscribe 60000 first")
        eventually(lambda: assigned(back) == before[0], what="coming back")
        assert assigned(other) == before[1]


def test_members_continue_under_another_owner(
    tmp_path: Path, start: Start, eventually: Eventually
) -> None:
    with with_topic(tmp_path / "log"):
        pass
    owner = start()
    assert owner.state == "owning"
    one, other = start(), start()
    for process in (one, other):
        process.ask("subscribe 10000")
    eventually(lambda: shared(one, other), what="sharing")
    owner.kill()

    def share_again() -> bool:
        """Retry, because the members may not have noticed yet that their membership is lost."""
        return shared(one, other) and {one.ask("commit-offsets"), other.ask("commit-offsets")} == {
            "done"
        }

    eventually(share_again, what="sharing under another owner")
