"""One HTML file that shows a trajectory and needs nothing else: every script and style stands inside it.

What agents read and write is shown as text and never as markup: the data is JSON in an inert element, the page may run
no script but its own (by hash), may ask for nothing on any network, and has no way to turn a string into elements
(`require-trusted-types-for`).
"""

import hashlib
import os
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from recorder.errors import PageError
from treebuilder.page_data import Tables
from treebuilder.tree import Trajectory

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = (
    "base.js",
    "data.js",
    "graph.js",
    "list.js",
    "chart.js",
    "messages.js",
    "edit.js",
    "detail.js",
    "sessions.js",
    "search.js",
    "keys.js",
    "app.js",
)
"""In the order in which they run; they share one scope."""


def page(trajectory: Trajectory, *, images: Mapping[str, str] | None = None) -> str:
    """The page of a trajectory. `images`: data URIs by content hash, see `treebuilder.page_images`."""
    piece = Tables(images or {}).piece(trajectory)
    return html([piece] if piece else [])


def write(trajectory: Trajectory, path: Path, *, images: Mapping[str, str] | None = None) -> None:
    """The page as a file, readable by its owner alone where it is new, as the database is. PageError: it cannot be."""
    text = page(trajectory, images=images)
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as e:
        raise PageError(f"expected a file that can be written, got {e.strerror or e}, at {path}") from e


def html(pieces: Sequence[str], *, live: bool = False) -> str:
    """The page of what the pieces tell together. `live`: it goes on asking its own server for more."""
    style = (TEMPLATES / "page.css").read_text("utf-8")
    script = "".join(["(() => {\n'use strict';\n", *_scripts(), "})();\n"])
    own = "'self'" if live else "'none'"
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_source(script)}'",
            f"style-src '{_source(style)}'",
            "img-src data:",
            f"connect-src {own}",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
        )
    )
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("page.html").render(
        policy=policy, style=style, script=script, data=f"[{','.join(pieces)}]", live=live
    )


def _scripts() -> Iterable[str]:
    return ((TEMPLATES / name).read_text("utf-8") for name in SCRIPTS)


def _source(content: str) -> str:
    """An inline script or style as a Content-Security-Policy names it."""
    return "sha256-" + b64encode(hashlib.sha256(content.encode()).digest()).decode()
