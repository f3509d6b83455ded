"""Names that show how much work a function does with them, whatever the machine."""

from __future__ import annotations


class Name(str):
    """A name that counts comparisons."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str(self) == other
