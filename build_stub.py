"""Adds the public face to the wheel once more, as a stub for type checkers.

A single module cannot carry the marker py.typed (PEP 561), so checkers would take an installed
strandline.py for untyped. A stub package beside it is always believed.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class StubHook(BuildHookInterface[Any]):
    """Copies strandline.py to strandline-stubs/__init__.pyi."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # the source is at hand
            return
        self._folder = Path(tempfile.mkdtemp())
        stub = self._folder / "strandline.pyi"
        shutil.copyfile(Path(self.root) / "strandline.py", stub)
        build_data["force_include"][str(stub)] = "strandline-stubs/__init__.pyi"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self._folder)
