"""A folder for a Unix socket that only this user may reach."""

from __future__ import annotations

import os
import re
import shutil
import tempfile

MAX_SOCKET_PATH = 100
"""Bytes; the kernel's limit is 107 on Linux, 103 on macOS."""
_PLAIN = re.compile(r"[\w/.+-]+", re.ASCII)
"""Characters that a URL does not change."""


def private_socket(name: str) -> str:
    """Return a path for a new socket in a new folder of mode 0700; `remove_private` removes it.

    Where the folder for temporary files has too long a name for a socket, or characters that a URL
    changes, it is in /tmp.
    """
    path = os.path.join(tempfile.mkdtemp(prefix="strandline-"), name)
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH and _PLAIN.fullmatch(path):
        return path
    remove_private(path)
    return os.path.join(tempfile.mkdtemp(prefix="strandline-", dir="/tmp"), name)


def remove_private(path: str) -> None:
    """Remove the folder of a path from `private_socket`; harmless when repeated."""
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)
