"""Settings of the Spark job that runs an app's workers. Nothing in this module needs Spark.

The job has one task for each worker, and its tasks do not end by themselves. So a task must not be
run twice at once by speculation, and must be run again as often as executors are lost.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from strandline.changelog.errors import InvalidConfig
from strandline.changelog.location import is_url, shown

MAX_FAILURES = "1000"
"""Number of failures of a worker's task after which Spark ends the job.

It counts lost executors over the whole life of the job, and bounds a task that fails at once.
"""
FEW_FAILURES = 100
"""Number of failures below which the setting of a running session gets a warning."""
PORT_SETTING = "spark.strandline.port"
"""Setting for the port at which the driver listens for its workers; 0, the default, is any."""
MASTERS = ("local", "spark://", "yarn", "k8s://")
"""Beginnings of the masters that Spark has."""
OFF = {
    "spark.speculation": "speculation would run a second copy of a worker",
    "spark.dynamicAllocation.enabled": (
        "dynamic allocation removes and adds executors by load, and the load of this job is constant"
    ),
}
"""Settings that must be false for the job, with the reason."""
_LOCAL = re.compile(r"local(?:\[([0-9]+|\*)(?:,\s*([0-9]+))?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")


@dataclass(frozen=True)
class SparkPlace:
    """Cluster, number and needs of an app's workers on Spark."""

    master: str | None
    """Spark's master; None leaves it to Spark's own configuration."""
    workers: int
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Spark settings, by name. They may contain secrets."""
    py_files: tuple[str, ...] = ()
    """Modules (.py) and zipped packages that executors get."""
    archives: tuple[str, ...] = ()
    """Archives that executors unpack, as `path#folder`."""
    state_dir: str | None = None
    """Folder for the state of apps on each executor; None for the default."""


def check_place(place: SparkPlace) -> None:
    """Raise InvalidConfig if settings, files or master do not fit the job."""
    if place.workers < 1:
        raise InvalidConfig(f"workers is at least 1, got {place.workers!r}")
    if place.master is not None and not place.master.startswith(MASTERS):
        raise InvalidConfig(
            f"Spark's master is local[N], spark://host:port, yarn or k8s://https://host:port, got "
            f"{place.master!r}"
        )
    settings_for(place)
    check_files(place.py_files, "--py-files")
    check_files(place.archives, "--archives")


def settings_for(place: SparkPlace) -> dict[str, str]:
    """Return the settings of a new Spark application for the job.

    Raises:
        InvalidConfig: A given setting would make workers run twice or be removed.

    >>> made = settings_for(SparkPlace("spark://db:7077", 3, {"spark.executor.cores": "2"}))
    >>> made["spark.cores.max"], made["spark.executor.instances"], made["spark.speculation"]
    ('4', '2', 'false')
    """
    check_off(place.config, "give --conf without it")
    cores = _number(place.config, "spark.executor.cores", 1)
    each = max(1, cores // _number(place.config, "spark.task.cpus", 1))
    executors = math.ceil(place.workers / each)
    return {
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": MAX_FAILURES,
        "spark.executor.instances": str(executors),
        "spark.cores.max": str(executors * max(cores, _number(place.config, "spark.task.cpus", 1))),
        **place.config,
        **dict.fromkeys(OFF, "false"),
    }


def check_off(config: Mapping[str, str], remedy: str) -> None:
    """Raise InvalidConfig if a setting that must be false is true."""
    for name, why in OFF.items():
        if config.get(name, "false").strip().lower() == "true":
            raise InvalidConfig(f"{name} is true, but {why}; {remedy}")


def check_running(config: Mapping[str, str], master: str, place: SparkPlace) -> str:
    """Return a warning about a running session, "" if there is none to give.

    Raises:
        InvalidConfig: The session does not fit the job.
    """
    check_off(config, "stop the session, and let sl.spark.run make one")
    if place.master is not None and with_retries(place.master) != with_retries(master):
        raise InvalidConfig(
            f"a Spark session runs on {master!r}, and the workers are to run on {place.master!r}; "
            "stop that session first (spark.stop()), or leave out master"
        )
    local = _LOCAL.fullmatch(master)
    few = _number(config, "spark.task.maxFailures", 4)
    if local is not None:
        few = int(local[2] or 1)
    if few >= FEW_FAILURES:
        return ""
    remedy = "master local[N,1000]" if local else f"spark.task.maxFailures={MAX_FAILURES}"
    return (
        f"Spark ends this job after {few} failures of a worker's task, lost executors included; "
        f"make the session with {remedy}"
    )


def with_retries(master: str) -> str:
    """Return a master on which a failed task is run again; without a number `local` does not.

    >>> with_retries("local[2]"), with_retries("local"), with_retries("local[2,4]"), with_retries("yarn")
    ('local[2,1000]', 'local[1,1000]', 'local[2,4]', 'yarn')
    """
    found = _LOCAL.fullmatch(master)
    if found is None or found[2]:
        return master
    return f"local[{found[1] or 1},{MAX_FAILURES}]"


def is_on_this_machine(master: str) -> bool:
    """Return True if all executors run on the driver's machine.

    >>> [is_on_this_machine(m) for m in ("local[*]", "local-cluster[2,1,1024]", "spark://db:7077")]
    [True, True, False]
    """
    return bool(_LOCAL.fullmatch(master) or _LOCAL_CLUSTER.fullmatch(master))


def slots_of(master: str, cpus: int = 1) -> int | None:
    """Return the number of slots of a master on this machine; None if it is not known.

    >>> slots_of("local[3]"), slots_of("local"), slots_of("local-cluster[2,4,1024]", 2), slots_of("yarn")
    (3, 1, 4, None)
    """
    if found := _LOCAL.fullmatch(master):
        return (os.cpu_count() or 1 if found[1] == "*" else int(found[1] or 1)) // cpus
    if found := _LOCAL_CLUSTER.fullmatch(master):
        return int(found[1]) * (int(found[2]) // cpus)
    return None


def check_log(log: str | None, master: str) -> None:
    """Raise InvalidConfig for a log in a folder if executors run on other machines."""
    if log is not None and not is_url(log) and not is_on_this_machine(master):
        raise InvalidConfig(
            f"the log {log} is a folder of this machine, and executors of {shown(master)} run on "
            "others; serve it with `strandline serve`, and give the workers its URL "
            "(--log strandline://host:port), or use a Kafka cluster"
        )


def shipping(target: str, py_files: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the app as executors import it, and the files that they get.

    A module given by its path is among these files. Raises InvalidConfig for one inside a package.
    """
    module, _, attribute = target.partition(":")
    path = Path(module)
    if path.suffix != ".py":
        return target, py_files
    if not path.is_file():
        raise InvalidConfig(f"{target!r}: there is no file {path}")
    if (path.parent / "__init__.py").exists():
        raise InvalidConfig(
            f"{target!r}: {path} is part of a package, which executors need as a whole; zip the "
            "package, give it with --py-files, and name the app as package.module:app"
        )
    named = f"{path.stem}:{attribute}" if attribute else path.stem
    return named, tuple(dict.fromkeys([*py_files, str(path)]))


def check_files(paths: tuple[str, ...], option: str) -> None:
    """Raise InvalidConfig for a local file that does not exist."""
    for path in paths:
        local = path.partition("#")[0].removeprefix("file:")
        if not is_url(path) and not os.path.exists(local):
            raise InvalidConfig(f"{option}: there is no file {local}")


def _number(config: Mapping[str, str], name: str, default: int) -> int:
    text = config.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise InvalidConfig(f"{name} is a number, got {text!r}") from None
