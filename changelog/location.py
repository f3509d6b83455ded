"""Locations of logs as users write them: a folder, or the URL of a log on the network.

    data/log                                the folder of an embedded log
    kafka://host:port                       an Apache Kafka cluster (changelog/kafka/address.py)
    strandline://host:port, grpc://…        a served log (changelog/flight/address.py)

Any other text that begins with `word:/` is a mistake, and is rejected everywhere. As a folder it
would be created, with a password of the URL in its name.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from urllib.parse import unquote

from strandline.changelog.errors import FolderLost, InvalidConfig
from strandline.changelog.layout import FOLDER_META

KAFKA = "kafka"
KAFKA_VARIABLE = "STRANDLINE_KAFKA"
"""Environment variable with properties for all Kafka clusters, written as in a URL."""
SERVED = {
    "strandline": "grpc+tcp",
    "grpc": "grpc+tcp",
    "grpc+tcp": "grpc+tcp",
    "strandline+tls": "grpc+tls",
    "grpc+tls": "grpc+tls",
}
"""Schemes of served logs, and Flight's name for each."""

_URL = re.compile(r"([a-z][\w+.-]*)://", re.IGNORECASE)
_HOST_AND_PORT = re.compile(r"(?:[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:]+\]):[0-9]{2,5}")
_LIKE_URL = re.compile(r"([a-z][\w+.-]*):/+", re.IGNORECASE)
_USER = re.compile(r"(:/+)[^/]*@")


def is_url(log: str | os.PathLike[str]) -> bool:
    """Return True for a URL, False for a folder.

    >>> is_url("kafka://db"), is_url("./data"), is_url("data/a://b")
    (True, False, False)
    """
    return _URL.match(os.fspath(log)) is not None


def is_kafka(log: str | os.PathLike[str]) -> bool:
    """Return True for the URL of a Kafka cluster.

    >>> is_kafka("kafka://db:9092"), is_kafka("strandline://db"), is_kafka("./data")
    (True, False, False)
    """
    found = _URL.match(os.fspath(log))
    return found is not None and found[1] == KAFKA


def is_served(log: str) -> bool:
    """Return True for the URL of a log served with Strandline's protocol.

    >>> is_served("strandline://db:7361"), is_served("./data"), is_served("kafka://x:9092")
    (True, False, False)
    """
    found = _URL.match(log)
    return found is not None and found[1] in SERVED


def is_encrypted(log: str | os.PathLike[str]) -> bool:
    """Return True if the connection to the log uses TLS.

    >>> is_encrypted("strandline+tls://db"), is_encrypted("strandline://db"), is_encrypted("./data")
    (True, False, False)
    >>> is_encrypted("kafka://db?security.protocol=SASL_SSL"), is_encrypted("kafka://db")
    (True, False)
    """
    text = os.fspath(log)
    found = _URL.match(text)
    if found is None:
        return False
    if found[1] == KAFKA:
        given = options_of(os.environ.get(KAFKA_VARIABLE, ""))
        given |= options_of(text.partition("?")[2])
        protocol = given.get("security.protocol", "")
        return protocol.lower() in ("ssl", "sasl_ssl")
    return SERVED.get(found[1], "").endswith("+tls")


def options_of(query: str) -> dict[str, str]:
    """Return the options of a URL, given the part after "?". Raises InvalidConfig.

    If a name occurs twice, the last value counts. Any character may be percent-encoded; `%`, `&`,
    and `=` in a name must be. A plus sign is not a space.

    >>> options_of("token=a+b%26c=%25&x=")
    {'token': 'a+b&c=%', 'x': ''}
    """
    found = {}
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        try:
            found[unquote(name, errors="strict")] = unquote(value, errors="strict")
        except UnicodeDecodeError:
            # The message omits the value, which may be a secret.
            raise InvalidConfig(
                f"the option {name} of the URL is not UTF-8, percent-encoded; write % as %25"
            ) from None
    return found


def shown(log: str) -> str:
    """Return a location without secrets: without a URL's options, user and password.

    >>> shown("strandline://db?token=secret"), shown("./data"), shown("./what?")
    ('strandline://db', './data', './what?')
    >>> shown("kafka://db:9092?sasl.password=secret"), shown("http://me:secret@db")
    ('kafka://db:9092', 'http://db')
    """
    return _USER.sub(r"\1", log.partition("?")[0]) if _LIKE_URL.match(log) else log


def check(log: str | os.PathLike[str]) -> None:
    """Raise InvalidConfig for a text that is neither a folder nor the URL of a log."""
    text = os.fspath(log)
    found = _URL.match(text)
    if found is None or found[1] not in {KAFKA, *SERVED}:
        check_folder(text)


def check_present(folder: Path) -> None:
    """Raise FolderLost if no log is at the path of one that was open before.

    A process that opened the path as if for the first time would create an empty log there, and
    acknowledge what is appended to it.
    """
    if not exists(folder):
        raise FolderLost(
            f"{folder} was removed or moved while in use: nothing is made at its path; put it back, or "
            "start again for a new log"
        )


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise InvalidConfig for a path that looks like a URL, or like the address of a host.

    >>> check_folder("data"), check_folder("./kafka:/data"), check_folder("./localhost:9092")
    (None, None, None)
    """
    text = os.fspath(path)
    if _HOST_AND_PORT.fullmatch(text) and not os.path.exists(text):
        raise InvalidConfig(
            f"{text}: this is a host and a port, and the URL of a log has a scheme: kafka://{text} "
            f"for a Kafka cluster, strandline://{text} for `strandline serve`; a folder of that "
            f"name is ./{text}"
        )
    found = _LIKE_URL.match(text)
    if found is None:
        return
    name, scheme = shown(text), found[1].lower()
    url = f"{scheme}://{name[found.end() :]}"
    if scheme not in {KAFKA, *SERVED}:
        why = (
            "a log is a folder, strandline://host:port (strandline+tls:// with TLS), or "
            "kafka://host:port"
        )
    elif name == url:
        why = "this is the URL of a log that is elsewhere, and the folder of one is needed"
    else:
        why = f"the URL is written {url}, as text (a Path takes the second slash away)"
    raise InvalidConfig(f"{name}: {why}; a folder of that name is ./{found[1]}:/…")


def exists(log: str | os.PathLike[str]) -> bool:
    """Return True for a URL, and for the folder of a log."""
    return is_url(log) or (Path(log) / FOLDER_META).exists()


def log_around(path: str | os.PathLike[str]) -> Path | None:
    """Return the folder of the log that a path leads into, also by links; None if it is in none."""
    real = Path(os.path.realpath(path))
    around = (folder for folder in (real, *real.parents) if os.path.exists(folder / FOLDER_META))
    return next(around, None)


def check_exists(log: str | os.PathLike[str]) -> None:
    """Raise InvalidConfig unless `log` is the folder of a log, or a URL.

    For programs that only read, because opening a mistyped path would create an empty log there.
    The error suggests logs nearby: inside the folder, and next to it with a similar name.
    """
    if exists(log):
        return
    where = Path(log)
    what = f"{where} holds no log" if where.is_dir() else f"there is no folder {where}"
    near = _logs_near(where)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    raise InvalidConfig(
        f"{what}{meant}; reading makes none. A log is made by an app that runs, by "
        f"changelog.open({os.fspath(log)!r}), and by `strandline topics create`"
    )


def _logs_near(where: Path) -> list[str]:
    inside = sorted(str(path.parent) for path in where.glob(f"*/{FOLDER_META}"))
    beside = {path.parent.name: path.parent for path in where.parent.glob(f"*/{FOLDER_META}")}
    alike = difflib.get_close_matches(where.name, beside)
    return inside[:3] or [str(beside[name]) for name in alike]
