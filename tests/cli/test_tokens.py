"""`strandline tokens`: tokens are created, listed and revoked, and shown once."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from strandline import changelog
from strandline.changelog.errors import NotAuthorized, Unauthenticated
from strandline.changelog.flight.serve import serve
from strandline.changelog.layout import TOKENS, TOKENS_LOCK
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.log import Log
from tests.cli.conftest import Command

ADMIN = "sixteen-or-more-characters"


@pytest.fixture(autouse=True)
def there_is_a_log(log: Log) -> None:
    """Tokens can be created while a log is in use."""
    log.create_topic("sales")
    log.create_topic("other")


def test_a_token_is_shown_once_and_works(strandline: Command, folder: Path) -> None:
    made = strandline("tokens", "create", "reader", "--read", "sales", "--read", "x-*")
    assert made.code == 0
    token = made.out.strip()
    assert token.startswith("sl_")
    assert token not in made.err
    assert "read:sales, read:x-*" in made.err
    with (
        contextlib.closing(serve(folder, listen="127.0.0.1:0", token=ADMIN)) as served,
        changelog.open(served.url, token=token) as far,
    ):
        assert [info.name for info in far.topics()] == ["sales"]
        with pytest.raises(NotAuthorized, match="'reader'.*produce:sales"):
            far.create_topic("sales")
        for said in (strandline("tokens", "list"), strandline("tokens", "list", "--json")):
            assert "reader" in said.out
            assert token not in said.out + said.err
            assert token.split("_", 2)[2] not in (folder / TOKENS).read_text()
        assert strandline("tokens", "revoke", "reader").code == 0
        with pytest.raises(Unauthenticated):
            far.topics()
    assert strandline("tokens", "list", "--json").json == []
    assert "no tokens" in strandline("tokens", "list").err


def test_tokens_are_available_as_json(strandline: Command) -> None:
    made = strandline("tokens", "create", "w", "--app", "shop", "--produce", "late", "--json").json
    assert made.pop("token").startswith(f"sl_{made['id']}_")
    assert made["rights"] == [
        "read:shop-*",
        "produce:late",
        "produce:shop-*",
        "group:shop",
        "transaction:shop-*",
    ]
    assert strandline("tokens", "list", "--json").json == [made]
    assert strandline("tokens", "revoke", made["id"], "--json").json == made


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["create", "a"], 1, "needs a right"),
        (["create", "a b", "--admin"], 1, "cannot be a token's name"),
        (["create", "a", "--admin", "--read", "sales"], 2, "alone"),
        (["create", "a", "--read", "s*s"], 1, "is not a right"),
        (["create", "there", "--admin"], 1, "there is a token named 'there'"),
        (["revoke", "nobody"], 1, "tokens: there"),
        (["list", "--log", "strandline://127.0.0.1:1"], 1, "where the log is"),
        (["list", "--log", "not-here"], 1, "there is no folder"),
    ],
)
def test_impossible_requests_are_explained(
    strandline: Command, arguments: list[str], code: int, said: str
) -> None:
    strandline("tokens", "create", "there", "--admin")
    before = strandline("tokens", "list").out
    refused = strandline("tokens", *arguments)
    assert refused.code == code
    assert said in " ".join(refused.err.split())
    assert refused.out == ""
    assert strandline("tokens", "list").out == before


def test_a_damaged_document_is_named_with_its_remedy(strandline: Command, folder: Path) -> None:
    strandline("tokens", "create", "a", "--admin")
    (folder / TOKENS).write_bytes((folder / TOKENS).read_bytes()[:-1])
    for arguments in (["list"], ["create", "b", "--admin"], ["revoke", "a"]):
        refused = strandline("tokens", *arguments)
        assert refused.code == 1
        assert "create new tokens" in " ".join(refused.err.split())


def test_simultaneous_commands_take_turns(
    strandline: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.changelog.flight.tokens.LOCK_WAIT_S", 0.1)
    lock = LocalStorage(folder).lock(TOKENS_LOCK, "the test")
    assert "locked" in strandline("tokens", "create", "a", "--admin").err
    lock.release()
    assert strandline("tokens", "create", "a", "--admin").code == 0
