"""Detection of network file systems, which are refused.

Over NFS, SMB and similar protocols a lock may expire or be visible to one client only, fsync may
return before the data is safe, and a Unix socket does not reach the other machine. Two owners would
destroy the log.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from strandline.changelog.errors import StorageFailed

# fmt: off
NETWORK_FILE_SYSTEMS = frozenset([
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "smb2", "ncpfs", "ncp", "afs", "afpfs", "coda",
    "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "orangefs", "pvfs2", "panfs", "webdav",
    "davfs",
])
NETWORK_FUSE = frozenset([
    "sshfs", "glusterfs", "cephfs", "ceph", "s3fs", "gcsfuse", "rclone", "davfs", "davfs2",
    "smbnetfs", "juicefs", "blobfuse2", "goofys",
])
# fmt: on
"""Programs that mount network file systems through FUSE; their type is "fuse.<name>"."""


class MountPoint(NamedTuple):
    """A mounted file system."""

    folder: str
    kind: str
    """Type of the file system, in the kernel's words."""
    source: str

    @property
    def remote(self) -> bool:
        """True if other machines may write to the file system too."""
        return self.kind in NETWORK_FILE_SYSTEMS or self.kind.removeprefix("fuse.") in NETWORK_FUSE


def check_local(path: str | os.PathLike[str]) -> None:
    """Raise StorageFailed if `path` is on a network file system. The path need not exist."""
    folder = os.path.realpath(path)
    mount = mount_of(folder, _mounts())
    if mount is not None and mount.remote:
        raise StorageFailed(
            f"{folder} is on a network file system ({mount.kind}, {mount.source}, mounted on "
            f"{mount.folder}): locks and fsync do not hold there, so two processes could destroy "
            "the log; choose a folder on a local disk, and serve it to other machines with "
            "`strandline serve DIR --listen host:port`"
        )


def is_mount_point(path: str | os.PathLike[str]) -> bool:
    """Return True if a file system, or a part of one, is mounted on `path`."""
    folder = os.path.realpath(path)
    return any(mount.folder == folder for mount in _mounts())


def mount_of(folder: str, mounts: Iterable[MountPoint]) -> MountPoint | None:
    """Return the mount that holds `folder`: the deepest one, and the last of several on one folder.

    >>> mount_of("/a/b/c", [MountPoint("/", "ext4", "x"), MountPoint("/a", "nfs", "h:/a"), MountPoint("/a/bc", "xfs", "y")])
    MountPoint(folder='/a', kind='nfs', source='h:/a')
    """
    best: MountPoint | None = None
    for mount in mounts:
        inside = folder == mount.folder or folder.startswith(mount.folder.rstrip("/") + "/")
        if inside and (best is None or len(mount.folder) >= len(best.folder)):
            best = mount
    return best


def parse_mountinfo(text: str) -> list[MountPoint]:
    r"""Parse the mounts in Linux's /proc/self/mountinfo (proc(5)).

    >>> parse_mountinfo("36 35 98:0 /r /mnt\\040x rw,noatime master:1 - nfs4 host:/root rw\n")
    [MountPoint(folder='/mnt x', kind='nfs4', source='host:/root')]
    """
    mounts = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        places, kinds = before.split(" "), after.split(" ")
        if separator and len(places) > 4 and len(kinds) > 1:
            mounts.append(MountPoint(_unescaped(places[4]), kinds[0], _unescaped(kinds[1])))
    return mounts


def parse_mount_command(text: str) -> list[MountPoint]:
    """Parse the mounts that macOS's `mount` prints.

    >>> parse_mount_command("//me@nas/share on /Volumes/my share (smbfs, nodev, nosuid)")
    [MountPoint(folder='/Volumes/my share', kind='smbfs', source='//me@nas/share')]
    """
    found = re.findall(r"^(.+?) on (/.*) \((\w+)[,)]", text, flags=re.MULTILINE)
    return [MountPoint(folder, kind, source) for source, folder, kind in found]


def _mounts() -> list[MountPoint]:
    try:
        return parse_mountinfo(Path("/proc/self/mountinfo").read_text(errors="replace"))
    except OSError:  # not Linux
        answer = subprocess.run(["/sbin/mount"], capture_output=True, text=True, check=False)
        return parse_mount_command(answer.stdout)


def _unescaped(field: str) -> str:
    r"""Decode a field of mountinfo, which writes space, tab, newline and backslash as \ooo."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
