"""A recording: a proxy that listens, a store behind it, and what an agent must be told to go through them.

agent -> Server, Tee -> Durable (journal) -> Writer -> Apart (a process) -> Store
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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
from recorder.home import data_dir
from recorder.journal import Journal
from recorder.store import Store
from recorder.wire import classify

Environ = Mapping[str, str]

PATIENCE_S = 2.0
"""How long a write may wait for a lock: the call then waits in memory and is tried again. Ours."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may say of a recording."""

    db: str | Path
    route: Route = "proxy"
    upstream: str | None = None
    """URL of the server that model calls are sent to; None = where the agent sends them."""
    harness: str | None = None
    """Name of a profile; None = told by the command."""
    hosts: Sequence[str] = ()
    """More model hosts."""
    port: int = 0
    """0 = any free one."""
    listen: str = LOOPBACK
    """Address to listen on; one that is not loopback is told on stderr."""
    strict: bool = False
    """A loss fails the run."""
    redact: Callable[[Call], Call] | None = None


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
    options: Options
    url: str
    profile: Profile
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

    def finished(self, exit_code: int) -> Finished:
        """What it came to, once the proxy and the writer have ended."""
        lost = self.sink.lost + self.tee.lost
        return Finished(
            exit_code=1 if self.options.strict and lost and exit_code == 0 else exit_code,
            run=self.run,
            calls=self.writer.stored,
            lost=lost,
            db=str(self.options.db),
            harness=self.profile.name,
            route=self.options.route,
            notes=tuple(self.notes()),
        )


@contextmanager
def recording(
    options: Options, *, profile: Profile, environ: Environ, notice: Callable[[str], None] | None = None
) -> Iterator[Recording]:
    """A proxy and a writer, up for the length of the block. Raises LaunchError or StoreError.

    `notice` gets what must be said meanwhile, a line each; None = stderr.
    """
    route, tell = options.route, notice or _on_stderr
    target = origin(options.upstream, where="--upstream") if options.upstream else None
    home = data_dir(environ)
    authority = certificates.authority(home)
    trusted = certificates.bundle(home, certificates.roots(environ))
    everything = certificates.bundle(home, (trusted, authority.certificate))
    extra = [Path(p) for p in (environ.get("NODE_EXTRA_CA_CERTS"),) if p and Path(p).is_file()]
    certificate = certificates.bundle(home, (authority.certificate, *extra))
    model_hosts = (*harnesses.MODEL_HOSTS, *harnesses.named_hosts(profile, environ), *options.hosts)
    patterns = [harnesses.pattern(h) for h in model_hosts]
    opened = re.compile("|".join(patterns), re.IGNORECASE)
    origins = _origins(profile, environ)
    default = profile.base_urls[0].family if profile.base_urls else "anthropic"
    behind = chain(environ)
    run_id = uuid4().hex
    journal = None if options.redact else _journal(options.db)  # half a secret is not recognised
    store = Apart(lambda: open_store(options.db), journal=journal)
    sink: Writer | Durable
    if journal is None:
        sink = writer = Writer(store.open, run=run_id, notice=tell, redact=options.redact)
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
        host=options.listen,
        port=options.port,
        chain=behind,
        log=home / "proxy.log",
    )
    server = Server(tee, settings)
    if not is_loopback(options.listen):
        tell(
            f"memorywalker: listening on {options.listen}, which is not loopback: whoever reaches it can use this proxy"
        )
    try:
        server.start()
        sink.start()
        yield Recording(
            run=run_id,
            options=options,
            url=server.url,
            profile=profile,
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
