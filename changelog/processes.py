"""State of other processes of this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from strandline.changelog.errors import StorageFailed

DEAD = "ZX"
"""State letters of a process that has ended: zombie (not yet reaped by its parent) and dead."""


def state_of(pid: int) -> tuple[str, str]:
    """Return the state letter and start time of a process; ("X", "") if it does not exist.

    Pids are reused, but the pair of pid and start time is unique.
    """
    if os.path.exists("/proc/self/stat"):
        try:
            content = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return "X", ""
        return parse_stat(content)
    answer = subprocess.run(
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, started = answer.stdout.strip().partition(" ")
    return (state[:1], started.strip()) if state else ("X", "")


def parse_stat(content: str) -> tuple[str, str]:
    """Return state and start time (clock ticks since boot) from the text of /proc/<pid>/stat.

    >>> parse_stat("12 (a) b)) S " + " ".join(str(n) for n in range(4, 25)))
    ('S', '22')
    """
    # The second field is the program's name in parentheses, which may contain any character.
    fields = content.rpartition(")")[2].split()
    if len(fields) < 20:
        raise StorageFailed(f"cannot read the process table: got {content!r}")
    return fields[0], fields[19]
