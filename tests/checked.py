"""Run the check that users can run on their folder on every log of a test, after the test."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.changelog.embedded.checking.findings import CheckReport, Severity
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import LogLocked
from strandline.changelog.layout import FOLDER_META, LOCK
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.storage import Storage
from strandline.statestore.checking.stores import check_stores

AT_MOST = 20
"""Maximum number of logs checked per test: the last ones opened."""


class OpenedLogs:
    """Logs that a test opens."""

    def __init__(self, ignored: Collection[str]) -> None:
        self._ignored = ignored
        self._owners: list[tuple[Owner, Storage, Any]] = []

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Note every owner that is opened from now on."""
        init = Owner.__init__

        def noting(owner: Owner, storage: Storage, **options: Any) -> None:
            self._owners = [known for known in self._owners if known[1] is not storage]
            self._owners.append((owner, storage, options.get("clock")))
            init(owner, storage, **options)

        monkeypatch.setattr(Owner, "__init__", noting)

    def check(self, folder: Path | None) -> None:
        """Check the noted logs, and the logs in `folder` that other processes have opened."""
        seen = set()
        for owner, storage, clock in self._owners[-AT_MOST:]:
            if isinstance(storage, LocalStorage):
                seen.add(storage.root.resolve())
                self._check_folder(storage.root, clock)
            elif getattr(owner, "_thread", None) is None or owner._closed:
                if hasattr(storage, "power_cut"):
                    storage.crash()  # the test's hooks no longer apply
                self._verify(check_log(storage, clock=clock).report)
        for root in logs_in(folder):
            if root.resolve() not in seen:
                self._check_folder(root, None)

    def _check_folder(self, root: Path, clock: Any) -> None:
        """Check a folder on disk, unless a process still has it open."""
        storage = LocalStorage(root)
        if not (root / FOLDER_META).exists():
            return
        try:
            lock = storage.lock(LOCK, "a test\n")
        except LogLocked:
            return
        try:
            checked = check_log(storage, clock=clock)
            check_stores(root, checked)
            self._verify(checked.report)
        finally:
            lock.release()

    def _verify(self, report: CheckReport) -> None:
        """Fail with the findings. Notes are ignored, because every crash leaves some."""
        wrong = [
            found
            for found in report.findings
            if found.severity > Severity.NOTE and found.kind not in self._ignored
        ]
        assert not wrong, "\n".join(f"{found.file}: {found.what}" for found in wrong)


def logs_in(folder: Path | None) -> Iterator[Path]:
    """Yield the log folders below a folder."""
    if folder is not None:
        yield from (meta.parent for meta in folder.rglob(FOLDER_META))
