"""Waiting for what other tasks and processes do, with an end."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE = 15.0


async def until(holds: Callable[[], Any | Awaitable[Any]], what: str = "", patience: float = PATIENCE) -> Any:
    """The first true answer of `holds`."""
    deadline = time.monotonic() + patience
    while True:
        answer = holds()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {patience:g} s: {what or inspect.getsource(holds).strip()}"
        await asyncio.sleep(0.01)


async def in_time(awaitable: Awaitable[Any], patience: float = PATIENCE) -> Any:
    return await asyncio.wait_for(awaitable, patience)
