"""Tests of Faust apps. `make faust` runs them, in an environment that has Faust.

They are not collected elsewhere, because Faust needs an older click than the other tools do.
"""

from importlib.util import find_spec

collect_ignore = (
    []
    if find_spec("faust")
    else ["test_apps.py", "test_exactly_once.py", "test_failures.py", "test_tables.py"]
)
