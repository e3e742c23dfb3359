"""Empty databases for the store's tests: a SQLite file, or one on a real PostgreSQL, started when first asked for.

The server is Debian's (`postgresql`), lives in a temporary folder, listens on loopback alone and dies with the tests.
"""

import atexit
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

import pytest

KINDS = ("sqlite", "postgresql")
_numbers = count(1)
_FAST = ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "shared_buffers=32MB", "max_connections=40")


@dataclass(frozen=True, slots=True)
class Server:
    bin: Path
    port: int
    user: tuple[str, ...]
    """Words before a command that must not run as root; none when we are not root."""

    def url(self, name: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    def ask(self, statement: str) -> None:
        psql = [str(self.bin / "psql"), "--quiet", "--no-psqlrc", "--dbname", self.url("postgres")]
        subprocess.run([*psql, "--command", statement], check=True, capture_output=True, text=True)

    def stop(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        process.terminate()  # setpriv has become the postmaster; SIGTERM would wait for clients that linger
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def empty(kind: str, folder: Path) -> Iterator[str]:
    """Target of an empty database of that kind; skips the test, and says why, where there is no such server."""
    if kind == "sqlite":
        yield str(folder / "t.db")
        return
    started = server()
    if isinstance(started, str):
        pytest.skip(started)
    name = f"t{next(_numbers)}"
    started.ask(f"create database {name} template template0 encoding 'UTF8' lc_collate 'C' lc_ctype 'C'")
    try:
        yield started.url(name)
    finally:
        started.ask(f"drop database {name} with (force)")


@cache
def server() -> Server | str:
    """The server, or why there is none."""
    pytest.importorskip("psycopg", reason="PostgreSQL: expected the `postgres` extra (psycopg), got none")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    where = found[-1] if found else shutil.which("initdb")
    if where is None:
        return "PostgreSQL: expected its server, got none; Debian's package is `postgresql`"
    user: tuple[str, ...] = ()
    owner = os.geteuid()
    if owner == 0:
        try:
            owner = pwd.getpwnam("postgres").pw_uid
        except KeyError:
            return "PostgreSQL: expected a user `postgres` to run it, as root may not, got none"
        user = ("setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--pdeathsig=KILL")
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    os.chown(folder, owner, -1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    data = folder / "data"
    made = Server(Path(where).parent, port, user)
    init = [*user, str(where), "--pgdata", str(data), "--username=postgres", "--auth=trust", "--no-sync", "--no-locale"]
    subprocess.run([*init, "--encoding=UTF8"], check=True, capture_output=True, cwd=folder)
    settings = (*_FAST, "listen_addresses=127.0.0.1", f"port={port}", f"unix_socket_directories={folder}")
    words = [*user, str(made.bin / "postgres"), "-D", str(data), *(w for s in settings for w in ("-c", s))]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log)
    atexit.register(made.stop, folder, process)
    for _ in range(100):
        ready = subprocess.run(
            [str(made.bin / "pg_isready"), "--quiet", "--host=127.0.0.1", f"--port={port}", "--timeout=1"], check=False
        )
        if ready.returncode == 0:
            return made
        if process.poll() is not None:
            break
    return f"PostgreSQL: expected it to start, got: {(folder / 'log').read_text()[-300:]}"
