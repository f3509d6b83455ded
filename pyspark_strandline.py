"""Makes `format("strandline")` known to Spark without registration.

Spark imports every installed module whose name begins with `pyspark_`, and registers the
`DefaultSource` that it finds there under the source's own name.
"""

from __future__ import annotations

from strandline.framework.spark.source import StrandlineSource as DefaultSource

__all__ = ["DefaultSource"]
