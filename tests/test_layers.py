"""The rooms of src/weft, and who may import whom: the table of docs/how_it_works.md, checked against the imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "weft"

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "ir": {"errors"},
    "analysis": {"ir", "errors"},
    "cost": {"ir", "analysis", "errors"},
    "sim": {"ir", "analysis", "cost", "errors"},
    "passes": {"ir", "analysis", "cost", "sim", "errors"},
    "verify": {"ir", "analysis", "errors"},
    "pipeline": {"passes", "verify", "cost", "ir", "errors"},
    "optimizer": {"pipeline", "passes", "sim", "cost", "ir", "errors", ""},
    "remedies": {"optimizer", "pipeline", "passes", "sim", "cost", "analysis", "ir", "errors"},
    "tuning": {"optimizer", "passes", "sim", "cost", "analysis", "ir", "errors"},
    "fx": {"ir", "errors"},
    "parallel": {"errors"},
    "run": {"fx", "optimizer", "pipeline", "passes", "verify", "sim", "cost", "ir", "analysis", "errors", ""},
    "report": {"ir", "analysis", "sim", "verify", "errors"},
    "cli": {
        *("fx", "run", "parallel", "pipeline", "optimizer", "remedies", "tuning", "passes", "verify", "report", "sim"),
        *("cost", "analysis", "ir", "errors", ""),
    },
    "__main__": {"cli"},
    # weft/__init__.py, the public names
    "": {"errors", "ir", "cost", "sim", "passes", "verify", "optimizer", "fx", "run"},
}
WITHOUT_TORCH = (
    *("errors", "ir", "analysis", "cost", "sim", "passes", "verify", "pipeline", "optimizer"),
    *("remedies", "tuning", "report"),
)
FILES = sorted(ROOT.rglob("*.py"))


def room(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, ast.AST, bool]]:
    """Each module that a file imports, where, and whether inside a function."""
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(child) for function in functions for child in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node, id(node) in inside
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node, id(node) in inside
            if node.module == "weft":
                for alias in node.names:
                    if (ROOT / alias.name).is_dir() or (ROOT / f"{alias.name}.py").is_file():
                        yield f"weft.{alias.name}", node, id(node) in inside


def test_every_room_is_in_the_table() -> None:
    assert {room(path) for path in FILES} == MAY_IMPORT.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_reaches_only_where_it_may(path: Path) -> None:
    here = room(path)
    reached = {
        name.split(".")[1] if "." in name else "" for name, _, _ in imports(path) if name.split(".")[0] == "weft"
    }
    # `from weft import pipeline` names the package on the way to the room.
    assert reached - {here, ""} <= MAY_IMPORT[here] - {""}
    if "" in reached:
        assert "" in MAY_IMPORT[here]


@pytest.mark.parametrize("path", [path for path in FILES if room(path) in WITHOUT_TORCH], ids=lambda path: path.stem)
def test_rooms_that_work_on_text_do_not_import_torch(path: Path) -> None:
    assert not [name for name, _, _ in imports(path) if name.split(".")[0] in ("torch", "sympy", "numpy")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_imported_inside_a_function(path: Path) -> None:
    assert [name for name, _, inside in imports(path) if inside] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_environment_is_read_only_by_the_command_line_and_the_runtime(path: Path) -> None:
    if room(path) not in ("cli", "run"):
        assert "environ" not in path.read_text()
        assert "getenv" not in path.read_text()
