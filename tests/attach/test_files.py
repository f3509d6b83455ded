"""The endpoint file, the life of processes, and local file systems."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from strandline.changelog.embedded import filesystem
from strandline.changelog.embedded.filesystem import (
    MountPoint,
    mount_of,
    parse_mount_command,
    parse_mountinfo,
)
from strandline.changelog.errors import CorruptLog, FutureFormat, StorageFailed
from strandline.changelog.flight import endpoint as endpoints
from strandline.changelog.processes import state_of


def test_an_endpoint_file_is_read_as_written_and_removed_only_by_its_owner(tmp_path):
    mine = endpoints.new_endpoint(tmp_path)
    endpoints.publish(tmp_path, mine)
    assert endpoints.read(tmp_path) == mine
    other = endpoints.new_endpoint(tmp_path)
    assert other.token != mine.token
    endpoints.withdraw(tmp_path, other)
    assert endpoints.read(tmp_path) == mine
    endpoints.withdraw(tmp_path, mine)
    assert endpoints.read(tmp_path) is None
    assert os.listdir(tmp_path) == []


def test_the_socket_is_in_the_folder_at_whatever_path_that_is_mounted(tmp_path):
    """Another container may have the same folder at another path."""
    mine = endpoints.new_endpoint(tmp_path)
    elsewhere = mine.location.replace(str(tmp_path.resolve()), "/srv/elsewhere")
    assert elsewhere != mine.location
    endpoints.publish(tmp_path, msgspec.structs.replace(mine, location=elsewhere))
    assert endpoints.read(tmp_path) == mine


def test_an_endpoint_file_of_a_future_version_or_another_kind_is_refused():
    with pytest.raises(FutureFormat, match="version 2"):
        endpoints.parse(b'{"version": 2, "anything": []}')
    for broken in (b"", b"{}", b"[1]", b'{"version": 1, "pid": "x"}'):
        with pytest.raises(CorruptLog, match="delete it"):
            endpoints.parse(broken)


def test_a_process_is_identified_by_pid_and_start_time(tmp_path, eventually):
    mine = endpoints.new_endpoint(tmp_path)
    assert mine.life() == "alive"
    fields = {name: getattr(mine, name) for name in mine.__struct_fields__}
    assert endpoints.OwnerEndpoint(**{**fields, "started": "1"}).life() == "dead"
    assert endpoints.OwnerEndpoint(**{**fields, "namespace": "pid:[1]"}).life() == "unknown"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    state, started = state_of(child.pid)
    assert state in "RSD"
    theirs = endpoints.OwnerEndpoint(**{**fields, "pid": child.pid, "started": started})
    assert theirs.life() == "alive"
    child.send_signal(19)
    eventually(lambda: theirs.life() == "stopped", timeout=5)
    child.kill()
    eventually(lambda: theirs.life() == "dead", timeout=5)  # a zombie at first
    child.communicate()
    assert theirs.life() == "dead"


MOUNTINFO = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 252:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 27 0:50 / /home rw,relatime - nfs4 nas:/home rw,vers=4.2
41 40 0:51 / /home/me/local\040disk rw - xfs /dev/sdb rw
42 27 0:52 / /mnt/cloud rw - fuse.sshfs me@host: rw
43 27 0:53 / /mnt/usb rw - fuseblk /dev/sdc rw
not a mount
"""


@pytest.mark.parametrize(
    ("folder", "kind", "remote"),
    [
        ("/var/data", "ext4", False),
        ("/home", "nfs4", True),
        ("/home/me/log", "nfs4", True),
        ("/homes/me", "ext4", False),
        ("/home/me/local disk/log", "xfs", False),
        ("/mnt/cloud/log", "fuse.sshfs", True),
        ("/mnt/usb/log", "fuseblk", False),
    ],
)
def test_the_deepest_mount_decides_about_a_path(folder, kind, remote):
    mount = mount_of(folder, parse_mountinfo(MOUNTINFO))
    assert mount is not None
    assert (mount.kind, mount.remote) == (kind, remote)


def test_the_last_of_several_mounts_on_one_folder_decides():
    stacked = [MountPoint("/a", "nfs", "x"), MountPoint("/a", "ext4", "y")]
    assert mount_of("/a/b", stacked) == stacked[1]


def test_file_systems_are_recognised_on_macos():
    text = (
        "/dev/disk1s1 on / (apfs, sealed, local, read-only, journaled)\n"
        "//me@nas/share on /Volumes/share (smbfs, nodev, nosuid, mounted by me)\n"
        "nas:/export on /Volumes/on top (of) (nfs)\n"
    )
    mounts = parse_mount_command(text)
    assert [mount.kind for mount in mounts] == ["apfs", "smbfs", "nfs"]
    assert mounts[2].folder == "/Volumes/on top (of)"


def test_a_network_file_system_is_refused_with_the_reason(tmp_path, monkeypatch):
    filesystem.check_local(tmp_path / "not there yet")
    monkeypatch.setattr(filesystem, "_mounts", lambda: [MountPoint("/", "nfs4", "nas:/export")])
    with pytest.raises(StorageFailed, match=r"nfs4, nas:/export.*local disk.*strandline serve"):
        filesystem.check_local(tmp_path)
