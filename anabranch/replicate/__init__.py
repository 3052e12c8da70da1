"""Links: a node follows, feeds and repairs other nodes and relays, in scopes, with durable checkpoints."""
