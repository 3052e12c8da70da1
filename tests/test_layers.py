"""Imports point down only: what a layer may lean on is said here once, and every module is held to it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import anabranch

ROOT = Path(anabranch.__file__).parent

MAY_IMPORT = {
    "core": {"core"},
    "config": {"core", "config"},
    "wire": {"core", "wire"},
    "store": {"core", "store"},
    "node": {"core", "wire", "store", "config", "replicate", "node"},
    "replicate": {"core", "wire", "store", "config", "replicate"},
    "client": {"core", "wire", "config", "client"},
    "pipeline": {"core", "wire", "store", "config", "client", "pipeline"},
    "sim": {"core", "wire", "store", "config", "node", "replicate", "client", "pipeline", "sim"},
    "console": {"core", "wire", "store", "config", "node", "replicate", "client", "pipeline", "console"},
    "demo": {"core", "wire", "store", "config", "client", "demo"},
    "cli": None,  # everything
    "__main__": None,
    "__init__": set(),
}
CORE_IS_PURE_OF = {
    "asyncio", "time", "datetime", "random", "secrets", "uuid", "os", "io", "pathlib", "socket", "ssl", "select",
    "threading", "multiprocessing", "concurrent", "subprocess", "sqlite3", "apsw", "websockets", "h11", "click",
    "logging", "pyspark",
}  # fmt: skip
WIRE_IS_PURE_OF = {
    "asyncio", "time", "datetime", "random", "os", "pathlib", "socket", "ssl", "select", "threading", "multiprocessing",
    "concurrent", "subprocess", "apsw", "websockets.asyncio", "websockets.sync", "websockets.legacy", "logging",
    "pyspark",
}  # fmt: skip

MODULES = sorted(ROOT.rglob("*.py"))


def layer(of: Path) -> str:
    return of.relative_to(ROOT).with_suffix("").parts[0]


def imports(of: Path) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, anywhere in it, absolute, with the line."""
    package = ("anabranch", *of.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(of.read_text("utf-8"), str(of))):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            source = ".".join(filter(None, [base, node.module or ""]))
            for name in node.names:
                yield node.lineno, f"{source}.{name.name}"


def ours(imported: str) -> str | None:
    """The layer of ours that an import reaches, if any."""
    parts = imported.split(".")
    if parts[0] != "anabranch" or len(parts) == 1:
        return None
    return parts[1] if (ROOT / parts[1]).exists() or (ROOT / f"{parts[1]}.py").exists() else None


def names(of: list[Path]) -> list[str]:
    return [str(module.relative_to(ROOT)) for module in of]


@pytest.mark.parametrize("module", MODULES, ids=names(MODULES))
def test_imports_point_down_only(module: Path):
    here = layer(module)
    assert here in MAY_IMPORT, f"{here} is a new layer: say in MAY_IMPORT what it may lean on"
    allowed = MAY_IMPORT[here]
    wrong = [
        f"{module.relative_to(ROOT.parent)}:{line} imports {name}; {here} may import only {', '.join(sorted(allowed))}"
        for line, name in imports(module)
        if allowed is not None and (found := ours(name)) is not None and found not in allowed
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "package, forbidden", [("core", CORE_IS_PURE_OF), ("wire", WIRE_IS_PURE_OF)], ids=["core", "wire"]
)
def test_core_and_wire_do_no_io_and_know_no_clock(package: str, forbidden: set[str]):
    wrong = [
        f"{module.relative_to(ROOT.parent)}:{line} imports {name}; {package}/ is pure"
        for module in MODULES
        if layer(module) == package
        for line, name in imports(module)
        if any(f"{name}.".startswith(f"{one}.") for one in forbidden)
    ]
    assert not wrong, "\n".join(wrong)


def test_spark_is_imported_by_the_pipeline_only():
    wrong = [
        f"{module.relative_to(ROOT.parent)}:{line} imports {name}"
        for module in MODULES
        if layer(module) not in ("pipeline", "cli")
        for line, name in imports(module)
        if name.split(".")[0] == "pyspark"
    ]
    assert not wrong, "\n".join(wrong)


def test_every_module_opens_with_its_promise():
    silent = [
        str(m.relative_to(ROOT.parent)) for m in MODULES if not ast.get_docstring(ast.parse(m.read_text("utf-8")))
    ]
    assert not silent, f"no docstring: {', '.join(silent)}"


def test_the_check_itself_sees_every_way_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "core").mkdir()
    (tmp_path / "store").mkdir()
    module = tmp_path / "core" / "x.py"
    module.write_text(
        "import anabranch.store.sql\nfrom anabranch import store\nfrom anabranch.store import sql\n"
        "from .. import store\nfrom ..store import sql\nfrom . import clock\n"
        "def f():\n    from anabranch.store.sql import x\n"
    )
    monkeypatch.setattr("test_layers.ROOT", tmp_path)
    reached = [ours(name) for _, name in imports(module)]
    assert reached == ["store", "store", "store", "store", "store", "core", "store"]
