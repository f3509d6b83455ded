"""Tokens of a log served over TCP: created, listed and revoked in a file of the log's folder.

The file contains a verifier of each token (hello.py) instead of the token, so a reader of the file
cannot authenticate. It is replaced atomically under its own lock file, because `strandline tokens`
runs in another process than the one that serves the log. The bytes are in docs/format.md.
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
from strandline.changelog.errors import REPAIR, CorruptLog, FutureFormat, InvalidConfig, LogLocked
from strandline.changelog.flight import hello
from strandline.changelog.flight.rights import Rights
from strandline.changelog.layout import TOKENS, TOKENS_LOCK
from strandline.changelog.storage import Lock, Storage

KIND = "tokens"
ID_BYTES = 6
SECRET_BYTES = 32
MAX_TOKENS = 10_000
LOCK_WAIT_S = 5.0
"""Seconds to wait for another process that changes the file."""
_LOCK_PAUSE_S = 0.02
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

T = TypeVar("T")


class StoredToken(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A token as the log stores it."""

    id: str
    name: str
    created_ms: int
    stored_key: bytes
    server_key: bytes
    rights: Rights

    @property
    def verifier(self) -> hello.Verifier:
        """Verifier by which proofs of the token are checked."""
        return hello.Verifier(self.stored_key, self.server_key)


class TokensDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Content of the file.

    An unknown field is an error, because it could be a restriction made by a later version.
    """

    grant_key: bytes
    """Secret key of the grants that clients receive (grants.py)."""
    tokens: list[StoredToken] = []


_DECODER = json_decoder(TokensDocument)


class MadeToken(msgspec.Struct):
    """A token that was just created."""

    stored: StoredToken
    token: str
    """The token itself, which is not stored."""


def create(storage: Storage, name: str, rights: Rights, *, clock: Clock | None = None) -> MadeToken:
    """Create a token durably. A log that is being served accepts it at once.

    Args:
        storage: Folder of the log.
        name: Name in lists and errors: letters, digits, `.`, `_` and `-`, 64 at most.
        rights: Rights of the token.
        clock: Source of the creation time.

    Raises:
        InvalidConfig: The name or the rights are not valid, or the name is in use.
        CorruptLog: The tokens file is damaged.
        FutureFormat: A later version wrote the tokens file.
        StorageFailed: The tokens file cannot be written.
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

    _update(storage, add)
    return MadeToken(stored, token)


def revoke(storage: Storage, which: str) -> StoredToken:
    """Revoke the token with this name or id durably, and return it.

    Raises:
        InvalidConfig: There is no such token.
        CorruptLog: The tokens file is damaged.
        FutureFormat: A later version wrote the tokens file.
        StorageFailed: The tokens file cannot be written.
    """

    def remove(found: TokensDocument) -> StoredToken:
        for one in found.tokens:
            if which in (one.name, one.id):
                found.tokens.remove(one)
                return one
        names = ", ".join(one.name for one in found.tokens) or "none"
        raise InvalidConfig(f"there is no token {which[:100]!r}; tokens: {names}")

    return _update(storage, remove)


def stored_tokens(storage: Storage) -> list[StoredToken]:
    """Return all tokens. Raises CorruptLog, FutureFormat."""
    found = load(storage)
    return [] if found is None else found.tokens


def grant_key(storage: Storage) -> bytes:
    """Return the secret key of the log's grants; create it if there is none."""
    found = load(storage)
    return _update(storage, lambda now: now.grant_key) if found is None else found.grant_key


def load(storage: Storage) -> TokensDocument | None:
    """Return the content of the tokens file; None if it is missing.

    Raises CorruptLog, FutureFormat.
    """
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
            "a copy, or remove it and create new tokens with `strandline tokens create`"
        ) from error


def _update(storage: Storage, change: Callable[[TokensDocument], T]) -> T:
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
