"""`strandline tokens`: tokens of clients over TCP, with their rights."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

import typer

from strandline.changelog.flight import tokens
from strandline.changelog.flight.rights import ALL, Rights, rights_of_app
from strandline.changelog.flight.tokens import StoredToken
from strandline.changelog.local_storage import LocalStorage
from strandline.framework.cli import output
from strandline.framework.cli.loading import folder
from strandline.framework.cli.options import JsonOption, LogOption

commands = typer.Typer(help="Tokens for clients over TCP, with their rights.", no_args_is_help=True)

Names = list[str] | None


def _names(option: str, help_: str, metavar: str = "NAMES") -> Any:
    return typer.Option(
        option, metavar=metavar, help=f"{help_} `shop-*` is a prefix. May be repeated."
    )


@commands.command("create")
def create_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name in lists and errors.")],
    read: Annotated[Names, _names("--read", "Topics that it may read.", "TOPICS")] = None,
    produce: Annotated[
        Names, _names("--produce", "Topics that it may create and append to.", "TOPICS")
    ] = None,
    group: Annotated[
        Names, _names("--group", "Groups that it may join and whose offsets it may commit.")
    ] = None,
    transaction: Annotated[
        Names, _names("--transaction", "Transactional ids that its producers may take.")
    ] = None,
    app: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="NAME",
            help="Everything that a worker of this app needs except inputs (--read) and outputs (--produce).",
        ),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="It may do everything.")] = False,
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Create a token and print it once: the log keeps only data that verifies it."""
    given = [read, produce, group, transaction]
    if admin and (app or any(given)):
        raise typer.BadParameter("--admin allows everything; give it alone")
    rights = ALL if admin else _rights(app, *(patterns or [] for patterns in given))
    made = tokens.create(_storage(log), name, rights)
    if json:
        output.document({**_row(made.stored), "token": made.token})
        return
    output.line(made.token)
    output.note(
        f"token {name!r} (id {made.stored.id}) may: {', '.join(rights.named())}. It is shown this once; "
        "clients need it in STRANDLINE_TOKEN"
    )


@commands.command("list")
def list_tokens(log: LogOption = None, json: JsonOption = False) -> None:
    """List the tokens of a log with their rights."""
    rows = [_row(one) for one in tokens.stored_tokens(_storage(log))]
    if json:
        output.document(rows)
        return
    shown = [{**row, "rights": ", ".join(row["rights"])} for row in rows]
    empty = "no tokens; the one given to `strandline serve` is not listed"
    output.listing(shown, ("name", "id", "created", "rights"), json=False, empty=empty)


@commands.command("revoke")
def revoke_token(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Name or id of the token.")],
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Revoke a token. Its clients' calls are refused at once, and their connections closed."""
    revoked = tokens.revoke(_storage(log), token)
    if json:
        output.document(_row(revoked))
    else:
        output.note(f"revoked token {revoked.name!r} (id {revoked.id})")


def _rights(
    app: str | None, read: list[str], produce: list[str], group: list[str], transaction: list[str]
) -> Rights:
    if app is None:
        return Rights(read, produce, group, transaction)
    own = rights_of_app(app, read, produce)
    return Rights(own.read, own.produce, [*group, *own.group], [*transaction, *own.transaction])


def _storage(log: str | None) -> LocalStorage:
    return LocalStorage(folder(log))


def _row(token: StoredToken) -> dict[str, Any]:
    created = dt.datetime.fromtimestamp(token.created_ms / 1000, dt.UTC)
    return {
        "name": token.name,
        "id": token.id,
        "created": created.isoformat(timespec="seconds"),
        "rights": token.rights.named(),
    }
