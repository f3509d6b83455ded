"""`strandline serve DIR`: own a log and let others attach, from this machine or over the network."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from changelog.embedded.environment import Durability
from framework.cli import output
from framework.cli.options import JsonOption


def serve(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The log's folder; made if absent.")
    ],
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Also over TCP; port 0 takes a free one. Without it, for this machine only.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="STRANDLINE_TOKEN",
            help="What clients must show; a fresh one is made and printed if there is none.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain, PEM.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key, PEM.")
    ] = None,
    plaintext: Annotated[
        bool, typer.Option("--plaintext", help="Without TLS even beyond this machine.")
    ] = False,
    durability: Annotated[
        Durability,
        typer.Option("--durability", help="fsync: survives a power cut; os: survives kill -9."),
    ] = "fsync",
    json: JsonOption = False,
) -> None:
    """Serve a log until Ctrl-C or SIGTERM. Clients open the URL it prints, with the token."""
    if listen is None:
        if token or tls_cert or tls_key or plaintext:
            raise typer.BadParameter("--token, --tls-… and --plaintext need --listen HOST:PORT")
        return _serve_here(folder, durability, json=json)
    from changelog.flight import serve as flight

    served = flight.serve(
        folder,
        listen=listen,
        token=token,
        tls_certificate=tls_cert,
        tls_key=tls_key,
        plaintext=plaintext,
        durability=durability,
    )
    try:
        _tell(folder, served.url, None if token else served.token, json=json)
        _wait()
    finally:
        served.close()


def _serve_here(folder: Path, durability: Durability, *, json: bool) -> None:
    from changelog.flight.attach import attach_or_own

    log = attach_or_own(folder, role="own", durability=durability)
    try:
        _tell(folder, str(folder), None, json=json)
        _wait()
    finally:
        log.close()


def _tell(folder: Path, url: str, made: str | None, *, json: bool) -> None:
    if json:
        output.document({"log": str(folder), "url": url, "token": made})
        sys.stdout.flush()
        return
    output.note(f"serving {folder} at {url}; Ctrl-C ends it")
    if made:
        output.note(f"clients need STRANDLINE_TOKEN={made}")


def _wait() -> None:
    with _ended_by(signal.SIGINT, signal.SIGTERM) as ended:
        ended.wait()


@contextmanager
def _ended_by(*signals: signal.Signals) -> Iterator[threading.Event]:
    """An event that these signals set."""
    ended = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield ended
        return
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in signals}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
