"""Ownership rule for files and sockets: other users must not control this process through them.

The rule is that of ssh for its own files: they must belong to the user of this process or to root,
and no other user may write them. A group named like the user, without other members, counts as the
user. A process that listens on a Unix socket must run as the user of this process or as root.
"""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat

from strandline.changelog.errors import UntrustedFolder

TRUST_VARIABLE = "STRANDLINE_TRUST"
"""Environment variable that turns the rule off if it is "1"."""

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0


def is_trusted(user: int) -> bool:
    """Return True for the user of this process, root, and every user if the rule is off."""
    return user in (os.geteuid(), _ROOT) or os.environ.get(TRUST_VARIABLE) == "1"


def check_owner(found: os.stat_result, path: str) -> None:
    """Raise UntrustedFolder if another user owns the file or folder `path`."""
    if not is_trusted(found.st_uid):
        why = f"belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}"
        raise _untrusted(path, why, "run it as that user, or change the owner")


def check_trusted(found: os.stat_result, path: str) -> None:
    """Raise UntrustedFolder if another user owns the file or folder `path`, or may write it."""
    check_owner(found, path)
    mode = found.st_mode
    if not mode & _OTHERS or os.environ.get(TRUST_VARIABLE) == "1":
        return
    if mode & stat.S_IWOTH or not _is_only_ours(found.st_gid, os.geteuid()):
        why = f"can be written by others (mode {stat.S_IMODE(mode):o}, group {found.st_gid})"
        raise _untrusted(path, why, f"run `chmod go-w {path}`")


def _untrusted(path: str, why: str, way_out: str) -> UntrustedFolder:
    return UntrustedFolder(
        f"{path} {why}: what it says could be theirs; {way_out}, or set {TRUST_VARIABLE}=1 if all who "
        "can write there are trusted"
    )


@functools.cache
def _is_only_ours(group: int, user: int) -> bool:
    """Return True for the user's private group, as many systems create one for each user."""
    try:
        who, what = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    return (
        what.gr_name == who.pw_name and who.pw_gid == group and not {*what.gr_mem} - {who.pw_name}
    )
