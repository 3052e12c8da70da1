"""nostr-sdk's relay, in memory, in a process of its own: `python -m bench.localrelay PORT`.

Its own settings, except the rate limit: by default a connection may publish 60 events a minute, and every further one
is refused with `rate-limited`, unverified and unstored. Without the limit it verifies and stores all it accepts.
"""

import asyncio
import sys

from nostr_sdk import LocalRelayBuilder, RateLimit

UNLIMITED = RateLimit(max_reqs=1_000_000, notes_per_minute=1_000_000_000)


async def serve(port: int) -> None:
    relay = LocalRelayBuilder().addr("127.0.0.1").port(port).rate_limit(UNLIMITED).build()
    await relay.run()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
