"""The one command line, a thin front door: each command imports its package when it is called.

Exit codes: 0, 1 failed, 2 wrong usage; `run` exits with the agent's own. Errors are one line on stderr that says what was
expected, what was got and where; `--debug` (or MEMORYWALKER_DEBUG=1) shows the traceback instead.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from recorder.errors import MemorywalkerError

if TYPE_CHECKING:
    from proxy.launch import Finished
    from recorder.store import Store
    from treebuilder.tree import Trajectory

T = TypeVar("T")

app = typer.Typer(
    name="memorywalker",
    help="Record any agent harness, see what its context went through, train on the contexts the model really had.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Db = Annotated[
    str, typer.Option("--db", metavar="FILE|URL", help="Database; MEMORYWALKER_DB, else one in your data folder.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout.")]
Route = Annotated[Literal["proxy", "base-url"], typer.Option(help="How the agent reaches us: HTTPS proxy or base URL.")]
Upstream = Annotated[str | None, typer.Option(metavar="URL", help="Send model calls to this server instead.")]
Harness = Annotated[str | None, typer.Option(help="Profile to use where the command's name does not tell.")]
Hosts = Annotated[list[str] | None, typer.Option("--host", help="Another model host to open and record; repeatable.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 = any free one.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 when a call was lost.")]
Sessions = Annotated[list[str] | None, typer.Argument(metavar="[SESSION]...", help="Sessions, or the start of their ids.")]
Structural = Annotated[bool, typer.Option("--structural", help="Ignore headers, ids and known wording.")]
Model = Annotated[str, typer.Option("--model", help="Name or folder of a causal LM; smollm2 = the packaged one.")]
Tokenizer = Annotated[str | None, typer.Option(help="Name or folder of a tokenizer with a chat template.")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words[: words.index("--")] if "--" in words else "--debug" in words
    if debug:
        words.remove("--debug")
    try:
        return int(app(words, prog_name="memorywalker", standalone_mode=False) or 0)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; nothing more to say
        return 1
    except (typer.TyperException, MemorywalkerError) as e:
        if debug or os.environ.get("MEMORYWALKER_DEBUG"):
            raise
        code = e.exit_code if isinstance(e, typer.TyperException) else 1
        text = e.format_message() if isinstance(e, typer.TyperException) else str(e)
        if text:
            sys.stderr.write(f"memorywalker: {' '.join(text.split())}\n")
        return code
    except typer.Abort:
        return 130


# ---- record


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def run(
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The agent, as ever.")] = None,
    db: Db = "",
    route: Route = "proxy",
    upstream: Upstream = None,
    harness: Harness = None,
    host: Hosts = None,
    port: Port = 0,
    strict: Strict = False,
) -> int:
    """Run an agent, unchanged, and record every model call it makes."""
    from proxy import harnesses, launch

    if not command:
        raise typer.BadParameter("expected a command after --, got none; for example: memorywalker run -- claude")
    if harness and harness not in harnesses.names():
        raise typer.BadParameter(f"expected --harness {', '.join(harnesses.names())}; got {harness!r}")
    finished = launch.run(
        command,
        db=_db(db),
        route=route,
        upstream=upstream,
        harness=harness,
        hosts=tuple(host or ()),
        port=port,
        strict=strict,
    )
    _summary(finished)
    return finished.exit_code


@app.command()
def proxy(
    db: Db = "",
    route: Route = "proxy",
    upstream: Upstream = None,
    harness: Harness = None,
    host: Hosts = None,
    port: Port = 0,
    strict: Strict = False,
) -> int:
    """Stay up and record whatever comes; prints the variables that an agent's shell needs."""
    from proxy import launch

    finished = launch.serve_proxy(
        db=_db(db),
        announce=_line,
        route=route,
        upstream=upstream,
        harness=harness,
        hosts=tuple(host or ()),
        port=port,
        strict=strict,
    )
    _summary(finished)
    return finished.exit_code


@app.command()
def serve(
    script: Annotated[Path, typer.Option("--script", metavar="FILE", help="What the model says, as JSON.")],
    port: Port = 8765,
    var: Annotated[list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help="Fill {NAME} in it.")] = None,
) -> None:
    """Answer as a model would, from a script: Anthropic Messages, chat completions and Responses on one port."""
    from proxy.gateway.server import serve as serve_gateway

    variables = {}
    for pair in var or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"expected --var NAME=VALUE, got {pair!r}")
        variables[name] = value
    serve_gateway(script, port=port, variables=variables, announce=lambda url: _line(f"serving {script} on {url}"))


@app.command()
def demo(
    agents: Annotated[Path, typer.Option(help="Folder in which npm installed the agents.")] = Path(".agents"),
    out: Annotated[Path, typer.Option(help="Where everything it makes goes; replaced if there.")] = Path("demo-out"),
) -> int:
    """The whole way on real agents: record, tree, rows, a few training steps, drift."""
    from proxy.demo import play

    return play(agents=agents, out=out)


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="HAR files.")],
    db: Db = "",
    json: Json = False,
) -> None:
    """Take recordings that exist already; a file imported twice adds nothing."""
    from recorder.importing import import_har

    with _store(db, create=True) as store:
        for file in _progress(files, "importing"):
            done = import_har(store, file)
            if json:
                _json(done)
            else:
                _line(f"{file}: {done.added} calls added, {done.already} already there, {done.others} other requests")


# ---- look


@app.command()
def sessions(db: Db = "", json: Json = False) -> None:
    """Every session in the database."""
    with _store(db) as store:
        found = store.sessions()
    if json:
        for one in found:
            _json(one)
        return
    _table(
        ("session", "harness", "calls", "first (UTC)", "models", "bytes"),
        [
            (s.session, s.harness, s.calls, _when(s.first_at_utc), ", ".join(s.models), f"{s.bytes:,}")
            for s in found
        ],
    )


@app.command()
def calls(session: Sessions = None, db: Db = "", json: Json = False) -> None:
    """Every call: when, to whom, how it ended, how large, the tokens it used."""
    from recorder.listing import row

    with _store(db) as store:
        for call in _calls(store, session):
            one = row(call)
            if json:
                _json(one)
            else:
                _line(one.text())


@app.command()
def verify(db: Db = "", json: Json = False) -> int:
    """Re-derive every stored hash and body; one line for each fault."""
    with _store(db) as store:
        faults = store.verify()
        total = sum(s.calls for s in store.sessions())
    for fault in faults:
        if json:
            _json(fault)
        else:
            _line(f"call {fault.seq}: {fault.what}")
    sys.stderr.write(f"{total} calls checked, {len(faults)} faults\n")
    return 1 if faults else 0


@app.command()
def tree(session: Sessions = None, db: Db = "", structural: Structural = False, json: Json = False) -> None:
    """What happened to the context, one line a call: kind, what left, what came, how sure, on what evidence."""
    from treebuilder.show import line
    from treebuilder.tree import rows

    with _store(db) as store:
        trajectory = _trajectory(store, session, structural=structural)
    for one in rows(trajectory):
        if json:
            _json(one)
        else:
            _line(line(one))


@app.command()
def show(
    session: Sessions = None,
    db: Db = "",
    structural: Structural = False,
    all_: Annotated[bool, typer.Option("--all", help="Every call; without it, runs of appends are folded.")] = False,
) -> None:
    """The tree of a session, drawn in the terminal."""
    from rich.console import Console

    from treebuilder.show import render

    with _store(db) as store:
        trajectory = _trajectory(store, session, structural=structural)
    Console().print(render(trajectory, fold=not all_))


@app.command()
def diff(
    first: Annotated[int, typer.Argument(metavar="CALL")],
    second: Annotated[int, typer.Argument(metavar="CALL")],
    db: Db = "",
) -> None:
    """What left and what came between the contexts of two calls (numbers as in `calls`)."""
    from rich.console import Console

    from treebuilder.show import render_diff

    with _store(db) as store:
        one, two = store.call(first), store.call(second)
    Console().print(render_diff(one, two))


# ---- train


@app.command()
def export(
    out: Annotated[Path, typer.Option("--out", metavar="DIR")],
    tokenizer: Annotated[str, typer.Option(help="Name or folder of a tokenizer with a chat template.")],
    session: Sessions = None,
    db: Db = "",
    format: Annotated[str, typer.Option(help="Dataset format.")] = "logittree",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace DIR if it exists.")] = False,
    json: Json = False,
) -> None:
    """Write training data: each branch of the tree once, each sampled token trained once."""
    raise NotImplementedError


@app.command()
def train() -> None:
    raise NotImplementedError


@app.command()
def drift() -> None:
    raise NotImplementedError


# ---- shared


def _db(name: str) -> str:
    from recorder.home import default_db

    return name or default_db()


def _store(name: str, *, create: bool = False) -> "Store":
    from recorder.store import Store

    return Store.open(_db(name), create=create)


def _session_ids(store: "Store", wanted: Sequence[str] | None) -> list[str] | None:
    """Full ids for ids or their beginnings; None = all. Raises MemorywalkerError."""
    if not wanted:
        return None
    known = [s.session for s in store.sessions()]
    found = []
    for word in wanted:
        hits = [word] if word in known else [k for k in known if k.startswith(word)]
        if len(hits) != 1:
            raise MemorywalkerError(
                f"expected the id of one session, or its start, got {word!r}, which fits {len(hits)} of {len(known)}, "
                f"at {store.where}"
            )
        found += hits
    return found


def _calls(store: "Store", wanted: Sequence[str] | None) -> "Iterator[Call]":
    ids = _session_ids(store, wanted)
    if ids is None:
        yield from store.calls()
    else:
        for one in ids:
            yield from store.calls(session=one)


def _trajectory(store: "Store", wanted: Sequence[str] | None, *, structural: bool = False) -> "Trajectory":
    from treebuilder.build import build

    return build(_calls(store, wanted), structural=structural)


def _summary(finished: "Finished") -> None:
    """What was recorded, on stderr: the agent's stdout stays its own."""
    from recorder.store import Store
    from treebuilder.build import build

    text = f"memorywalker: {finished.calls} calls"
    if finished.calls:
        with Store.open(finished.db) as store:
            trajectory = build(store.calls(run=finished.run))
        threads = [t for t in trajectory.threads if not trajectory.turns[t.turns[0]].kind.aside]
        forks = sum(len(trajectory.branches) - len(threads) for _ in [0])
        names = ", ".join(trajectory.sessions)
        text += f", {len(threads)} threads, {forks} forks; session {names}"
    text += f"; {finished.lost} lost; {finished.db}"
    sys.stderr.write(text + "\n")
    for note in finished.notes:
        sys.stderr.write(f"memorywalker: {note}\n")


def _line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _json(value: object) -> None:
    import orjson

    _line(orjson.dumps(value, option=orjson.OPT_SERIALIZE_DATACLASS).decode())


def _table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as their widest cell; the last one is free."""
    cells = [list(names), *([str(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    for row in cells:
        _line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _when(at_utc: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_utc, UTC).strftime("%Y-%m-%d %H:%M:%S") if at_utc else "?"


def _progress(items: Sequence[T], what: str) -> Iterable[T]:
    """A bar on stderr when it is a terminal and there is more than one thing to do, else nothing."""
    if len(items) < 2 or not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, description=what, console=Console(stderr=True), transient=True)


if __name__ == "__main__":
    sys.exit(main())
