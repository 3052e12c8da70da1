"""The data pipeline: the same log at any size, as tables.

`Lake(path)` has the tables, `jobs` turn tables into tables, `session.session()` starts Spark where none runs.
`spark.read.format("anabranch")` reads any log directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.pipeline.lake import Lake

__all__ = ["Lake"]


def __getattr__(name: str) -> Any:
    """What needs Spark is loaded when it is asked for: generating a history does not."""
    if name == "Lake":
        from anabranch.pipeline.lake import Lake

        return Lake
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
