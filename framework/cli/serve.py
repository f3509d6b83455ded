"""`strandline serve DIR`: own a log and let other processes attach, here or over the network."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from strandline.changelog import signals
from strandline.changelog.credentials import read_token, token_of
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.location import check, check_exists, is_url, shown
from strandline.changelog.storage import Durability
from strandline.framework.cli import output
from strandline.framework.cli.metrics import MetricsOption, serving_metrics
from strandline.framework.cli.options import CreateOption, JsonOption
from strandline.framework.metrics import Collect

ListenOption = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        help="Serve over TCP too; port 0 chooses a free one. By default only this machine.",
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the token of clients that may do everything. Default: STRANDLINE_TOKEN, "
        "STRANDLINE_TOKEN_FILE, or a fresh one that is printed. `strandline tokens` makes tokens with "
        "fewer rights.",
    ),
]
CertificateOption = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain, PEM.")
]
KeyOption = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key, PEM.")
]
ClientCaOption = Annotated[
    Path | None,
    typer.Option(
        "--client-ca",
        metavar="FILE",
        help="Require client certificates of these authorities too, PEM.",
    ),
]
PlaintextOption = Annotated[
    bool, typer.Option("--plaintext", help="Allow other machines without TLS.")
]
ConnectionsOption = Annotated[
    int | None,
    typer.Option(
        "--max-connections", min=1, help="Maximum clients over TCP at a time.", show_default="128"
    ),
]
ConnectionsPerAddressOption = Annotated[
    int | None,
    typer.Option(
        "--max-connections-per-address",
        min=1,
        help="Maximum clients from one address at a time.",
        show_default="64",
    ),
]
HelloTimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--hello-timeout",
        min=0.01,
        metavar="SECONDS",
        help="Time within which a client must prove its token.",
        show_default="10",
    ),
]
DurabilityOption = Annotated[
    Durability,
    typer.Option("--durability", help="fsync: survives a power cut; os: survives kill -9."),
]


def serve(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The log's folder.")],
    listen: ListenOption = None,
    token_file: TokenFileOption = None,
    tls_cert: CertificateOption = None,
    tls_key: KeyOption = None,
    client_ca: ClientCaOption = None,
    max_connections: ConnectionsOption = None,
    max_connections_per_address: ConnectionsPerAddressOption = None,
    hello_timeout: HelloTimeoutOption = None,
    plaintext: PlaintextOption = False,
    durability: DurabilityOption = "fsync",
    metrics: MetricsOption = None,
    create: CreateOption = False,
    json: JsonOption = False,
) -> None:
    """Serve a log until Ctrl-C or SIGTERM. Clients open the printed URL with the token."""
    _check_folder(folder)
    if listen is None:
        if token_file or tls_cert or tls_key or client_ca or plaintext:
            raise typer.BadParameter(
                "--token-file, --tls-…, --client-ca and --plaintext need --listen HOST:PORT"
            )
        _check_log(folder, create)
        return _serve_here(folder, durability, metrics, json=json)
    from strandline.changelog.flight import serve as flight
    from strandline.changelog.flight.limits import limits_from

    if not (tls_cert or tls_key or plaintext) and flight.is_seen_by_others(listen):
        raise typer.BadParameter(
            f"{listen} can be reached from other machines, and data would be sent "
            "unencrypted; give --tls-cert and --tls-key, or --plaintext on a network that you trust"
        )
    token = (read_token(token_file) if token_file else token_of()) or None
    _check_log(folder, create)
    log = flight.serve(
        folder,
        listen=listen,
        token=token,
        tls_certificate=tls_cert,
        tls_key=tls_key,
        client_ca=client_ca,
        plaintext=plaintext,
        limits=limits_from(
            hello_timeout_s=hello_timeout,
            max_connections=max_connections,
            max_connections_per_address=max_connections_per_address,
        ),
        durability=durability,
    )
    try:
        _announce(folder, log.url, None if token else log.token, json=json)
        _wait(metrics, log.metrics)
    finally:
        log.close()


def _check_folder(log: str) -> None:
    check(log)
    if is_url(log):
        raise InvalidConfig(
            f"{shown(log)} is served already: clients open this URL themselves (--log, or "
            "STRANDLINE_LOG). `serve` is for a folder"
        )


def _check_log(folder: str, create: bool) -> None:
    """Raise InvalidConfig if there is no log and `create` is not given."""
    if not create:
        try:
            check_exists(folder)
        except InvalidConfig as error:
            raise InvalidConfig(f"{error}, and here by --create") from None


def _serve_here(folder: str, durability: Durability, metrics: str | None, *, json: bool) -> None:
    from strandline.changelog.flight.attach import attach_or_own

    log = attach_or_own(folder, role="own", durability=durability)
    try:
        _announce(folder, folder, None, json=json)
        _wait(metrics, log.metrics)
    finally:
        log.close()


def _announce(folder: str, url: str, made: str | None, *, json: bool) -> None:
    if json:
        output.document({"log": folder, "url": url, "token": made})
        sys.stdout.flush()
        return
    output.note(f"serving {folder} at {url}; Ctrl-C ends it")
    if made:
        output.note(f"clients need STRANDLINE_TOKEN={made}")


def _wait(metrics: str | None, collect: Collect) -> None:
    with signals.awaited(signal.SIGINT, signal.SIGTERM) as came, serving_metrics(metrics, collect):
        signals.wait(came)
