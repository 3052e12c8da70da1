"""nostr-sdk's relay, in memory, in a process of its own: `python -m bench.localrelay PORT`.

Its own settings, except those that end a benchmark early: by default it answers a fast publisher with `rate-limited` and
cuts a REQ at 500 events.
"""

import asyncio
import sys

from nostr_sdk import LocalRelayBuilder, RateLimit

UNLIMITED = 1_000_000_000


async def serve(port: int) -> None:
    limit = RateLimit(max_reqs=1_000_000, notes_per_minute=UNLIMITED)
    relay = LocalRelayBuilder().addr("127.0.0.1").port(port).max_filter_limit(1_000_000).rate_limit(limit).build()
    await relay.run()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
