"""Other processes of this machine, as the system knows them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from strandline.changelog.errors import StorageFailed

DEAD = "ZX"
"""States of a process that has ended, whether or not its parent has taken note."""


def state_of(pid: int) -> tuple[str, str]:
    """State letter and start time of a process; ("X", "") if there is none.

    Pids come again; pid and start time together do not.
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
    """State and start time (clock ticks since boot) in the text of /proc/<pid>/stat.

    >>> parse_stat("12 (a) b)) S " + " ".join(str(n) for n in range(4, 25)))
    ('S', '22')
    """
    # The second field is the program's name in parentheses, which may hold any character.
    fields = content.rpartition(")")[2].split()
    if len(fields) < 20:
        raise StorageFailed(f"cannot read the process table: got {content!r}")
    return fields[0], fields[19]
