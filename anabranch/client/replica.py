"""The replica: an app's documents in a file, in step with any number of relays.

Every `put` is at once a signed, encrypted version on disk; when it returns, no crash can lose it. There is no «dirty»
state: what others wrote meanwhile is another version, and two that were written apart are a conflict, which makes the
document read-only until `resolve()`. Relays are followed in the background, each on its own; the app may be offline
for as long as it likes.

    async with await Replica.open("notes.db", keys, relays=["wss://relay.example"]) as replica:
        await replica.put("shopping", {"text": "milk"})
        await replica.caught_up()
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import apsw

from anabranch.client import base as bases
from anabranch.client.base import Base
from anabranch.client.document import Change, ChangeKind, Document, DocumentVersion, RelayStatus
from anabranch.client.errors import (
    BadContent,
    Closed,
    NoSuchDocument,
    NoSuchRelay,
    NoSuchVersion,
    NotInConflict,
    ReadOnly,
    Unreadable,
)
from anabranch.client.feed import Changes, Feed
from anabranch.client.file import ReplicaFile, Stored
from anabranch.client.follower import State, Timing
from anabranch.client.following import Following
from anabranch.client.information import normalised
from anabranch.client.ledger import KnownRelay, Ledger
from anabranch.client.now import REAL, World
from anabranch.client.sealing import Draft, Sealer
from anabranch.core import nostr, replica
from anabranch.core.nostr import Event, Invalid, Keys
from anabranch.core.operation import Family
from anabranch.core.replica import Version

T = TypeVar("T")

PROVERS = 2
READ_MAX = 512
"""Contents that are kept in memory after they were decrypted. On disk there is none."""
OTHERS_SECONDS = 1.0
"""How soon a write by another process on the same file is noticed."""


class Replica:
    """Open one with `Replica.open`. Not for several event loops; several processes may share a file."""

    def __init__(self, file: ReplicaFile, keys: Keys, world: World, timing: Timing, pool: ThreadPoolExecutor) -> None:
        self.file = file
        self.ledger = Ledger(file)
        self.world = world
        self.sealer = Sealer(keys, file.family, file.device, world)
        self._timing = timing
        self._pool = pool  # one thread: the file is written and read there, and nowhere else
        self._provers = ThreadPoolExecutor(PROVERS, "anabranch-prover")
        self._feed = Feed()
        self._followings: dict[str, Following] = {}
        self._read: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._follows = False
        self._closing = self._closed = False
        self._others: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        path: str | Path,
        keys: Keys,
        *,
        relays: Iterable[str] = (),
        family: Literal["snapshot", "revision"] | None = None,
        device: str | None = None,
        follow: bool = True,
        timing: Timing | None = None,
        world: World = REAL,
    ) -> Replica:
        """The replica in a file, made if there is none.

        `family` is chosen when the file is made («snapshot» if nothing is said) and remembered. `relays` are added to
        those that the file knows. `device` is a random UUID that the file remembers, unless another is given: a copy
        of a file needs one of its own. With `follow=False` no relay is spoken with.
        """
        pool = ThreadPoolExecutor(1, "anabranch-file")
        chosen = None if family is None else Family[family.upper()]
        loop = asyncio.get_running_loop()
        try:
            file = await loop.run_in_executor(
                pool, lambda: ReplicaFile.open(Path(path), keys.pubkey, chosen, device, world.new_uuid)
            )
        except BaseException:
            pool.shutdown(wait=False)
            raise
        opened = cls(file, keys, world, timing or Timing(), pool)
        try:
            for url in relays:
                await opened.in_file(opened.ledger.add, normalised(url), None)
            opened._follows = follow
            if follow:
                for known in await opened.in_file(opened.ledger.relays):
                    opened._follow(known)
                opened._others = asyncio.create_task(opened._notice_others())
        except BaseException:
            await opened.close()
            raise
        return opened

    async def close(self) -> None:
        """Stop following and close the file. What is owed stays owed, and is sent the next time."""
        if self._closing:
            return
        self._closing = True
        try:
            others = [] if self._others is None else [self._others]
            for task in others:
                task.cancel()
            stopping = (following.stop() for following in self._followings.values())
            await asyncio.gather(*others, *stopping, return_exceptions=True)  # whatever went wrong in one of them
        finally:
            self._closed = True
            self._feed.close()
            try:
                await asyncio.get_running_loop().run_in_executor(self._pool, self.file.close)
            finally:
                self._pool.shutdown(wait=False)
                self._provers.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> Replica:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def device(self) -> str:
        return self.file.device

    @property
    def owner(self) -> str:
        return self.file.owner

    @property
    def family(self) -> str:
        return self.file.family.name.lower()

    # --- documents ---

    async def put(
        self, d: str, content: Mapping[str, Any], collection: str | None = None, *, base: Base | None = None
    ) -> str:
        """Write a version; its id. `ReadOnly` where the document is in conflict.

        It stands on `base`, the document (or the ids of its versions; none: there was no document) as you read it: what
        was written since is a conflict then, and not lost. Without a base it supersedes whatever is current.
        """
        return await self._write(d, lambda ground: content, collection, base)

    async def delete(self, d: str, *, base: Base | None = None) -> str:
        """Write a tombstone; its id. Its history stays for a while, and `restore` brings it back.

        `base` is as in `put`.
        """

        def gone(ground: list[Version]) -> None:
            if all(version.deletes for version in ground):
                raise NoSuchDocument(d)

        return await self._write(d, gone, base=base)

    async def resolve(
        self,
        d: str,
        content: Mapping[str, Any] | None = None,
        *,
        base: Base | None = None,
        pick: str | None = None,
        delete: bool = False,
    ) -> str:
        """End a conflict: with a merged content, with one of its versions (`pick`), or with the deletion of it all.

        `base` is the conflict as it was shown: exactly its versions are settled, and one that came since stays in
        conflict. Without it whatever is in conflict now is settled, seen or not.
        """
        if (content is not None) + (pick is not None) + delete != 1:
            raise BadContent("resolve() takes a content, or pick=<version>, or delete=True, and only one of them")

        def chosen(ground: list[Version]) -> Mapping[str, Any] | None:
            if len(ground) < 2:
                raise NotInConflict(d) if ground else NoSuchDocument(d)
            if pick is None:
                return content
            if all(version.id != pick for version in ground):
                raise NoSuchVersion(d, pick)
            return self._content(_found(d, pick, self.file.some(d, [pick])))

        return await self._write(d, chosen, base=base, settles=True)

    async def restore(self, d: str, version: str, *, base: Base | None = None) -> str:
        """Write an old version's content as a new version. `base` as in `put`."""
        kept = await self.in_file(self.file.versions, d)
        old = _found(d, version, kept)
        if old.version.deletes:
            raise BadContent("this version deletes the document; call delete()")
        content = await self.in_file(self._content, old)
        return await self._write(d, lambda ground: content, base=base)

    async def _write(
        self,
        d: str,
        choose: Callable[[list[Version]], Mapping[str, Any] | None],
        collection: str | None = None,
        base: Base | None = None,
        settles: bool = False,
    ) -> str:
        read = base if base is None or isinstance(base, Document) else bases.ids(base)  # an iterator is read once

        def make(heads: list[Stored]) -> Event:
            current = [head.version for head in heads]
            ground = current if read is None else bases.versions(read, d, self.file)
            if settles and len(current) == 1:
                raise NotInConflict(d)  # somebody else has settled it
            if len(ground) > 1 and not settles:
                raise ReadOnly(read if isinstance(read, Document) else self._document(d, heads, read=False))
            kept = collection if collection or not ground else replica.shown(ground).collection
            try:
                return self.sealer.seal(Draft(d, choose(ground), kept), ground, current)
            except Invalid as error:
                raise BadContent(str(error)) from None

        version, changes = await self.in_file(self.file.write, d, make)
        self.tell(changes)
        for following in self._followings.values():
            following.stir()
        return version.id

    async def get(self, d: str) -> Document | None:
        """The document as it stands, read; None where there is none or it is deleted. Raises `Unreadable`."""
        found = await self.in_file(self._get, d)
        if found is None or found.deleted:
            return None
        if found.problem is not None and not found.in_conflict:
            raise Unreadable(found.versions[0].id, found.problem)
        return found

    def _get(self, d: str) -> Document | None:
        heads = self.file.heads(d)
        return self._document(d, heads) if heads else None

    async def documents(self, *, read: bool = True, deleted: bool = False) -> list[Document]:
        """All documents, those last written first. `read=False` decrypts nothing; `deleted` lists the deleted too."""

        def listed() -> list[Document]:
            found = self._grouped(self.file.all_heads(), read)
            return [document for document in found if deleted or not document.deleted]

        return await self.in_file(listed)

    async def conflicts(self) -> list[Document]:
        """Documents with several current versions."""
        return await self.in_file(lambda: self._grouped(self.file.conflicted(), True))

    async def history(self, d: str) -> list[DocumentVersion]:
        """The current versions, then those they superseded, the newest first, as far as they are kept."""

        def told() -> list[DocumentVersion]:
            kept = self.file.versions(d)
            if not kept:
                raise NoSuchDocument(d)
            return [self._version(one, read=True) for one in kept]

        return await self.in_file(told)

    async def find(self, beginning: str, limit: int = 10) -> list[str]:
        """The names of documents that begin so."""
        return await self.in_file(self.file.coordinates, beginning, limit)

    # --- reading what is sealed (in the file's thread) ---

    def _grouped(self, heads: list[Stored], read: bool) -> list[Document]:
        groups = groupby(heads, key=lambda one: one.version.coordinate)
        found = [self._document(d, list(group), read) for d, group in groups]
        return sorted(found, key=lambda document: (-document.mtime, document.d))

    def _document(self, d: str, heads: list[Stored], read: bool = True) -> Document:
        shown = replica.shown([head.version for head in heads])
        ordered = sorted(heads, key=lambda head: head.version.recency, reverse=True)
        versions = tuple(self._version(head, read) for head in ordered)
        first = next(one for one in versions if one.id == shown.id)
        return Document(d, first.content, shown.collection, shown.mtime, versions, first.problem)

    def _version(self, one: Stored, read: bool) -> DocumentVersion:
        """One that cannot be read must not hide the others."""
        version = one.version
        content = problem = None
        try:
            content = self._content(one) if read else None
        except Unreadable as error:
            problem = error.why
        return DocumentVersion(
            version.id, version.deletes, version.mtime, one.head, one.own, content, problem, version.clock
        )

    def _content(self, one: Stored) -> dict[str, Any] | None:
        version = one.version
        if version.deletes:
            return None
        if version.id in self._read:
            self._read.move_to_end(version.id)
            return dict(self._read[version.id])
        try:
            event, _ = nostr.parse(one.raw or b"", nostr.Limits(event_bytes=1 << 24, content_characters=1 << 24))
            facts = replica.read(event, self.file.family, self.file.owner)  # with the parents, which rows lack
            content = self.sealer.open(event, facts)
        except Invalid as error:
            raise Unreadable(version.id, str(error)) from None
        self._read[version.id] = content
        if len(self._read) > READ_MAX:
            self._read.popitem(last=False)
        return dict(content)

    # --- relays ---

    async def add_relay(self, url: str, access_key: str | None = None) -> str:
        """One more relay to follow, and its address in one spelling; what it lacks is sent to it.

        An access key is for private relays that ask for one.
        """
        known = await self.in_file(self.ledger.add, normalised(url), access_key)
        if (old := self._followings.pop(known.url, None)) is not None:
            await old.stop()
        if self._follows:
            self._follow(known)
        return known.url

    async def remove_relay(self, url: str) -> None:
        """Follow it no longer, and forget how far it was followed. Documents stay."""
        url = normalised(url)
        if (following := self._followings.pop(url, None)) is not None:
            await following.stop()
        await self.in_file(self.ledger.remove, url)

    def _follow(self, known: KnownRelay) -> None:
        self._followings[known.url] = Following(self, known, self._timing)

    async def caught_up(self, relay: str | None = None) -> None:
        """Wait until a relay (all of them, if none is named) has all that is here, and we all that it has."""
        if relay is not None:
            await self._following(relay).settled.wait()
            return
        while not all(following.settled.is_set() for following in self._followings.values()):
            for following in list(self._followings.values()):
                await following.settled.wait()

    def try_now(self) -> None:
        """Do not wait for the next try with relays that cannot be reached."""
        for following in self._followings.values():
            following.try_now()

    async def retry(self, relay: str) -> int:
        """Offer a relay again what it refused for good; how many versions that is."""
        following = self._following(relay)
        count = await self.in_file(self.ledger.retry, following.relay)
        following.stir(anew=True)
        return count

    async def status(self) -> list[RelayStatus]:
        """How each relay stands."""
        stands = []
        for known in await self.in_file(self.ledger.relays):
            account = await self.in_file(self.ledger.account, known.relay)
            following = self._followings.get(known.url)
            follower = following.follower if following is not None else None
            at, now = known.checkpoint, self.world.monotonic()
            waits = follower is not None and follower.state is State.OFFLINE and follower.retry_at is not None
            stands.append(
                RelayStatus(
                    known.url,
                    (follower.state if follower is not None else State.OFFLINE).value,
                    following is not None and following.settled.is_set(),
                    at.stream if at else None,
                    at.epoch if at else None,
                    at.position if at else None,
                    account.owed,
                    account.refused,
                    account.removed,
                    known.dropped,
                    known.last_dropped,
                    (follower.last_error or follower.last_refusal) if follower is not None else None,
                    follower.last_notice if follower is not None else None,
                    max(0.0, (follower.retry_at or 0.0) - now) if waits and follower is not None else None,
                )
            )
        return stands

    def _following(self, url: str) -> Following:
        found = self._followings.get(normalised(url))
        if found is None:
            raise NoSuchRelay(url)
        return found

    def changes(self) -> Changes:
        """What changes from now on: an async iterator."""
        return self._feed.watch()

    # --- for those who follow relays on our behalf ---

    async def in_file(self, work: Callable[..., T], *arguments: Any) -> T:
        if self._closed:
            raise Closed()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    async def in_prover(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._provers, work, *arguments)

    def tell(self, changes: list[Change]) -> None:
        self._feed.tell(changes)

    def stir_others(self, url: str) -> None:
        for following in self._followings.values():
            if following.url != url:
                following.stir()

    async def _notice_others(self) -> None:
        """Another process may write into the same file: what it wrote is owed as well."""
        before: int | None = None
        while True:
            after = before
            try:
                after = await self.in_file(self.file.data_version)
            except apsw.Error:
                pass  # the file is held or damaged for the moment; whoever writes is told
            if before is None:
                before = after
            elif after != before:
                before = after
                self.tell([Change(ChangeKind.WRITTEN, detail="another process wrote to the file")])
                for following in self._followings.values():
                    following.stir()
            await asyncio.sleep(OTHERS_SECONDS)


def _found(d: str, version: str, among: list[Stored]) -> Stored:
    found = next((one for one in among if one.version.id == version), None)
    if found is None:
        raise NoSuchVersion(d, version)
    return found
