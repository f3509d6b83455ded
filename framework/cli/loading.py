"""Meaning of command line arguments: the app of `module:app`, and the log of `--log`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from strandline import changelog
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.location import check, check_exists, exists, is_kafka, is_url, shown
from strandline.framework.cli import logs

if TYPE_CHECKING:
    from strandline.changelog.log import Log
    from strandline.framework.app import App

DEFAULT_LOG = "data"
"""Folder that is the log without `--log`, if it exists."""


@contextmanager
def opened(log: str | None, *, create: bool = False, lasts: bool = False) -> Iterator[Log]:
    """Attach to the log of `--log` for as long as the command runs.

    A folder without a log is refused unless `create`. Warnings about brokers are hidden unless the
    command `lasts`, because a short command fails with an error of its own. Raises InvalidConfig.
    """
    where = location(log, create=create)
    with contextlib.nullcontext() if lasts else logs.only_errors():
        attached = changelog.open(where, role="attach_or_spawn")
        try:
            yield attached
        finally:
            attached.close()


def location(log: str | None, *, create: bool = False) -> str:
    """Return the folder or URL of `--log`. Raise InvalidConfig, or a usage error if there is none."""
    if log is None:
        if not Path(DEFAULT_LOG).is_dir():
            raise typer.BadParameter(
                "which log? Give --log DIR|URL, or set STRANDLINE_LOG (there is no ./data here)"
            )
        log = DEFAULT_LOG
    check(log)
    if not create:
        check_exists(log)
    return log


def folder(log: str | None) -> Path:
    """Return the folder of `--log`, for commands that read its files. Raise InvalidConfig."""
    return local(location(log))


def local(log: str) -> Path:
    """Return the folder `log`, for commands that read its files. Raise InvalidConfig for a URL."""
    check(log)
    if is_kafka(log):
        raise InvalidConfig(
            f"{shown(log)} is a Kafka cluster, and this is about the files of an embedded log. A "
            "cluster looks after its own: see kafka-log-dirs.sh and kafka-topics.sh --describe"
        )
    if is_url(log):
        raise InvalidConfig(
            f"{shown(log)} is served by another process; this needs the folder itself: run it "
            "where the log is, with --log DIR"
        )
    return Path(log)


def announced(log: object) -> str:
    """Return an app's log for a message: its location, and whether it is about to be made.

    A mistyped folder is noticed by that.
    """
    is_new = isinstance(log, str | os.PathLike) and not exists(log)
    return f"{shown(str(log))}{', a new log' if is_new else ''}"


def load_app(target: str) -> App:
    """Return the app that `module:app` names; `module` alone means `module:app`.

    Modules are also searched in the current folder. A path, such as shop/orders.py:app, is a module
    of its folder. Raises InvalidConfig.
    """
    from strandline.framework.app import App

    module_name, _, attribute = target.partition(":")
    folder = Path.cwd()
    if Path(module_name).suffix == ".py":
        folder, module_name = _file(Path(module_name), target)
    if str(folder) not in sys.path and ("" not in sys.path or folder != Path.cwd()):
        sys.path.insert(0, str(folder))
    module = importlib.import_module(_findable(module_name, folder, target))
    app = getattr(module, attribute or "app", None)
    if not isinstance(app, App):
        known = sorted(name for name, value in vars(module).items() if isinstance(value, App))
        raise InvalidConfig(
            f"{target!r}: module {module_name} has no App called {attribute or 'app'!r}; "
            f"its apps: {', '.join(known) or 'none'}"
        )
    return app


def _file(path: Path, target: str) -> tuple[Path, str]:
    """Return the folder on whose path a module file is importable, and the module's name."""
    if not path.is_file():
        raise InvalidConfig(f"{target!r}: there is no file {path}")
    inside = path.resolve()
    folder = inside.parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder, ".".join(inside.relative_to(folder).with_suffix("").parts)


def _findable(name: str, folder: Path, target: str) -> str:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise InvalidConfig(
            f"{target!r}: there is no module {name!r} in {folder} nor installed; write "
            "module:app, as shop.orders:app, or the path of its file"
        )
    return name
