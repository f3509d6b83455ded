"""Checks of the Python packages that Spark needs, with errors that say how to install them."""

from __future__ import annotations

import importlib.util
import re
import sys

from strandline.changelog.errors import MissingDependency

OLDEST_PYSPARK = (4, 1)
"""Oldest PySpark that has all of the interface which the data source implements."""
_INSTALL = "pip install 'strandline[spark]'"


def require_pyspark(purpose: str) -> None:
    """Raise MissingDependency if PySpark is missing or too old; `purpose` begins the message."""
    if importlib.util.find_spec("pyspark") is None:
        raise MissingDependency(f"{purpose} PySpark, which is not installed: {_INSTALL}")
    import pyspark

    version = str(getattr(pyspark, "__version__", "of an unknown version"))
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if found < OLDEST_PYSPARK:
        oldest = ".".join(map(str, OLDEST_PYSPARK))
        raise MissingDependency(
            f"{purpose} PySpark {oldest} or later, and {sys.executable} has {version}: {_INSTALL}"
        )


def require_columns() -> None:
    """Raise MissingDependency if pandas or pyarrow is missing, or too old for this PySpark.

    PySpark itself finds that out only when it first needs them, in the middle of a query.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.utils import (
        require_minimum_pandas_version,
        require_minimum_pyarrow_version,
    )

    for name, require in (
        ("pandas", require_minimum_pandas_version),
        ("pyarrow", require_minimum_pyarrow_version),
    ):
        try:
            require()
        except (ImportError, PySparkException) as error:
            raise MissingDependency(
                f"Spark cannot use {name} of {sys.executable}: {error}; {_INSTALL}, then start "
                "this program, or the notebook's kernel, again"
            ) from error
