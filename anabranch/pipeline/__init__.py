"""The data pipeline: the same log at any size, as tables.

`session()` starts Spark, `Lake(path)` has the tables, `jobs` turn tables into tables. `spark.read.format("anabranch")`
reads any log directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.pipeline.lake import Lake
    from anabranch.pipeline.session import session

__all__ = ["Lake", "session"]


def __getattr__(name: str) -> Any:
    """What needs Spark is loaded when it is asked for: generating a history does not."""
    if name == "Lake":
        from anabranch.pipeline.lake import Lake

        return Lake
    if name == "session":
        from anabranch.pipeline.session import session

        return session
    raise AttributeError(name)
