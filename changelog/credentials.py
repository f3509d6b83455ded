"""The token of this process, from its environment.

    STRANDLINE_TOKEN         the token itself
    STRANDLINE_TOKEN_FILE    the path of a file that contains only the token; used if
                             STRANDLINE_TOKEN is not set

No command takes a token as an argument, because every user of a machine can read the arguments of
its processes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from strandline.changelog.errors import InvalidConfig, from_os_error

TOKEN_VARIABLE = "STRANDLINE_TOKEN"  # noqa: S105
TOKEN_FILE_VARIABLE = "STRANDLINE_TOKEN_FILE"  # noqa: S105
HOW_TO_GIVE_ONE = f"give it in {TOKEN_VARIABLE}, {TOKEN_FILE_VARIABLE} or as token=…"
MAX_TOKEN_FILE_BYTES = 1 << 16


def token_of(environment: Mapping[str, str] = os.environ) -> str:
    """Return the token of the environment; empty if there is none.

    Raises:
        InvalidConfig: The file named by STRANDLINE_TOKEN_FILE contains no token.
        StorageFailed: The file cannot be read.

    >>> token_of({"STRANDLINE_TOKEN": "open sesame"})
    'open sesame'
    """
    path = environment.get(TOKEN_FILE_VARIABLE, "")
    return environment.get(TOKEN_VARIABLE, "") or (read_token(path) if path else "")


def read_token(path: str | os.PathLike[str]) -> str:
    """Return the token in the file at `path`, without surrounding white space.

    Raises:
        InvalidConfig: There is no such file, or it contains no token.
        StorageFailed: The file cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_TOKEN_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InvalidConfig(f"there is no file {path}; write the token into one") from None
    except OSError as error:
        raise from_os_error(error, "read", str(path)) from error
    try:
        token = content.decode().strip()
    except UnicodeDecodeError:
        token = ""
    if not token or len(content) > MAX_TOKEN_FILE_BYTES or "\n" in token:
        # The message omits the content, which may be a secret.
        raise InvalidConfig(
            f"{path} holds no token; one line of UTF-8 with nothing else is expected"
        )
    return token
