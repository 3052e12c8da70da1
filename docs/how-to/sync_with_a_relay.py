"""Bring a node and another relay to the same events of a filter: python sync_with_a_relay.py DATA NODE PEER FILTER

DATA is the node's folder (read only, while it runs), NODE and PEER are ws:// addresses, FILTER is JSON.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from anabranch.client import reconcile
from anabranch.core import filter as filters
from anabranch.core.negentropy import Items
from anabranch.store.sqlite import SqliteStore


async def main(data: str, node: str, peer: str, wanted: dict) -> None:
    with SqliteStore.inspect(Path(data)).reader() as reader:

        async def load(ids: Sequence[str]) -> list[bytes]:
            found = filters.Filter(ids=frozenset(ids))
            return [raw for _, raw in reader.payloads(reader.select([found], len(ids), int(time.time())).positions)]

        async def save(found: Sequence[reconcile.Found]) -> None:
            await reconcile.publish(node, [one.raw for one in found])

        rows = reader.items(filters.parse(wanted, 2_000), 2_000_000, int(time.time()))
        done = await reconcile.sync(peer, wanted, Items.build(rows.timestamps, rows.ids), load, save)
    print(f"{done.received} received, {len(done.published.accepted)} given, by {done.difference.method}")
    for id, reason in done.published.refused.items():
        print(f"  refused {id}: {reason}", file=sys.stderr)


if len(sys.argv) != 5 or not all(peer.startswith(("ws://", "wss://")) for peer in sys.argv[2:4]):
    sys.exit(__doc__)
asyncio.run(main(*sys.argv[1:4], json.loads(sys.argv[4])))
