"""Run an agent under the proxy with its terminal untouched; record, wind down, and tell what came of it.

The agent inherits stdin, stdout and stderr. Ctrl-C reaches it from the terminal as ever, and we wait for it; signals
sent to us alone are passed on. We write to stderr only, and only before the agent starts or when a call is first lost.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from uuid import uuid4

from proxy import certificates, harnesses
from proxy.addon import Tee
from proxy.apart import Apart
from proxy.chain import chain
from proxy.durable import Durable
from proxy.harnesses import Family, Profile, Route
from proxy.routing import Origin, Routes, origin
from proxy.server import LOOPBACK, Server, Settings, is_loopback
from proxy.writer import Ledger, Writer
from recorder.call import Call
from recorder.database import file
from recorder.errors import LaunchError
from recorder.home import data_dir
from recorder.journal import Journal
from recorder.store import Store
from recorder.wire import classify

Environ = Mapping[str, str]

PATIENCE_S = 2.0
"""How long a write may wait for a lock: the call then waits in memory and is tried again. Ours."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a recording came to."""

    exit_code: int
    """The agent's own, 128 + n when signal n ended it; 1 when it was 0 but `strict` found a loss."""
    run: str
    calls: int
    """Calls whole in the database, whatever their outcome."""
    lost: int
    """Calls that passed but are not, or not wholly, in the database."""
    db: str
    harness: str
    route: Route
    notes: tuple[str, ...]
    """What the user should know, a line each: why calls were lost, hosts whose clients refused our certificate."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A proxy that listens and records."""

    run: str
    url: str
    profile: Profile
    route: Route
    variables: Mapping[str, str]
    """What an agent needs in its environment."""
    arguments: tuple[str, ...]
    """What it needs after its name."""
    server: Server
    tee: Tee
    writer: Writer
    sink: Writer | Durable
    """What the tee hands its tapes to: the writer, or the journal before it."""

    def notes(self) -> Iterator[str]:
        if self.writer.why:
            yield f"the store said: {self.writer.why}"
        for host, why in self.tee.refused.items():
            yield f"{host}: the client broke off TLS ({why}); does it read NODE_EXTRA_CA_CERTS or SSL_CERT_FILE?"
        if self.tee.lost:
            yield f"{self.tee.lost} calls could not be handed over"

    def finished(self, exit_code: int, *, db: str | Path, strict: bool) -> Finished:
        """What it came to, once the proxy and the writer have ended."""
        lost = self.sink.lost + self.tee.lost
        return Finished(
            exit_code=1 if strict and lost and exit_code == 0 else exit_code,
            run=self.run,
            calls=self.writer.stored,
            lost=lost,
            db=str(db),
            harness=self.profile.name,
            route=self.route,
            notes=tuple(self.notes()),
        )


def run(
    command: Sequence[str],
    *,
    db: str | Path,
    route: Route = "proxy",
    upstream: str | None = None,
    harness: str | None = None,
    hosts: Sequence[str] = (),
    port: int = 0,
    listen: str = LOOPBACK,
    strict: bool = False,
    redact: Callable[[Call], Call] | None = None,
    environ: Environ | None = None,
) -> Finished:
    """Run `command` recorded into `db`. Raises LaunchError or StoreError before the command has started.

    `listen` is the address to listen on; one that is not loopback is told on stderr.
    """
    environ = os.environ if environ is None else environ
    if not command:
        raise LaunchError("expected a command after --, got none, at memorywalker run")
    program = shutil.which(command[0], path=environ.get("PATH"))
    if program is None:
        raise LaunchError(f"expected a command that can be run, got {command[0]!r}, which is not on PATH")
    profile = harnesses.profile(harness) if harness else harnesses.detect(command)
    with recording(
        db=db,
        route=route,
        upstream=upstream,
        profile=profile,
        hosts=hosts,
        port=port,
        listen=listen,
        environ=environ,
        redact=redact,
    ) as it:
        words = [command[0], *it.arguments, *command[1:]]
        exit_code = _wait(words, program=program, environ={**environ, **it.variables})
    return it.finished(exit_code, db=db, strict=strict)


def serve_proxy(
    *,
    db: str | Path,
    announce: Callable[[str], None],
    route: Route = "proxy",
    upstream: str | None = None,
    harness: str | None = None,
    hosts: Sequence[str] = (),
    port: int = 0,
    listen: str = LOOPBACK,
    strict: bool = False,
    redact: Callable[[Call], Call] | None = None,
    environ: Environ | None = None,
    until: threading.Event | None = None,
) -> Finished:
    """Record whatever comes until SIGINT or SIGTERM (or `until`); `announce` gets the lines to put into a shell."""
    environ = os.environ if environ is None else environ
    profile = harnesses.profile(harness) if harness else harnesses.GENERIC
    stop = threading.Event() if until is None else until
    with recording(
        db=db,
        route=route,
        upstream=upstream,
        profile=profile,
        hosts=hosts,
        port=port,
        listen=listen,
        environ=environ,
        redact=redact,
    ) as it:
        for name, value in it.variables.items():
            announce(f"export {name}='{value}'")
        with _signals({s: lambda _s, _f: stop.set() for s in (signal.SIGINT, signal.SIGTERM)}):
            stop.wait()
    return it.finished(0, db=db, strict=strict)


@contextmanager
def recording(
    *,
    db: str | Path,
    route: Route,
    upstream: str | None,
    profile: Profile,
    hosts: Sequence[str],
    port: int,
    environ: Environ,
    listen: str = LOOPBACK,
    notice: Callable[[str], None] | None = None,
    redact: Callable[[Call], Call] | None = None,
) -> Iterator[Recording]:
    """A proxy and a writer, up for the length of the block. Raises LaunchError or StoreError."""
    target = origin(upstream, where="--upstream") if upstream else None
    home = data_dir(environ)
    authority = certificates.authority(home)
    trusted = certificates.bundle(home, certificates.roots(environ))
    everything = certificates.bundle(home, (trusted, authority.certificate))
    extra = [Path(p) for p in (environ.get("NODE_EXTRA_CA_CERTS"),) if p and Path(p).is_file()]
    certificate = certificates.bundle(home, (authority.certificate, *extra))
    model_hosts = (*harnesses.MODEL_HOSTS, *harnesses.named_hosts(profile, environ), *hosts)
    patterns = [harnesses.pattern(h) for h in model_hosts]
    opened = re.compile("|".join(patterns), re.IGNORECASE)
    origins = _origins(profile, environ)
    default = profile.base_urls[0].family if profile.base_urls else "anthropic"
    behind = chain(environ)
    run_id = uuid4().hex
    tell = notice or _on_stderr
    journal = None if redact else _journal(db)  # half a secret is not recognised
    store = Apart(lambda: open_store(db), patient=journal is not None)
    sink: Writer | Durable
    if journal is None:
        sink = writer = Writer(store.open, run=run_id, notice=tell, redact=redact)
    else:
        sink = Durable(journal, store.open, run=run_id, notice=tell)
        writer = sink.writer
    routes = Routes(
        classify=classify,
        is_model_host=lambda host, port: opened.search(f"{host}:{port}") is not None,
        upstream=target,
        origins=origins,
        default=default,
        chain=behind,
    )
    tee = Tee(sink, route=routes)
    settings = Settings(
        mode=(behind.mode if behind else "regular")
        if route == "proxy"
        else f"reverse:{(target or origins[default]).root}",
        confdir=authority.directory,
        trusted=trusted,
        allow_hosts=patterns if route == "proxy" else (),
        host=listen,
        port=port,
        chain=behind,
        log=home / "proxy.log",
    )
    server = Server(tee, settings)
    if not is_loopback(listen):
        tell(f"memorywalker: listening on {listen}, which is not loopback: whoever reaches it can use this proxy")
    try:
        server.start()
        sink.start()
        yield Recording(
            run=run_id,
            url=server.url,
            profile=profile,
            route=route,
            variables=harnesses.environment(
                profile,
                route=route,
                url=server.url,
                certificate=str(certificate),
                bundle=str(everything),
                environ=environ,
            ),
            arguments=harnesses.arguments(profile, route=route, url=server.url),
            server=server,
            tee=tee,
            writer=writer,
            sink=sink,
        )
    finally:
        server.stop()
        sink.close()
        store.close()


def open_store(db: str | Path) -> Ledger:
    return Store.open(db, patience_s=PATIENCE_S)


def _journal(db: str | Path) -> Journal | None:
    """None = a server's database, or a folder that takes none: a call is then durable when the store has it."""
    path = file(db)
    try:
        return None if path is None else Journal(path)
    except OSError:
        return None


def _origins(profile: Profile, environ: Environ) -> dict[Family, Origin]:
    """Where a family's requests go on the base-URL route: to the user's own base URL, whose path the agent keeps."""
    found = {family: origin(url, where=family) for family, url in harnesses.ORIGINS.items()}
    for b in reversed(profile.base_urls):
        if value := environ.get(b.variable):
            own = origin(value, where=b.variable)
            found[b.family] = Origin(own.scheme, own.host, own.port)
    return found


def _on_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")


def _wait(words: Sequence[str], *, program: str, environ: Environ) -> int:
    """Run to the end; the exit code as a shell would report it."""
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if number in (signal.SIGINT, signal.SIGQUIT) and _in_foreground():
            return
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
    with _signals(dict.fromkeys(numbers, forward)):
        try:
            child = subprocess.Popen(words, executable=program, env=dict(environ))
        except OSError as e:
            raise LaunchError(f"expected a command that can be run, got {e.strerror or e}, at {program}") from e
        for number in early:
            child.send_signal(number)
        code = child.wait()
    return 128 - code if code < 0 else code


def _in_foreground() -> bool:
    """Whether the terminal sent the signal to the whole group, the agent included."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


@contextmanager
def _signals(handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    """Install handlers for a while; only Python's main thread may, elsewhere nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
