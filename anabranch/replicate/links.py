"""The links of a node: started from the ledger and the settings, commanded, described, and brought to an end.

A link of the settings file stands for itself: it comes with the file and goes with it, and what stays the same is not
touched when the file is read again. One that was added by command stays until it is removed, or until the file has one
of its name or its purpose.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from anabranch.core import canonical
from anabranch.core.nostr import Invalid
from anabranch.core.scope import Scope
from anabranch.replicate.applying import Host
from anabranch.replicate.budget import BYTES_MAX, Budget
from anabranch.replicate.explaining import described, explained
from anabranch.replicate.following import Following, World
from anabranch.replicate.identity import KeyFiles, NoIdentity
from anabranch.replicate.link import Link
from anabranch.replicate.measuring import Measures
from anabranch.replicate.room import Room
from anabranch.replicate.spec import Direction, LinkSpec, Timing
from anabranch.replicate.states import LinkState
from anabranch.store.contract import LinkRecord, StoreError
from anabranch.wire.address import normalised

log = logging.getLogger(__name__)

LINKS_MAX = 10_000
GIVING_BYTES_MIN, GIVING_BYTES_MAX = 64 << 10, 1 << 20
SPREAD_SECONDS = 0.01  # between the first tries of links, so that many do not dial at once
USUAL = Timing()
_FIELDS = ("name", "peer", "direction", "scope", "key_file", "access_key_file")
_HAS = f"{', '.join(_FIELDS[:-1])} and {_FIELDS[-1]}"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class LinkError(ValueError):
    """A command about a link cannot be carried out; the text says why and what to do."""


class NoSuchLink(LinkError):
    pass


def spec_of(raw: Any, origin: str = "command") -> LinkSpec:
    """The link that a decoded JSON or TOML value asks for; `LinkError` says what is wrong with it."""
    if not isinstance(raw, dict):
        raise LinkError(f"a link is an object with {_HAS}")
    unknown = [name for name in raw if name not in _FIELDS]
    if unknown:
        raise LinkError(f"unknown field {str(unknown[0])[:32]!r}; a link has {_HAS}")
    peer = normalised(raw["peer"]) if isinstance(raw.get("peer"), str) else None
    if peer is None:
        raise LinkError("peer must be the address of a relay, like wss://relay.example")
    try:
        direction = Direction(raw.get("direction", "pull"))
        scope = Scope.parse(raw.get("scope", {}))
    except Invalid as error:
        raise LinkError(f"scope: {error}") from None
    except ValueError:
        raise LinkError('direction must be "pull", "push" or "both"') from None
    name = raw.get("name") or _named_after(peer, scope)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise LinkError("name must be 1 to 64 letters, digits, dots, dashes or underscores")
    return LinkSpec(name, peer, scope, direction, origin, _files(raw))


def _files(raw: dict[str, Any]) -> KeyFiles:
    for name in ("key_file", "access_key_file"):
        given = raw.get(name)
        if given is not None and (not isinstance(given, str) or not Path(given).is_absolute()):
            raise LinkError(f"{name} must be the path of a file on the node's machine, from the root: /…")
    files = KeyFiles(raw.get("key_file"), raw.get("access_key_file"))
    if files.access_key is not None and files.key is None:
        raise LinkError("access_key_file goes with key_file: a peer that asks for an access key asks for a signature")
    return files


def check_keys(spec: LinkSpec) -> LinkSpec:
    """The same link, whose key files have keys; `LinkError` says what is wrong with one."""
    try:
        spec.files.read()
    except NoIdentity as error:
        raise LinkError(str(error)) from None
    return spec


def _named_after(peer: str, scope: Scope) -> str:
    public = peer.partition("://")[2].partition("?")[0]  # a query may be a password
    host = re.sub(r"[^A-Za-z0-9.]+", "-", public).strip("-.")[:48]
    return host if not scope.conditions() else f"{host}-{scope.id[:8]}"


def _remembered(record: LinkRecord) -> LinkSpec:
    scope = Scope.parse(canonical.decode(record.scope))
    files = KeyFiles(record.key_file, record.access_key_file)
    return LinkSpec(record.name, record.peer, scope, Direction(record.direction), record.origin, files)


class Links:
    """All links of one node; on the event loop's thread alone."""

    def __init__(
        self,
        host: Host,
        *,
        clock: Callable[[], float],
        wall: Callable[[], int],
        share: Callable[[], float],
        timing: Timing = USUAL,
        measures: Measures | None = None,
        follow: Callable[[World, LinkSpec, LinkRecord], Following] = Following,
    ) -> None:
        self.host = host
        self.budget = Budget()
        self.room = Room()
        self.clock = clock
        self.wall = wall
        self.share = share
        self.timing = timing
        self.links: dict[str, Following] = {}
        self._follow = follow
        self._measures = measures
        self._feeding: dict[str, tuple[str, ...]] = {}
        self._stirring = False
        self._changing = asyncio.Lock()  # which links there are
        self._stopped = False
        self._were_paused: set[str] = set()  # links that a reload took away, and could not put back yet
        if measures is not None:
            measures.watch(self)

    async def start(self, configured: Iterable[LinkSpec] = ()) -> None:
        """Every link of the ledger and of the settings, as it stood when the node last ran."""
        for number, record in enumerate(await self.host.read(lambda reader: reader.links())):
            self.links[record.name] = self._follow(self, _remembered(record), record)
            self.links[record.name].link.retry_at = self.clock() + number * SPREAD_SECONDS
        self._note_feeding()
        await self.configure(configured)

    async def stop(self) -> None:
        self._stopped = True  # who asks for a link from now on would make it anew, and forget how it stood
        await self._stop_all()
        async with self._changing:  # until then somebody may have been about to begin one
            await self._stop_all()

    async def _stop_all(self) -> None:
        links, self.links = self.links, {}
        stopped = await asyncio.gather(*(link.stop() for link in links.values()), return_exceptions=True)
        for name, error in zip(links, stopped, strict=True):
            if isinstance(error, Exception):
                log.error("a link did not stop in order", extra={"link": name, "cause": repr(error)})

    async def configure(self, configured: Iterable[LinkSpec]) -> dict[str, list[str]]:
        """Make the links of the settings file what it says, and touch no other but those that do the same."""
        wanted = {spec.name: spec for spec in configured}
        changes: dict[str, list[str]] = {"added": [], "removed": [], "kept": []}
        purposes = {spec.purpose for spec in wanted.values()}
        async with self._changing:
            self._check_running()
            paused = self._were_paused
            paused.update(name for name, link in self.links.items() if link.link.state is LinkState.PAUSED)
            for name, link in list(self.links.items()):
                # One that was added by command gives way to one of the file that has its name, or does what it does.
                double = name in wanted or link.spec.purpose in purposes
                if wanted.get(name) != link.spec and (double or link.spec.origin == "config"):
                    await self._remove(name)
                    changes["removed"].append(name)
            for name, spec in wanted.items():
                if name in self.links:
                    changes["kept"].append(name)
                else:
                    await self._add(spec, paused=name in paused)
                    changes["added"].append(name)
            self._were_paused = set()
        return changes

    def _check_running(self) -> None:
        if self._stopped:
            raise LinkError("the node is stopping; start it again first")

    def _begin(self, spec: LinkSpec, record: LinkRecord) -> None:
        self.links[spec.name] = self._follow(self, spec, record)
        self._note_feeding()

    def _note_feeding(self) -> None:
        feeding: dict[str, list[str]] = {}
        for name, link in self.links.items():
            if link.spec.pushes:
                feeding.setdefault(link.spec.peer, []).append(name)
        self._feeding = {peer: tuple(names) for peer, names in feeding.items()}

    # --- commands ---

    async def add(self, spec: LinkSpec) -> Following:
        async with self._changing:
            return await self._add(spec)

    async def _add(self, spec: LinkSpec, paused: bool = False) -> Following:
        self._check_running()
        if spec.name in self.links:
            raise LinkError(f"there is a link {spec.name!r} already; remove it first, or choose another name")
        for other in self.links.values():
            if other.spec.purpose == spec.purpose:
                raise LinkError(f"the link {other.spec.name!r} has the same peer, scope and direction")
        if len(self.links) >= LINKS_MAX:
            raise LinkError(f"there are {LINKS_MAX} links already")
        record = LinkRecord(
            spec.name,
            spec.peer,
            spec.direction,
            spec.scope.canonical(),
            spec.origin,
            LinkState.PAUSED if paused else LinkState.INITIAL,
            created_at=self.wall(),
            key_file=spec.files.key,
            access_key_file=spec.files.access_key,
        )
        await self.host.write(lambda writer: writer.save_link(record))
        self._begin(spec, record)
        return self.links[spec.name]

    async def remove(self, name: str) -> None:
        """Let go of a link and of all that the ledger knows of it. What it brought stays."""
        async with self._changing:
            await self._remove(name)

    async def _remove(self, name: str) -> None:
        link = self.find(name)
        del self.links[name]
        self._note_feeding()
        await link.stop()
        try:
            await self.host.write(lambda writer: writer.delete_link(name))
        except StoreError:
            stored = await self.host.read(lambda reader: reader.links())
            for record in stored:
                if record.name == name:
                    self._begin(link.spec, record)
            raise

    async def command(self, name: str, verb: str) -> None:
        """pause, resume, repair or reset; done once it is written down."""
        link = self.find(name)
        if verb == "repair":
            if link.link.state == "paused":
                raise LinkError(f"the link {name!r} is paused; resume it first")
            await self.host.write(lambda writer: writer.retry_dead_letters(name))
        steps: dict[str, Callable[[Link, float], Any]] = {
            "pause": Link.pause,
            "resume": Link.resume,
            "repair": Link.repair,
            "reset": Link.reset,
        }
        await link.command(steps[verb])

    def find(self, name: str) -> Following:
        if name not in self.links:
            raise NoSuchLink(f"there is no link {name!r}; `anabranch link list` shows those there are")
        return self.links[name]

    # --- what links ask of each other and of the node ---

    def published(self) -> None:
        """Our own log has grown: those who feed others look at it, once in a turn of the loop."""
        if self._feeding and not self._stirring:
            self._stirring = True
            asyncio.get_running_loop().call_soon(self._stir)

    def _stir(self) -> None:
        self._stirring = False
        for link in list(self.links.values()):
            link.stir()

    def feeding(self, peer: str) -> tuple[str, ...]:
        return self._feeding.get(peer, ())

    @property
    def giving_bytes(self) -> int:
        """How much one link reads of our own log at once, to give it away: together not more than all may hold."""
        return max(GIVING_BYTES_MIN, min(GIVING_BYTES_MAX, BYTES_MAX // max(1, len(self.links))))

    def repaired(self, reason: str) -> None:
        if self._measures is not None:
            self._measures.repairs.labels(reason).inc()

    def blocked(self, kind: str) -> None:
        if self._measures is not None:
            self._measures.closure_missing.labels(kind).inc()

    def took(self, milliseconds: float) -> None:
        if self._measures is not None:
            self._measures.apply_latency.observe(milliseconds)

    # --- what people ask ---

    def describe(self, name: str) -> dict[str, Any]:
        return described(self.find(name), self.clock(), self.wall(), self.host.log)

    async def show(self, name: str) -> dict[str, Any]:
        """A link, its dead letters and its last transitions."""
        shown = self.describe(name)
        dead, count, transitions = await self.host.read(
            lambda reader: (
                reader.dead_letters(name, 100),
                reader.dead_letter_count(name),
                reader.transitions(name),
            )
        )
        return {
            **shown,
            "dead_letter_count": count,
            "dead_letters": msgspec.to_builtins(dead),
            "transitions": msgspec.to_builtins(transitions),
        }

    async def explain(self, name: str) -> dict[str, Any]:
        """What a link waits for, since when, when it tries next, and what is probably the matter."""
        count, transitions = await self.host.read(lambda r: (r.dead_letter_count(name), r.transitions(name)))
        link = self.find(name)
        turns = [one.at for one in transitions if one.before != one.after]
        since = link.since if link.since is not None else max([link.record.created_at, *turns])
        return explained(link, self.clock(), self.wall(), self.host.log, count, since)
