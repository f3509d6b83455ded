"""Log, names and settings of a sample app, as its test chooses them."""

import os

BROKER = os.environ["FAUST_BROKER"] + os.environ.get("FAUST_OPTIONS", "")
STORE = os.environ.get("FAUST_STORE", "strandline://")
SESSION_S = float(os.environ["FAUST_SESSION_S"])


def named(name: str) -> str:
    """Return the name of an app or a topic: on a cluster, each test has a prefix."""
    return os.environ["FAUST_PREFIX"] + name
