"""Tokens of a log that is served over TCP: made, listed and revoked in a document of its folder.

The document has a verifier of each token (hello.py), which proves nothing, and not the token. It is
replaced as a whole, under a lock file of its own, because `strandline tokens` runs in another process than
the one that serves the log. docs/format.md has the bytes.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.decoding import json_decoder
from strandline.changelog.embedded import document
from strandline.changelog.embedded.folder import lock_note
from strandline.changelog.embedded.names import TOKENS, TOKENS_LOCK
from strandline.changelog.errors import REPAIR, CorruptLog, FutureFormat, InvalidConfig, LogLocked
from strandline.changelog.flight import hello
from strandline.changelog.flight.rights import Rights
from strandline.changelog.storage import Lock, Storage

KIND = "tokens"
ID_BYTES = 6
SECRET_BYTES = 32
MAX_TOKENS = 10_000
LOCK_WAIT_S = 5.0
"""Seconds to wait for another process that changes the document."""
_LOCK_PAUSE_S = 0.02
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

T = TypeVar("T")


class StoredToken(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A token as the log keeps it."""

    id: str
    name: str
    created_ms: int
    stored_key: bytes
    server_key: bytes
    rights: Rights

    @property
    def verifier(self) -> hello.Verifier:
        """What checks proofs of the token."""
        return hello.Verifier(self.stored_key, self.server_key)


class TokensDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The content of the document.

    A field that this version does not know could be a restriction, so it is an error.
    """

    grant_key: bytes
    """Key of the grants that clients get (grants.py)."""
    tokens: list[StoredToken] = []


_DECODER = json_decoder(TokensDocument)


class MadeToken(msgspec.Struct):
    """A token that was just made."""

    stored: StoredToken
    token: str
    """The token itself, which is kept nowhere."""


def create(storage: Storage, name: str, rights: Rights, *, clock: Clock | None = None) -> MadeToken:
    """Make a token, durably. It counts at once for a log that is being served.

    Args:
        storage: The log's folder.
        name: How lists and errors call it: letters, digits, `.`, `_` and `-`, 64 at most.
        rights: What it may do.
        clock: Tells the time.

    Raises:
        InvalidConfig: The name or the rights will not do, or there is a token of that name.
        CorruptLog: The document is damaged. FutureFormat: A later version wrote it.
        StorageFailed: It cannot be written.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidConfig(
            f"{name[:100]!r} cannot be a token's name; use 1 to 64 of A-Z a-z 0-9 . _ -"
        )
    rights.check()
    token_id = secrets.token_hex(ID_BYTES)
    token = f"sl_{token_id}_{secrets.token_urlsafe(SECRET_BYTES)}"
    verifier = hello.verifier_of(token)
    stored = StoredToken(
        id=token_id,
        name=name,
        created_ms=(clock or SystemClock()).now_ms(),
        stored_key=verifier.stored_key,
        server_key=verifier.server_key,
        rights=rights,
    )

    def add(found: TokensDocument) -> None:
        if any(one.name == name for one in found.tokens):
            raise InvalidConfig(
                f"there is a token named {name!r}; revoke it first, or take another name"
            )
        if len(found.tokens) >= MAX_TOKENS:
            raise InvalidConfig(f"a log has {MAX_TOKENS:,} tokens at most; revoke some first")
        found.tokens.append(stored)

    _changed(storage, add)
    return MadeToken(stored, token)


def revoke(storage: Storage, which: str) -> StoredToken:
    """Revoke the token of this name or id, durably, and return it.

    Raises:
        InvalidConfig: There is no such token.
        CorruptLog: The document is damaged. FutureFormat: A later version wrote it.
        StorageFailed: It cannot be written.
    """

    def remove(found: TokensDocument) -> StoredToken:
        for one in found.tokens:
            if which in (one.name, one.id):
                found.tokens.remove(one)
                return one
        names = ", ".join(one.name for one in found.tokens) or "none"
        raise InvalidConfig(f"there is no token {which[:100]!r}; tokens: {names}")

    return _changed(storage, remove)


def stored_tokens(storage: Storage) -> list[StoredToken]:
    """Return all tokens. Raises CorruptLog, FutureFormat."""
    found = load(storage)
    return [] if found is None else found.tokens


def grant_key(storage: Storage) -> bytes:
    """Return the key of the log's grants, which is made first if there is none."""
    found = load(storage)
    return _changed(storage, lambda now: now.grant_key) if found is None else found.grant_key


def load(storage: Storage) -> TokensDocument | None:
    """Return the document; None if there is none. Raises CorruptLog, FutureFormat."""
    try:
        found = _DECODER.decode(document.read(storage, TOKENS, KIND))
        for one in found.tokens:
            one.rights.check()
        return found
    except FileNotFoundError:
        return None
    except FutureFormat:
        raise
    except (CorruptLog, InvalidConfig, msgspec.MsgspecError, ValueError, RecursionError) as error:
        what = str(error).removesuffix(f"; {REPAIR}")
        raise CorruptLog(
            f"{TOKENS}: the tokens cannot be read, so none has access ({what}); put the file back from "
            "a copy, or remove it and make the tokens anew with `strandline tokens create`"
        ) from error


def _changed(storage: Storage, change: Callable[[TokensDocument], T]) -> T:
    with _locked(storage):
        found = load(storage) or TokensDocument(grant_key=secrets.token_bytes(SECRET_BYTES))
        returned = change(found)
        document.save(storage, TOKENS, KIND, found)
        return returned


@contextlib.contextmanager
def _locked(storage: Storage) -> Iterator[None]:
    clock = SystemClock()
    until = clock.monotonic() + LOCK_WAIT_S
    lock: Lock | None = None
    while lock is None:
        try:
            lock = storage.lock(TOKENS_LOCK, lock_note("tokens"))
        except LogLocked:
            if clock.monotonic() >= until:
                raise
            threading.Event().wait(_LOCK_PAUSE_S)
    try:
        yield
    finally:
        lock.release()
