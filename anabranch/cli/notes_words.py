"""What went wrong with a relay or a file, in words that say what to do.

The client tells what the network, TLS and SQLite told it; a person who keeps notes need not know these. What is not
known here stays as it was said.
"""

from __future__ import annotations

import re
from pathlib import Path

import apsw

from anabranch.cli.notes_folder import NotesShell
from anabranch.cli.notes_view import visible

_CERTIFICATE = re.compile(r"certificate verify failed: (.+?)(?: \(_ssl\.c:\d+\))?$")
_HTTP = re.compile(r"(?:rejected WebSocket connection|could not be read): HTTP (\d{3})")
_WANTS_A_KEY = ("token-required:", "token-invalid:", "access key")


def of_relay(shell: NotesShell, url: str, said: str) -> str:
    """Why a relay is not in step."""
    if any(sign in said for sign in _WANTS_A_KEY):
        return f"{visible(said)}; give it one: {shell.command('relay', 'add', url)} --access-key sk_…"
    if "[SSL" in said or "certificate verify failed" in said:
        return _of_tls(said)
    if (found := _HTTP.search(said)) is not None:
        return _of_http(int(found[1]))
    if "did not receive a valid HTTP response" in said:
        return "what answers at this address is no relay, or wants wss:// instead of ws://"
    return visible(said)


def _of_tls(said: str) -> str:
    if (found := _CERTIFICATE.search(said)) is not None:
        return f"its certificate is not trusted ({visible(found[1])}); check the address, or tell who runs the relay"
    if "WRONG_VERSION_NUMBER" in said or "RECORD_LAYER_FAILURE" in said:
        return "no TLS at this address; perhaps it begins with ws:// instead of wss://"
    return "no secure connection came about (TLS); check the address, or tell who runs the relay"


def _of_http(status: int) -> str:
    match status:
        case 401 | 403:
            return f"the relay lets nobody in here without a permission (HTTP {status}); ask who runs it"
        case 408 | 425 | 429 | 500 | 502 | 503 | 504:
            return f"the relay is down or busy (HTTP {status}); try again later"
    return f"a web server answers, but no relay (HTTP {status}); check the address"


def of_file(shell: NotesShell, file: Path, error: apsw.Error) -> str:
    """Why the notes cannot be read or written."""
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return (
            f"{file} is damaged ({error}). Put a copy of it back; or move it away, then `{shell.command('init')}` (with"
            f" your --relay and --family) makes it anew with the key that is there, and sync brings what relays have"
        )
    if isinstance(error, apsw.FullError):
        return "the disk is full; nothing was changed"
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return f"another process holds {file}; nothing was changed, try again"
    return f"{file}: {error}; nothing was changed"
