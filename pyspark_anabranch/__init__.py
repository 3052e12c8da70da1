"""Spark looks into every package whose name begins with `pyspark_` and registers its `DefaultSource`.

So `spark.read.format("anabranch")` works with no import wherever Anabranch is installed.
"""

from anabranch.pipeline.source import DefaultSource

__all__ = ["DefaultSource"]
