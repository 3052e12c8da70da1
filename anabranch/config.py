"""Settings: one typed table, filled from defaults, a TOML file, the environment and flags, in that order.

Every setting has one name: `[retention] mode` in the file is `ANABRANCH_RETENTION_MODE` in the environment, and a
top-level `private` is `ANABRANCH_PRIVATE`. A key that is not known is an error that names the nearest one that is.
The documentation of each setting stands beside it and `docs/reference/settings.md` is tested against this table.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from anabranch.core import nostr, snapshots
from anabranch.core.nostr import Limits
from anabranch.core.operation import KindPolicy
from anabranch.core.retention import DAYS_MAX, Mode, Policy, ReplayWindow

PREFIX = "ANABRANCH_"
NOTES_FOLDER = "ANABRANCH_NOTES"  # where `anabranch notes` keeps its replica: no setting of a node
READER_KEY, READER_ACCESS_KEY = "ANABRANCH_KEY", "ANABRANCH_ACCESS_KEY"  # as whom the pipeline reads: none either

SECRET = frozenset({"admin_token", "store"})
"""Settings that nothing shows."""

FILTER_VALUES_MAX = 10_000  # a CHANGES filter has three long lists, and SQLite binds 32,766 values to a statement

Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Kind = Annotated[int, Meta(ge=0, le=65_535)]
PUBKEY_PATTERN = "^[0-9a-f]{64}$"
Pubkey = Annotated[str, Meta(pattern=PUBKEY_PATTERN)]
Port = Annotated[int, Meta(ge=0, le=65_535)]


class ConfigError(Exception):
    """A setting is wrong; the text says which, and what would be right."""


def doc(type_: Any, text: str) -> Any:
    return Annotated[type_, Meta(description=text)]


class RetentionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    mode: doc(Mode, "which payloads stay: current_only, nondominated_plus_recent_history or full_retention") = (
        Mode.RECENT_HISTORY
    )
    recent_count: doc(Positive, "snapshots of a document whose payload stays, heads included") = 4
    payload_days: doc(
        Annotated[int, Meta(ge=0, le=DAYS_MAX)] | None,
        "age in days at which a dominated snapshot's payload may go; unset: never (0 under current_only)",
    ) = None
    interval_seconds: doc(Positive, "how often compaction runs") = 300
    deleted_documents: doc(
        Natural | None,
        'fully deleted documents kept for one author, the oldest above go altogether; "none": all are kept',
    ) = 100
    deleted_age_seconds: doc(
        Natural, "what was deleted here so lately stays, however many there are: a stranger moves the floor no further"
    ) = 0
    replay_count: doc(Positive | None, "positions of the log that stay replayable; unset: all") = None
    replay_age_seconds: doc(Positive | None, "age of the log that stays replayable; unset: any") = None
    replay_bytes: doc(Positive | None, "payload bytes of the log that stay replayable; unset: all") = None

    def policy(self) -> Policy:
        days = self.payload_days
        if days is None and self.mode is Mode.CURRENT_ONLY:
            days = 0
        return Policy(self.mode, self.recent_count, days, self.deleted_documents, self.deleted_age_seconds)

    def window(self) -> ReplayWindow:
        return ReplayWindow(self.replay_count, self.replay_age_seconds, self.replay_bytes)


class LimitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    connections: doc(Positive, "open connections; the next one is refused with 503") = 10_000
    message_bytes: doc(Positive, "bytes of one websocket message") = 262_144
    event_bytes: doc(Positive, "bytes of one event") = 131_072
    tags: doc(Positive, "tags of one event") = 2_000
    content_characters: doc(Positive, "characters of an event's content") = 102_400
    created_at_ahead_seconds: doc(Natural | None, 'how far in the future created_at may be; "none": any') = 86_400
    created_at_behind_seconds: doc(Natural | None, "how far in the past created_at may be; unset: any") = None
    subscriptions: doc(Positive, "subscriptions of one connection") = 100
    subscription_id_characters: doc(Positive, "characters of a subscription id") = 64
    filters: doc(Positive, "filters of one REQ") = 20
    filter_values: doc(
        Annotated[int, Meta(ge=1, le=FILTER_VALUES_MAX)],
        f"values in all the lists of a filter, in each list of one for CHANGES; at most {FILTER_VALUES_MAX}",
    ) = 2_000
    open_filter_values: doc(
        Positive,
        "values in the filters of all open subscriptions of one connection; one counts once for every 64 characters, "
        "and a filter for 20 more",
    ) = 40_000
    open_filter_values_total: doc(
        Positive, "the same of all connections together, each some 450 bytes of memory; then no more are opened"
    ) = 2_000_000
    query_limit: doc(Positive, "events that one filter gets at the most") = 50_000
    query_seconds: doc(Positive, "how long one query may take") = 20
    bootstrap_seconds: doc(
        Positive,
        "how long a bootstrap may take to be read, and a second more for every 16 KiB of it; then it is ended",
    ) = 600
    queries_at_once: doc(Positive, "queries of one connection that are read at the same time") = 2
    queries_waiting: doc(
        Positive, "queries of one connection that may wait at once; then its socket is read no further"
    ) = 50
    events_in_flight: doc(
        Positive, "events of one connection that may wait to be stored; then its socket is read no further"
    ) = 2_000
    bytes_in_flight: doc(Positive, "bytes of the same; then likewise") = 8_388_608
    bytes_in_flight_total: doc(
        Positive,
        "bytes of all connections' events that may wait to be stored, and 2000 for each event beside its own; "
        "then no socket is read until half of that is done",
    ) = 134_217_728
    bad_messages: doc(Positive, "refused messages in a row after which a connection is closed") = 1_000
    send_buffer_bytes: doc(
        Positive,
        "bytes that may wait for a reader of live events; one that is further behind and comes no nearer for 2 s, "
        "or is twice as far behind and takes nothing, is dropped",
    ) = 8_388_608
    send_buffer_bytes_total: doc(
        Positive, "bytes that may wait for all readers together; then those for whom most waits are dropped"
    ) = 536_870_912
    receive_buffer_bytes_total: doc(
        Positive,
        "bytes of messages and requests that are not whole yet, of all connections; then those with most are dropped",
    ) = 268_435_456
    reconciliations: doc(Positive, "negentropy sessions of one connection") = 16
    reconcile_items: doc(Positive, "items of the set that a negentropy session compares") = 2_000_000
    link_items: doc(
        Positive,
        "operations of this node in the scope of one link; each takes some 300 bytes of memory while they are read, "
        "for `limits.query_seconds` at the most, and 72 while they are compared",
    ) = 5_000_000
    reconcile_seconds: doc(Positive, "how long a negentropy session may be idle") = 60
    reconcile_bytes: doc(Positive, "memory for the sets of all negentropy sessions, and half as much for kept ones") = (
        536_870_912
    )
    idle_seconds: doc(Positive, "silence after which a connection is pinged, and closed when it stays silent") = 120
    handshake_seconds: doc(Positive, "how long a request may take to arrive, its body too") = 10


class LinkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One `[[links]]` table of the settings file."""

    peer: str
    name: str | None = None
    direction: Annotated[str, Meta(pattern="^(pull|push|both)$")] = "pull"
    scope: dict[str, Any] = {}
    key_file: str | None = None
    access_key_file: str | None = None


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    host: doc(str, "address to listen on") = "127.0.0.1"
    port: doc(Port, "port to listen on; 0 takes a free one") = 7447
    data: doc(str, "folder of the store") = "./data"
    store: doc(
        str,
        "where the log is kept: empty: SQLite in `data`; or postgresql://USER:PASSWORD@HOST/DATABASE",
    ) = ""
    name: doc(str, "the relay's name in NIP-11") = "Anabranch"
    description: doc(str, "the relay's description in NIP-11") = "A relay with changes feeds and reconciliation."
    contact: doc(str | None, "the operator's address in NIP-11") = None
    pubkey: doc(Pubkey | None, "the operator's public key in NIP-11, hex") = None
    private: doc(bool, "only authenticated authors read and write, each their own") = False
    revision_writes: doc(
        Annotated[str, Meta(pattern="^(anybody|recipient)$")],
        "who writes revisions on a public node: anybody, or only their recipient, authenticated",
    ) = "anybody"
    allowed_pubkeys: doc(tuple[Pubkey, ...], "who may authenticate in private mode; unset: anybody") = ()
    relay_url: doc(
        str | None, "the url that AUTH and a request to vanish must name; unset: AUTH any, the latter ALL_RELAYS"
    ) = None
    admin_token: doc(
        str | None,
        "bearer token of the admin API; unset: retention, compaction and links are open to every user of this machine, "
        "who can so take a private node's data away, and the rest is off",
    ) = None
    kinds: doc(Annotated[str, Meta(pattern="^(all|sync)$")], "all, or sync: only sync, companion and pass-through") = (
        "all"
    )
    snapshot_kinds: doc(tuple[Kind, ...], "kinds of the sync range that are taken as snapshots") = tuple(
        snapshots.KINDS
    )
    companion_kinds: doc(tuple[Kind, ...], "kinds stored beside the sync state as companions") = ()
    pass_through_kinds: doc(tuple[Kind, ...], "kinds stored beside the sync state unclassified") = ()
    durability: doc(
        Annotated[str, Meta(pattern="^(full|normal)$")],
        "full: acknowledged is on disk; normal: faster, and a power cut may lose the last acknowledged events",
    ) = "full"
    verify_workers: doc(Natural | None, "processes that check signatures; unset: one for each core, at most 4") = None
    log_format: doc(Annotated[str, Meta(pattern="^(text|json)$")], "how log lines are written") = "text"
    log_level: doc(Annotated[str, Meta(pattern="^(debug|info|warning|error)$")], "which log lines are written") = "info"
    links: doc(
        tuple[LinkSettings, ...],
        "whom this node follows and feeds, one `[[links]]` table each with peer, name, direction, scope, "
        "key_file and access_key_file; "
        "in the environment a JSON list",
    ) = ()
    retention: RetentionSettings = RetentionSettings()
    limits: LimitSettings = LimitSettings()

    def kind_policy(self) -> KindPolicy:
        return KindPolicy(
            self.kinds == "sync",
            frozenset(self.companion_kinds),
            frozenset(self.pass_through_kinds),
            frozenset(self.snapshot_kinds),
            self.relay_url,
        )

    def event_limits(self) -> Limits:
        limits = self.limits
        return Limits(
            limits.event_bytes,
            limits.tags,
            limits.content_characters,
            limits.created_at_ahead_seconds,
            limits.created_at_behind_seconds,
        )


@dataclass(frozen=True)
class Setting:
    """One setting as people see it."""

    path: tuple[str, ...]
    type: Any
    default: Any
    description: str

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def may_be_unset(self) -> bool:
        try:
            return msgspec.convert(None, self.type) is None
        except msgspec.ValidationError:
            return False

    @property
    def variable(self) -> str:
        return PREFIX + "_".join(self.path).upper()


def settings_table() -> list[Setting]:
    """Every setting, in the order of the file."""
    return list(_walk(Settings, ()))


def _walk(struct: type[msgspec.Struct], path: tuple[str, ...]) -> Any:
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        type_ = hints[field.name]
        if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
            yield from _walk(type_, (*path, field.name))
            continue
        description = ""
        if get_origin(type_) is Annotated:
            description = next((m.description for m in get_args(type_)[1:] if m.description), "")
        yield Setting((*path, field.name), type_, field.default, description)


def load(
    file: Path | None = None, environment: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
) -> Settings:
    """The settings in force: flags over environment over file over defaults. Raises `ConfigError`."""
    values: dict[str, Any] = {}
    if file is not None:
        values = _read(file)
    table = {setting.variable: setting for setting in settings_table()}
    for variable, text in sorted((os.environ if environment is None else environment).items()):
        if not variable.startswith(PREFIX) or variable in (NOTES_FOLDER, READER_KEY, READER_ACCESS_KEY):
            continue
        if variable not in table:
            raise ConfigError(f"unknown variable {variable}{_nearest(variable, table)}")
        _put(values, table[variable].path, _from_text(table[variable], text))
    for name, value in (flags or {}).items():
        if value is not None:
            _put(values, tuple(name.split(".")), value)
    try:
        settings = msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error)) + _where(str(error), file)) from None
    _check(settings)
    return settings


def problems(
    file: Path | None = None, environment: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
) -> list[str]:
    """All that is wrong with the settings, not only what `load` stumbles over first; empty when it does not."""
    environment = os.environ if environment is None else environment
    try:
        load(file, environment, flags)
        return []
    except ConfigError as error:
        found = [str(error)]
    table = {setting.key: setting for setting in settings_table()}
    try:
        values = {} if file is None else _toml(file)
    except ConfigError:
        values = {}  # said already
    # Each setting is taken on its own. What two of them say together is checked once each is right.
    found.extend(f"{text} in {file}{nearest}" for text, nearest in _unknown(values))
    for key, value in _leaves(values, ()):
        if key not in table:
            continue
        alone: dict[str, Any] = {}
        _put(alone, table[key].path, value)
        try:
            msgspec.convert(alone, Settings)
        except msgspec.ValidationError as error:
            if "contains unknown field" not in str(error):  # said already, with the nearest that is known
                found.append(f"{_explain(str(error))} in {file}")
    for variable in sorted(name for name in environment if name.startswith(PREFIX)):
        try:
            load(None, {variable: environment[variable]})
        except ConfigError as error:
            if variable in str(error):
                found.append(str(error))
    return list(dict.fromkeys(found))


def in_file(file: Path) -> set[str]:
    """The keys that a settings file sets."""
    return {key for key, _ in _leaves(_toml(file), ())}


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None


def _read(file: Path) -> dict[str, Any]:
    values = _toml(file)
    known = {setting.key: setting for setting in settings_table()}
    for text, nearest in _unknown(values):
        raise ConfigError(f"{text} in {file}{nearest}")
    for key, value in list(_leaves(values, ())):
        if value == "none" and known[key].default is not None and known[key].may_be_unset:  # TOML has no null
            _put(values, known[key].path, None)
    return values


def _unknown(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What of a file's values is no setting, and what was meant; a table without keys too, and keys of a link."""
    settings = {setting.key for setting in settings_table()}
    if isinstance(values.get("links"), dict):
        yield "`[links]` with one pair of brackets", "; each link is a table `[[links]]`, with two"
        values = {name: value for name, value in values.items() if name != "links"}
    for key, value in _leaves(values, ()):
        if key not in settings:
            yield f"unknown key `{key}`", _nearest(key, settings)
        elif key == "links" and isinstance(value, list):
            for name in (name for one in value if isinstance(one, dict) for name in one):
                if name not in LinkSettings.__struct_fields__:
                    yield f"unknown key `links.{name}`", _nearest(name, LinkSettings.__struct_fields__)
    tables = {setting.path[0] for setting in settings_table() if len(setting.path) > 1}
    for name, value in values.items():
        if value == {} and name not in tables:
            yield f"unknown table `[{name}]`", _nearest(name, tables | settings)


def _leaves(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield ".".join((*path, name)), value


def _nearest(name: str, known: Any) -> str:
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean `{found[0]}`?" if found else "; `anabranch config check --all` lists the known ones"


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


def _from_text(setting: Setting, text: str) -> Any:
    """An environment variable's text as the setting's type; an empty one is «unset» where that is possible."""
    try:
        if setting.path == ("links",):
            return msgspec.json.decode(text or "[]")
        if "tuple" in str(setting.type):
            parts = [part for part in text.replace(" ", "").split(",") if part]
            if "int" not in str(setting.type):
                return msgspec.convert(parts, setting.type)
            if not all(part.isdecimal() for part in parts):
                raise ValueError("a list of whole numbers is needed, such as 1,7")
            return msgspec.convert([int(part) for part in parts], setting.type)
        if text == "" and setting.may_be_unset:
            return None
        return msgspec.convert(text, setting.type, strict=False)
    except (ValueError, msgspec.MsgspecError) as error:
        said = "" if setting.key in SECRET else f"={text!r}"
        raise ConfigError(f"{setting.variable}{said}: {_explain(str(error))}") from None


def _where(error: str, file: Path | None) -> str:
    """The file, where a value is wrong in it; else it came from the environment or a flag."""
    try:
        msgspec.convert({} if file is None else _read(file), Settings)
    except msgspec.ValidationError as found:
        if str(found) == error:
            return f" in {file}"
    return ""


def _explain(error: str) -> str:
    text, _, path = error.partition(" - at `$")
    text = _in_words(text)
    return f"`{path.strip('.`')}`: {text}" if path.strip(".`") else text


def _in_words(text: str) -> str:
    """What msgspec says of a value, with the values that are allowed."""
    if choice := re.fullmatch(r"Expected `str` matching regex '\^\((.+)\)\$'", text):
        return _one_of(choice[1].split("|"))
    if text == f"Expected `str` matching regex '{PUBKEY_PATTERN}'":
        return "must be 64 hexadecimal digits, lower-case"
    if text.startswith("Invalid enum value"):  # there is one enumeration
        return _one_of([str(mode) for mode in Mode])
    return "must be true or false" if text.startswith("Expected `bool`") else text


def _one_of(values: list[str]) -> str:
    return f"must be {', '.join(values[:-1])} or {values[-1]}"


def _check(settings: Settings) -> None:
    for name in ("host", "data"):
        if not getattr(settings, name).strip():  # an empty host would be every address of the machine
            raise ConfigError(f"{name} is empty; leave it out for {getattr(Settings(), name)}")
    token = settings.admin_token
    if token is not None and not (token.isascii() and token.isprintable() and token == token.strip()):
        raise ConfigError("admin_token is none that a request can carry: write printable ASCII, no space at its ends")
    url = settings.relay_url
    if url is not None and not (url.startswith(("ws://", "wss://")) and nostr.authority(url)):
        raise ConfigError("relay_url is no address: write wss://relay.example, as clients do")
    if settings.store and not settings.store.startswith(("postgresql://", "postgres://")):
        raise ConfigError("store is no address: write postgresql://USER:PASSWORD@HOST/DATABASE, or leave it empty")
    named: dict[int, str] = {}
    for standing in ("snapshot", "companion", "pass_through"):
        for kind in getattr(settings, f"{standing}_kinds"):
            if named.setdefault(kind, standing) != standing:
                raise ConfigError(f"kind {kind} is in both {named[kind]}_kinds and {standing}_kinds; choose one")
    for name in ("companion_kinds", "pass_through_kinds"):
        if ephemeral := [kind for kind in getattr(settings, name) if nostr.is_ephemeral(kind)]:
            raise ConfigError(f"{name} {ephemeral} are ephemeral (20000 to 29999) and never stored; leave them out")
    outside = [kind for kind in settings.snapshot_kinds if not snapshots.in_range(kind)]
    if outside:
        raise ConfigError(f"snapshot_kinds {outside} are outside the sync range 40000 to 49999")
    if settings.limits.event_bytes > settings.limits.message_bytes:
        raise ConfigError("limits.event_bytes is larger than limits.message_bytes: such an event could not be sent")
