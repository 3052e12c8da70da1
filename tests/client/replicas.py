"""What the tests of the client say about replicas: how they are opened, and what they hold."""

from collections.abc import Awaitable, Callable

from anabranch.client import Replica, Timing

QUICK = Timing(retry_min=0.05, retry_max=0.4, steady=1.0, patience=10.0)
FAMILIES = ("snapshot", "revision")

OpenReplica = Callable[..., Awaitable[Replica]]


async def content(replica: Replica, d: str) -> dict | None:
    document = await replica.get(d)
    return None if document is None else document.content


async def reads(replica: Replica, d: str, wanted: dict | None) -> bool:
    return await content(replica, d) == wanted


async def heads(replica: Replica) -> dict[str, set[str]]:
    """The current versions of every document, the deleted ones too."""
    found = await replica.documents(read=False, deleted=True)
    return {document.d: {version.id for version in document.versions} for document in found}


async def same_heads(*replicas: Replica) -> bool:
    found = [await heads(replica) for replica in replicas]
    return all(one == found[0] for one in found)


async def at_position(replica: Replica, position: int) -> bool:
    """Whether all its checkpoints are at or past a position."""
    return all(one.position is not None and one.position >= position for one in await replica.status())
