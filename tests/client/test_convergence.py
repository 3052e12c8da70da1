"""«Must hold»: replicas and relays part and join in any way, and after healing they are the same and nothing is lost.

Two to four replicas of one owner, two real relays, a wire from each to each. In any order: edits, deletions, merges,
wires that break, go down and come up, replicas that restart, and the relays' own events delivered again, in another
order, to the other relay. Then all wires come up, and when it is quiet all replicas and both relays must have the same
heads, which are those of a slow oracle over everything that was ever written; and every version that was put is a head
or superseded by one. Hypothesis prints the steps of a failure and a blob that repeats it.
"""

import asyncio
import contextlib
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from processes import Node
from replicas import QUICK, heads
from sockets import RelayClient
from waiting import until
from wires import Wire

from anabranch.client import Keys, NoSuchDocument, NotInConflict, ReadOnly, Replica
from anabranch.client.now import REAL
from anabranch.core import clock as clocks
from anabranch.core.negentropy import Items, Reconciler

DOCUMENTS = ("a", "b")
HEAL_SECONDS = 20.0
who = st.integers(0, 3)
which = st.sampled_from(DOCUMENTS)
relay = st.integers(0, 1)


class World(RuleBasedStateMachine):
    """Set `nodes` and `family` in a subclass."""

    nodes: tuple[Node, Node]
    family: str

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="anabranch-convergence-"))
        self.keys = Keys(REAL.fresh_bytes(32))  # examples share the relays and never meet
        self.replicas: list[Replica] = []
        self.wires: list[tuple[Wire, Wire]] = []
        self.written: dict[str, str] = {}  # version → document
        self.clocks: dict[str, dict[str, int]] = {}
        self.parents: dict[str, set[str]] = {}
        self.edits = 0

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @initialize(count=st.integers(2, 4))
    def begin(self, count: int) -> None:
        self.run(self._begin(count))

    async def _begin(self, count: int) -> None:
        for number in range(count):
            pair = (Wire(self.nodes[0].port), Wire(self.nodes[1].port))
            for wire in pair:
                await wire.start()
            self.wires.append(pair)
            self.replicas.append(await self._open(number))

    async def _open(self, number: int) -> Replica:
        path = self.folder / f"{number}.db"
        urls = [wire.url for wire in self.wires[number]]
        return await Replica.open(path, self.keys, family=self.family, relays=urls, timing=QUICK)

    def replica(self, number: int) -> int:
        return number % len(self.replicas)

    # --- what people do ---

    @rule(number=who, d=which)
    def edit(self, number: int, d: str) -> None:
        self.run(self._edit(self.replica(number), d))

    async def _edit(self, number: int, d: str) -> None:
        self.edits += 1
        replica, content = self.replicas[number], {"n": self.edits, "by": number}
        before = await self._current(replica, d)
        with contextlib.suppress(ReadOnly):
            base = before if self.edits % 2 else None  # either may be overtaken between the two
            version = await replica.put(d, content, base=base)
            await self._note(replica, d, version, before)
            assert len(self.parents[version]) <= 1  # in a conflict it would have been refused

    @rule(number=who, d=which)
    def delete(self, number: int, d: str) -> None:
        self.run(self._delete(self.replica(number), d))

    async def _delete(self, number: int, d: str) -> None:
        replica = self.replicas[number]
        before = await self._current(replica, d)
        with contextlib.suppress(ReadOnly, NoSuchDocument):
            await self._note(replica, d, await replica.delete(d), before)

    @rule(number=who, d=which, how=st.sampled_from(["merge", "pick", "delete"]))
    def resolve(self, number: int, d: str, how: str) -> None:
        self.run(self._resolve(self.replica(number), d, how))

    async def _resolve(self, number: int, d: str, how: str) -> None:
        self.edits += 1
        replica = self.replicas[number]
        before = await self._current(replica, d)
        with contextlib.suppress(NotInConflict, NoSuchDocument):
            if how == "merge":
                version = await replica.resolve(d, {"merged": self.edits}, base=before)
            elif how == "delete":
                version = await replica.resolve(d, delete=True, base=before)
            else:
                version = await replica.resolve(d, pick=min(before, default=""), base=before)
            await self._note(replica, d, version, before)

    @rule(number=who, d=which, count=st.integers(2, 14))
    def edit_many_times(self, number: int, d: str, count: int) -> None:
        """Past the bound of the history."""
        for _ in range(count):
            self.edit(number, d)

    async def _current(self, replica: Replica, d: str) -> set[str]:
        return {one.version.id for one in await replica.in_file(replica.file.heads, d)}

    async def _note(self, replica: Replica, d: str, version: str, before: set[str]) -> None:
        """What was written, from the file itself. It supersedes all that was current: that ends a conflict."""
        self.written[version] = d
        (stored,) = [one for one in await replica.in_file(replica.file.heads, d) if one.version.id == version]
        self.clocks[version] = dict(stored.version.clock)
        rows = await replica.in_file(lambda: list(replica.file.db.execute("SELECT parent, child FROM parents")))
        self.parents[version] = {parent for parent, child in rows if child == version}
        assert not before & await self._current(replica, d)

    # --- what networks and machines do ---

    @rule(number=who, to=relay)
    def cut(self, number: int, to: int) -> None:
        self.wires[self.replica(number)][to].cut()

    @rule(number=who, d=which, milliseconds=st.integers(0, 8))
    def edit_and_lose_the_network(self, number: int, d: str, milliseconds: int) -> None:
        """While the edit may be under way to both relays."""
        self.edit(number, d)
        self.time_passes(milliseconds)
        for wire in self.wires[self.replica(number)]:
            wire.cut()

    @rule(number=who, d=which, milliseconds=st.integers(5, 40))
    def edit_into_the_void(self, number: int, d: str, milliseconds: int) -> None:
        """The edit is sent to both relays and reaches neither."""
        for wire in self.wires[self.replica(number)]:
            wire.swallows = True
        self.edit(number, d)
        self.time_passes(milliseconds)
        for wire in self.wires[self.replica(number)]:
            wire.cut()

    @rule(number=who, to=relay)
    def go_down(self, number: int, to: int) -> None:
        self.wires[self.replica(number)][to].down()

    @rule(number=who, to=relay)
    def come_up(self, number: int, to: int) -> None:
        number = self.replica(number)
        self.wires[number][to].up = True
        self.replicas[number].try_now()

    @rule(number=who)
    def restart(self, number: int) -> None:
        self.run(self._restart(self.replica(number)))

    async def _restart(self, number: int) -> None:
        await self.replicas[number].close()
        self.replicas[number] = await self._open(number)

    @rule(milliseconds=st.integers(0, 60))
    def time_passes(self, milliseconds: int) -> None:
        self.run(asyncio.sleep(milliseconds / 1000))

    @rule(number=who)
    def one_catches_up(self, number: int) -> None:
        number = self.replica(number)
        for wire in self.wires[number]:
            wire.up = True
        self.replicas[number].try_now()
        self.run(asyncio.wait_for(self.replicas[number].caught_up(), HEAL_SECONDS))

    @rule(source=relay, seed=st.integers(0, 1_000))
    def deliver_again_in_another_order(self, source: int, seed: int) -> None:
        self.run(self._deliver(source, random.Random(seed)))

    async def _deliver(self, source: int, order: random.Random) -> None:
        async with RelayClient.open(self.nodes[source].url) as one:
            events = (await one.req(self._scope())).events
        order.shuffle(events)
        async with RelayClient.open(self.nodes[1 - source].url) as other:
            for event in [*events, *events[: len(events) // 2]]:
                answer = await other.publish(event)
                assert answer.accepted, answer

    def _scope(self) -> dict[str, Any]:
        if self.family == "snapshot":
            return {"kinds": [42061], "authors": [self.keys.pubkey]}
        return {"kinds": [1059], "#p": [self.keys.pubkey]}

    # --- and then all is well ---

    def teardown(self) -> None:
        try:
            if self.replicas:
                self.run(self._heal())
        finally:
            self.run(self._end())
            self.loop.close()
            shutil.rmtree(self.folder)

    async def _heal(self) -> None:
        for pair in self.wires:
            for wire in pair:
                wire.up = True
        for replica in self.replicas:
            replica.try_now()
        expected = self._oracle()
        try:
            await until(lambda: self._all_are(expected), "all the same", HEAL_SECONDS)
        except AssertionError:
            found = {f"replica {number}": await heads(one) for number, one in enumerate(self.replicas)}
            found |= {f"relay {number}": await self._heads_of_relay(node) for number, node in enumerate(self.nodes)}
            status = [await replica.status() for replica in self.replicas]
            raise AssertionError(f"expected {expected}\nfound {found}\n{status}") from None
        for replica in self.replicas:
            await asyncio.wait_for(replica.caught_up(), HEAL_SECONDS)
            in_conflict = {document.d for document in await replica.conflicts()}
            assert in_conflict == {d for d, versions in expected.items() if len(versions) > 1}
            assert all(status.dropped == 0 and not status.refused for status in await replica.status())
        for version, d in self.written.items():
            assert any(self._supersedes(head, version) for head in expected[d]), f"{version} of {d} is lost"

    async def _all_are(self, expected: dict[str, set[str]]) -> bool:
        for replica in self.replicas:
            if await heads(replica) != expected:
                return False
        for node in self.nodes:
            if await self._heads_of_relay(node) != expected:
                return False
        return True

    def _oracle(self) -> dict[str, set[str]]:
        """Of all that was ever written, what nothing else supersedes."""
        found: dict[str, set[str]] = {}
        for version, d in self.written.items():
            others = (other for other, its in self.written.items() if its == d and other != version)
            if not any(self._directly_supersedes(other, version) for other in others):
                found.setdefault(d, set()).add(version)
        return found

    def _directly_supersedes(self, a: str, b: str) -> bool:
        if self.family == "snapshot":
            return clocks.dominates(self.clocks[a], self.clocks[b])
        return b in self.parents[a]

    def _supersedes(self, head: str, version: str) -> bool:
        """Whether the head is the version, or had seen it."""
        if self.family == "snapshot":
            return head == version or clocks.dominates(self.clocks[head], self.clocks[version])
        seen, waiting = set(), [head]
        while waiting:
            at = waiting.pop()
            if at not in seen:
                seen.add(at)
                waiting += self.parents.get(at, ())
        return version in seen

    async def _heads_of_relay(self, node: Node) -> dict[str, set[str]]:
        """As the relay itself has them."""
        found: dict[str, set[str]] = {}
        async with RelayClient.open(node.url) as client:
            if self.family == "snapshot":
                filter_ = {"mode": "bootstrap", "kinds": [42061], "authors": [self.keys.pubkey]}
                for event in (await client.changes(filter_)).snapshots:
                    d = next(tag[1] for tag in event["tags"] if tag[0] == "d")
                    found.setdefault(d, set()).add(event["id"])
                return found
            await client.send("NEG-OPEN", "heads", {"#p": [self.keys.pubkey]})
            assert (await client.next_of("heads"))[0] == "NEG-STATUS"
            reconciler = Reconciler(Items.build([], b""))
            message: bytes | None = reconciler.initiate()
            while message is not None:
                await client.send("NEG-MSG", "heads", message.hex())
                step = reconciler.reconcile(bytes.fromhex((await client.next_of("heads"))[2]))
                for id in step.need:
                    found.setdefault(self.written.get(id.hex(), "?"), set()).add(id.hex())
                message = step.message
        return found

    async def _end(self) -> None:
        for replica in self.replicas:
            await replica.close()
        for pair in self.wires:
            for wire in pair:
                await wire.close()


def check(nodes: tuple[Node, Node], family: str, examples: int, steps: int) -> None:
    machine = type("Convergence", (World,), {"nodes": nodes, "family": family})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None, print_blob=True)
    )


@pytest.mark.timeout(400)
def test_after_healing_all_replicas_and_relays_are_the_same_and_nothing_is_lost(
    node: Node, second_node: Node, family: str
):
    check((node, second_node), family, examples=40, steps=30)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_same_for_many_more_and_longer_stories(node: Node, second_node: Node, family: str):
    check((node, second_node), family, examples=200, steps=60)
