"""What the page is made of comes along when memorywalker is installed."""

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from treebuilder.page import SCRIPTS, TEMPLATES

ROOT = Path(__file__).parent.parent.parent


def test_the_folder_holds_what_the_page_is_made_of_and_nothing_else() -> None:
    assert {path.name for path in TEMPLATES.iterdir()} == {*SCRIPTS, "page.css", "page.html"}


def test_git_keeps_every_template() -> None:
    """What git ignores, the build leaves out."""
    found = subprocess.run(["git", "check-ignore", *TEMPLATES.iterdir()], cwd=ROOT, capture_output=True, text=True)
    if found.returncode not in (0, 1):
        pytest.skip(f"expected a git checkout, got: {found.stderr.strip()}")
    assert found.stdout == ""


@pytest.mark.skipif(not importlib.util.find_spec("hatchling"), reason="expected hatchling to build with, found none")
def test_a_wheel_holds_the_templates(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"treebuilder/templates/{path.name}" for path in TEMPLATES.iterdir()} <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]
