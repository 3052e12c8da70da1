"""A node within the test's own process, for tests that reach into it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from anabranch.config import Settings
from anabranch.node import main
from anabranch.store.opening import open_store


def settings(folder: Path, **limits: float) -> Settings:
    small = Settings(port=0, data=str(folder), verify_workers=1)
    return msgspec.structs.replace(small, limits=msgspec.structs.replace(small.limits, **limits))


@asynccontextmanager
async def running(folder: Path, **limits: float) -> AsyncIterator[main.Node]:
    node = main.Node(settings(folder, **limits), open_store(folder))
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
