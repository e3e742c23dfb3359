"""The house holds: arrows point one way, heavy libraries stay in their rooms, our four names belong to us."""

import ast
import sys
from importlib.metadata import distributions, packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("proxy", "recorder", "treebuilder", "trainer")
ALLOWED = {
    "recorder": {"recorder"},
    "proxy": {"proxy", "recorder"},
    "treebuilder": {"treebuilder", "recorder"},
    "trainer": {"trainer", "treebuilder", "recorder"},
}
ROOM = {
    "mitmproxy": "proxy",
    "starlette": "proxy",
    "uvicorn": "proxy",
    "sqlalchemy": "recorder",
    "alembic": "recorder",
    "torch": "trainer",
    "transformers": "trainer",
    "pyarrow": "trainer",
    "peft": "trainer",
}
"""Library -> the one package that may import it."""


def imports(path: Path) -> set[str]:
    """Top-level names that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add((node.module or "").split(".")[0])
    return found


def files() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_what_its_room_allows(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    used = imports(path)
    assert used & set(PACKAGES) <= ALLOWED[package]
    assert "memorywalker" not in used
    assert not {name for name in used & ROOM.keys() if ROOM[name] != package}


def test_the_front_door_imports_packages_only_when_a_command_is_called() -> None:
    tree = ast.parse((ROOT / "memorywalker.py").read_text())
    at_top = {
        name.split(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert at_top & (set(PACKAGES) | set(ROOM)) <= {"recorder"}  # recorder.errors: the exception tree


def test_the_guard_sees_a_forbidden_import(tmp_path: Path) -> None:
    module = tmp_path / "bad.py"
    module.write_text("def f():\n    from torch.nn import Linear\n    import proxy.addon\n")
    assert imports(module) == {"torch", "proxy"}


def test_no_other_distribution_installs_a_package_of_our_names() -> None:
    owners = packages_distributions()
    for name in (*PACKAGES, "memorywalker"):
        assert set(owners.get(name, ["memorywalker"])) == {"memorywalker"}, (
            f"{name} is also installed by {owners[name]}"
        )


def test_the_packages_are_ours_and_not_a_namesake() -> None:
    assert any(d.metadata["Name"] == "memorywalker" for d in distributions())
    for name in PACKAGES:
        __import__(name)
        assert Path(sys.modules[name].__file__ or "").parent == ROOT / name
