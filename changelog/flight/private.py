"""Folders for Unix sockets that only this user can access."""

from __future__ import annotations

import os
import re
import shutil
import tempfile

from strandline.changelog.errors import StorageFailed

MAX_SOCKET_PATH_BYTES = 100
"""Maximum length of a socket's path in bytes; the kernel's limit is 107 on Linux, 103 on macOS."""
PREFIX = "strandline-"
"""Beginning of the names of private folders."""
_PLAIN = re.compile(r"[\w/.+-]+", re.ASCII)
"""Paths whose characters a URL does not escape."""


def fits(path: str) -> bool:
    """Return True if a socket may have this path: it is short, and a URL escapes nothing in it."""
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES and bool(_PLAIN.fullmatch(path))


def temporary_folder() -> str:
    """Return the folder for temporary files. Raises StorageFailed if none can be written."""
    try:
        return tempfile.gettempdir()
    except OSError as error:
        raise StorageFailed(
            f"a socket needs a folder for temporary files, and none can be written ({error}); set TMPDIR "
            "to a folder with a short path, or mount one at /tmp"
        ) from error


def private_socket(name: str) -> str:
    """Return a path for a new socket in a new folder of mode 0700; `remove_private` removes it.

    The folder is in /tmp if the path of the default folder for temporary files is too long for a
    socket, or has characters that a URL escapes. Raises StorageFailed.
    """
    path = os.path.join(tempfile.mkdtemp(prefix=PREFIX, dir=temporary_folder()), name)
    if fits(path):
        return path
    remove_private(path)
    return os.path.join(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"), name)


def remove_private(path: str) -> None:
    """Remove the folder of a path from `private_socket`. Idempotent."""
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)
