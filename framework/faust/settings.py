"""Settings of a Faust app that Strandline changes when it makes the app's transport."""

from __future__ import annotations

import warnings
from typing import Any


def change_setting(conf: Any, name: str, value: Any) -> None:
    """Change a setting. Faust warns that it was read before, but nothing has used it yet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        setattr(conf, name, value)


def extend_class(conf: Any, name: str, own: type) -> None:
    """Let the app create objects of our class, which extends a class that the app has chosen."""
    chosen = getattr(conf, name)
    if not issubclass(chosen, own):
        is_default = chosen is own.__base__
        extended = own if is_default else type(own.__name__, (own, chosen), {})
        change_setting(conf, name, extended)
