"""What people do in the world: edits, deletions, merges and twins, of every family, from devices that lag behind.

A device writes on top of what it has seen, which may be old: that is where conflicts come from. Now and then it reads
its node and merges all heads there are. A twin is a second operation that says the same: of a snapshot one with the
same clock, as of a device that was cloned; of a revision the same one in another wrap.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable

from anabranch.core import replica
from anabranch.core.nostr import DELETION, Event, Keys
from anabranch.core.operation import Family
from anabranch.core.replica import Version
from anabranch.core.revisions import GIFT_WRAP
from anabranch.core.snapshots import NOTE
from anabranch.sim.signing import Notary, keys

WRAP_KEYS = 16  # of those that only sign wraps
PLAIN, PROFILE, ARTICLE = 1, 0, 30_023


class Author:
    """Somebody, and the documents they write."""

    def __init__(self, number: int, family: Family, documents: int) -> None:
        self.keys: Keys = keys(number)
        self.family = family
        self.coordinates = [f"{number}-{at}" for at in range(documents)]

    @property
    def pubkey(self) -> str:
        return self.keys.pubkey


class Device:
    """One of an author's devices: what it knows of each document, and what it writes next."""

    def __init__(self, name: str, author: Author, notary: Notary, random: random.Random) -> None:
        self.name = name
        self.author = author
        self._notary = notary
        self._random = random
        self._heads: dict[str, list[Version]] = {}
        self._named: set[str] = set()
        self._posts: list[str] = []
        self._number = 0

    def sees(self, coordinate: str, versions: Iterable[Version]) -> None:
        """It has read the document on some node."""
        for version in versions:
            self._learn(coordinate, version)

    def _learn(self, coordinate: str, version: Version) -> None:
        self._named.update(version.parents)
        heads = self._heads.get(coordinate, [])
        named = version.id in self._named
        self._heads[coordinate] = replica.advance(self.author.family, heads, version, named)

    def write(self, now: int, mark: Callable[[str], None]) -> list[Event]:
        """The next thing that somebody does on this device: one operation, or a pair of twins."""
        if self.author.family is Family.PLAIN:
            return [self._post(now, mark)]
        coordinate = self._random.choice(self.author.coordinates)
        heads = self._heads.get(coordinate, [])
        if heads and self._random.random() < 0.15:
            heads = [self._random.choice(heads)]  # it has not seen the others
        deletes = bool(heads) and self._random.random() < 0.15
        twins = 2 if self._random.random() < 0.08 else 1
        if len(heads) > 1:
            mark("merge")
        if deletes:
            mark("delete")
        if twins > 1:
            mark("twin")
        make = self._snapshots if self.author.family is Family.SNAPSHOT else self._revisions
        return make(coordinate, heads, deletes, twins, now)

    def _say(self) -> str:
        self._number += 1
        return f"{self.name} {self._number} " + "x" * self._random.randrange(0, 120)

    def _snapshots(self, coordinate: str, heads: list[Version], deletes: bool, twins: int, now: int) -> list[Event]:
        clock = replica.next_clock(heads, self.name)
        tags = [["d", coordinate], ["o", "del" if deletes else "put"]]
        tags += [["vc", device, str(count)] for device, count in sorted(clock.items())]
        events = [self._notary.sign(self.author.keys, NOTE, tags, self._say(), now) for _ in range(twins)]
        for event in events:
            self._learn(coordinate, Version(event.id, coordinate, deletes, now * 1000, clock=clock))
        return events

    def _revisions(self, coordinate: str, heads: list[Version], deletes: bool, wraps: int, now: int) -> list[Event]:
        said = self._say()
        revision = hashlib.sha256(said.encode()).hexdigest()
        parents = replica.next_parents(heads)
        mtime = now * 1000 + self._random.randrange(1000)
        tags = [["p", self.author.pubkey], ["d", coordinate], ["r", revision], *(["prev", one] for one in parents)]
        tags += [["op", "del" if deletes else "put"], ["m", str(mtime)], ["v", "2"]]
        self._learn(coordinate, Version(revision, coordinate, deletes, mtime, parents=parents))
        return [
            self._notary.sign(
                keys(1_000 + self._random.randrange(WRAP_KEYS)),
                GIFT_WRAP,
                tags,
                said,
                now - self._random.randrange(172_800),
            )
            for _ in range(wraps)
        ]

    def _post(self, now: int, mark: Callable[[str], None]) -> Event:
        """What is of no family: notes, profiles, articles, and the deletion of one's own."""
        chance, author = self._random.random(), self.author.keys
        if chance < 0.15 and self._posts:
            mark("deletion request")
            return self._notary.sign(author, DELETION, [["e", self._random.choice(self._posts)]], "", now)
        if chance < 0.3:
            mark("replaced")
            hour = now - now % 3600  # as some apps tell it, so that many versions of one thing are of the same time
            return self._notary.sign(author, PROFILE, [], self._say(), hour)
        if chance < 0.5:
            tags = [["d", self._random.choice(self.author.coordinates)]]
            return self._notary.sign(author, ARTICLE, tags, self._say(), now)
        event = self._notary.sign(author, PLAIN, [["t", self.name]], self._say(), now)
        self._posts.append(event.id)
        return event


def forged(random: random.Random, event: Event) -> Event:
    """The same event, with a signature that is none."""
    at = random.randrange(128)
    digit = "0" if event.sig[at] != "0" else "1"
    return Event(
        event.id,
        event.pubkey,
        event.created_at,
        event.kind,
        event.tags,
        event.content,
        event.sig[:at] + digit + event.sig[at + 1 :],
    )
