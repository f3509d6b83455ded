"""Secret values: tokens, passwords, keys.

A `Secret` is shown as `***` in errors, logs, reprs, JSON and pickles. `reveal` returns the value.
It is called only in the few places that pass it to a library or compare it.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection
from typing import Final

MASK: Final = "***"


class Secret:
    """A text that is not shown.

    >>> password = Secret("open sesame")
    >>> print(password, repr(password), f"{password:>5}", password.reveal())
    *** Secret('***')   *** open sesame
    >>> password == Secret("open sesame"), bool(Secret(""))
    (True, False)
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __len__(self) -> int:
        return len(self._text)

    def __str__(self) -> str:
        return MASK

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __format__(self, form: str) -> str:
        return format(MASK, form)

    def __eq__(self, other: object) -> bool:
        """Compare in constant time."""
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        """Pickle the mask instead of the text, so that a secret is not copied by accident."""
        return Secret, (MASK,)


def is_secret(name: str) -> bool:
    """Return True if the value of a property with this name is a secret.

    >>> is_secret("sasl.password"), is_secret("ssl.key.pem"), is_secret("token")
    (True, True, True)
    >>> is_secret("ssl.key.location"), is_secret("token-file")
    (False, False)
    """
    return _NAMES.search(re.sub("[_-]", ".", name)) is not None


def masked(text: str, secrets: Collection[Secret | str] = ()) -> str:
    """Return `text` with secrets masked: these values, users in URLs, and secret URL options.

    >>> masked("cannot reach http://me:pw@host/?token=abc&x=1")
    'cannot reach http://***@host/?token=***&x=1'
    >>> masked("refused: hunter2", [Secret("hunter2")])
    'refused: ***'
    """
    for secret in secrets:
        value = secret.reveal() if isinstance(secret, Secret) else secret
        if value:
            text = text.replace(value, MASK)
    text = _USER.sub(rf"\1{MASK}@", text)
    return _OPTION.sub(_without_value, text)


def _without_value(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}={MASK}" if is_secret(found[2]) else found[0]


_NAMES = re.compile(
    r"password|passphrase|secret|token(?!.file$)|jaas|\.pem$|user\.info|oauthbearer\.config|credential",
    re.IGNORECASE,
)
_USER = re.compile(r"(://|^)[^\s/@'\"?]+@")
_OPTION = re.compile(r"([?&])([\w.-]+)=([^\s&'\"]*)")
