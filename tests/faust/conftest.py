"""Tests of Faust apps. `make faust` runs them, in an environment that has Faust.

They are not collected elsewhere, because Faust needs an older click than the other tools do.
"""

from importlib.util import find_spec

NEED_FAUST = ["apps", "exactly_once", "failures", "refusals", "stores", "tables"]

collect_ignore = [] if find_spec("faust") else [f"test_{name}.py" for name in NEED_FAUST]
