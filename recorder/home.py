"""Where things live when the user does not say: one folder for the database, the proxy's authority and its log."""

import os
from collections.abc import Mapping
from pathlib import Path


def data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """`MEMORYWALKER_HOME`, else the platform's place for user data (XDG base directories)."""
    if home := environ.get("MEMORYWALKER_HOME"):
        return Path(home).expanduser()
    share = environ.get("XDG_DATA_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".local" / "share"
    return Path(share) / "memorywalker"


def default_db(environ: Mapping[str, str] = os.environ) -> str:
    """`MEMORYWALKER_DB`, a file or a database URL, else `traces.db` in the data folder."""
    return environ.get("MEMORYWALKER_DB") or str(data_dir(environ) / "traces.db")
