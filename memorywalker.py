"""The one command line, a thin front door: each command imports its package when it is called.

Exit codes: 0, 1 failed, 2 wrong usage; `run` exits with the agent's own. Errors are one line on stderr that says what
was expected, what was got and where; `--debug` (or MEMORYWALKER_DEBUG=1) shows the traceback instead.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, get_args

import typer

from recorder.errors import FilterError, MemorywalkerError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from proxy.recording import Finished
    from recorder.call import Call
    from recorder.redact import Redactor
    from recorder.rewards import Reward
    from recorder.store import Store
    from trainer.inspect import Found
    from trainer.render import Renderer
    from trainer.rollouts import Rollout
    from trainer.samples import Choice
    from trainer.sources import Source
    from treebuilder.forest import Forest
    from treebuilder.tree import Trajectory

T = TypeVar("T")


class Usage(typer.TyperException):
    """Wrong usage that typer's own types cannot tell."""

    exit_code = 2


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
RouteName = Literal["proxy", "base-url"]
Route = Annotated[RouteName, typer.Option(help="How the agent reaches us: HTTPS proxy or base URL.")]
Upstream = Annotated[str | None, typer.Option(metavar="URL", help="Send model calls to this server instead.")]
Harness = Annotated[str | None, typer.Option(help="Profile to use where the command's name does not tell.")]
Hosts = Annotated[list[str] | None, typer.Option("--host", help="Another model host to open and record; repeatable.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 = any free one.")]
Listen = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Listen there; anything but loopback is a risk, and said.")
]
Redact = Annotated[
    list[str] | None,
    typer.Option(
        "--redact",
        metavar="NAME|FILE",
        help="Replace before storing: email, key, ip, home, or a file of NAME = REGEX lines; repeatable.",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 when a call was lost.")]
Sessions = Annotated[
    list[str] | None, typer.Argument(metavar="[SESSION]...", help="Sessions, or the start of their ids.")
]
Filter = Annotated[str, typer.Option(metavar="NAME", help="Only calls of this one.")]
Structural = Annotated[bool, typer.Option("--structural", help="Ignore headers, ids and known wording.")]
Scheme = Literal["logittree", "mask4d", "sdcc", "naive-compressed", "naive-full"]
Model = Annotated[str, typer.Option("--model", help="Name or folder of a causal LM; smollm2 = the packaged one.")]
EngineName = Literal["auto", "separate", "packed", "depth-first"]
Engine = Annotated[EngineName, typer.Option(help="How a trie is computed; all are exact.")]
ObjectiveName = Literal["nll", "grpo"]
MeanPer = Literal["token", "rollout"]
ScheduleName = Literal["constant", "linear", "cosine"]
Format = Literal[
    "logittree",
    "tree",
    "trl-sft",
    "trl-grpo",
    "axolotl",
    "llama-factory",
    "verl",
    "prime-rl",
    "slime",
    "skyrl",
    "tinker",
    "torchtune",
    "messages",
]
Rows = Annotated[Path | None, typer.Option(metavar="DIR", help="Use this logittree export, not the database.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace DIR if it exists.")]
MaxHead = Annotated[int | None, typer.Option(min=0, help="Shorten each call's system text and tools; it is said.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Leave longer calls out; they are counted.")]
Trains = Annotated[
    str, typer.Option("--train", metavar="WHAT,...", help="Out of main, subagent, summary, side, aborted, opaque.")
]
HarnessFilter = Annotated[str, typer.Option("--harness", metavar="NAME", help="Train on calls of this one only.")]
KindFilter = Annotated[str, typer.Option("--kind", metavar="KIND,...", help="Train on calls of these kinds only.")]
MinReward = Annotated[float | None, typer.Option(help="Train on sessions that earned at least this.")]
RewardName = Annotated[str, typer.Option("--reward", metavar="NAME", help="Which of the sessions' rewards counts.")]
Advantages = Literal["grpo", "dr-grpo", "rloo", "raw", "none"]
AdvantageName = Annotated[
    Advantages, typer.Option(help="From rewards, against the group of a session; none = 1 for all.")
]
Tokenizer = Annotated[str, typer.Option(help="Name or folder of a tokenizer with a chat template; smollm2 too.")]
OBJECTIVE, OPTIMIZER, MODEL_AND_MACHINE, EVALUATION_AND_LOGS = (
    "Objective",
    "Optimizer",
    "Model and machine",
    "Evaluation and logs",
)
"""Panels of `train --help`."""


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
        code = e.exit_code if isinstance(e, typer.TyperException) else 2 if isinstance(e, FilterError) else 1
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
    redact: Redact = None,
) -> int:
    """Run an agent, unchanged, and record every model call it makes."""
    from proxy import harnesses, launch
    from proxy.recording import Options

    if not command:
        raise Usage("expected a command after --, got none; for example: memorywalker run -- claude")
    if harness and harness not in harnesses.names():
        raise Usage(f"expected --harness {', '.join(harnesses.names())}; got {harness!r}")
    options = Options(
        _db(db),
        route=route,
        upstream=upstream,
        harness=harness,
        hosts=tuple(host or ()),
        port=port,
        strict=strict,
        redact=_redactor(redact),
    )
    finished = launch.run(command, options)
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
    listen: Listen = "127.0.0.1",
    strict: Strict = False,
    redact: Redact = None,
) -> int:
    """Stay up and record whatever comes; prints the variables that an agent's shell needs."""
    from proxy import launch
    from proxy.recording import Options

    options = Options(
        _db(db),
        route=route,
        upstream=upstream,
        harness=harness,
        hosts=tuple(host or ()),
        port=port,
        listen=listen,
        strict=strict,
        redact=_redactor(redact),
    )
    finished = launch.serve_proxy(options, announce=_line)
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
            raise Usage(f"expected --var NAME=VALUE, got {pair!r}")
        variables[name] = value
    serve_gateway(script, port=port, variables=variables, announce=lambda url: _line(f"serving {script} on {url}"))


@app.command()
def demo(
    agents: Annotated[Path, typer.Option(help="Folder in which npm installed the agents.")] = Path(".agents"),
    out: Annotated[Path, typer.Option(help="Where everything it makes goes; an earlier demo is replaced.")] = Path(
        "demo-out"
    ),
    model: Annotated[str, typer.Option(help="Model to train and to measure drift with.")] = "smollm2",
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 3,
) -> int:
    """The whole way on real agents: record, tree, rows, a few training steps, drift."""
    from proxy.demo import play

    return play(agents=agents, out=out, model=model, steps=steps)


@app.command("import")
def import_(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="HAR, mitmproxy flows, claude-trace JSONL, folders of raw API bodies."),
    ],
    db: Db = "",
    json: Json = False,
) -> None:
    """Take recordings that exist already; a file imported twice adds nothing."""
    from proxy.flows import is_flow_file, read_flows
    from recorder.importing import import_path

    with _store(db, create=True) as store:
        for file in _progress(files, "importing"):
            done = import_path(store, file, reader=read_flows if is_flow_file(file) else None)
            if json:
                _json(done)
            else:
                _line(f"{file}: {done.added} calls added, {done.already} already there, {done.others} other requests")


@app.command()
def scrub(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="New .har file, or else a new database.")],
    session: Sessions = None,
    db: Db = "",
) -> None:
    """A copy fit for a bug report: every line in pseudo-words, the same tree."""
    from recorder.scrub import write
    from treebuilder.wording import KNOWN

    with _store(db) as store:
        _line(f"{write(_calls(store, session), out, keep=KNOWN)} calls in {out}")


# ---- look


@app.command()
def sessions(
    db: Db = "",
    usage: Annotated[bool, typer.Option("--usage", help="Sum the tokens used; reads every body.")] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="What was evicted, and what the final transcript loses; builds every tree.")
    ] = False,
    json: Json = False,
) -> None:
    """Every session in the database."""
    if usage and stats:
        raise Usage("expected --usage or --stats, got both")
    with _store(db) as store:
        if usage:
            _usage(store, json=json)
            return
        if stats:
            _stats(store, json=json)
            return
        found = store.sessions()
    if json:
        for one in found:
            _json(one)
        return
    _table(
        ("session", "harness", "calls", "first (UTC)", "models", "bytes"),
        [(s.session, s.harness, s.calls, _when(s.first_at_utc), ", ".join(s.models), f"{s.bytes:,}") for s in found],
    )


@app.command()
def calls(
    session: Sessions = None,
    db: Db = "",
    harness: Filter = "",
    wire: Filter = "",
    model: Filter = "",
    outcome: Filter = "",
    status: Annotated[str, typer.Option(metavar="CODE", help="Only calls with this HTTP status: 429, 5xx.")] = "",
    since: Annotated[str, typer.Option(metavar="TIME", help="Only calls from then on: 2026-11-30, 14:05, 2h.")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Only calls up to then.")] = "",
    min_size: Annotated[str, typer.Option(metavar="SIZE", help="Only calls of at least this: 100k, 2M.")] = "",
    json: Json = False,
) -> None:
    """Every call: when, to whom, how it ended, how large, the tokens it used."""
    from recorder.wanted import Wanted, instant, size_bytes
    from recorder.wanted import rows as wanted_rows

    now = time.time()
    wanted = Wanted(
        harness=harness,
        wire=wire,
        model=model,
        outcome=outcome,
        status=status,
        since_utc=instant(since, now_utc=now) if since else None,
        until_utc=instant(until, now_utc=now) if until else None,
        min_bytes=size_bytes(min_size) if min_size else 0,
    )
    with _store(db) as store:
        for one in wanted_rows(_calls(store, session), wanted):
            _line(_dumps(one) if json else one.text())


@app.command()
def tail(
    db: Db = "",
    from_: Annotated[
        int | None, typer.Option("--from", metavar="CALL", help="Begin behind this call; without it, with what comes.")
    ] = None,
    json: Json = False,
) -> None:
    """Calls as they end, whoever records them; until interrupted."""
    from recorder.follow import tail as follow
    from recorder.listing import row

    for call in follow(_db(db), from_seq=from_):
        one = row(call)
        _line(_dumps(one) if json else one.text())


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
    from treebuilder.rows import rows
    from treebuilder.show import line

    for one in rows(_of_sessions(db, session, structural=structural)):
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
    json: Json = False,
) -> None:
    """The tree of a session, drawn in the terminal."""
    from treebuilder.show import render
    from treebuilder.show_lines import lines

    trajectory = _of_sessions(db, session, structural=structural)
    if json:
        for one in lines(trajectory, fold=not all_):
            _json(one)
    else:
        _print(render(trajectory, fold=not all_))


@app.command()
def page(
    session: Sessions = None,
    db: Db = "",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write one HTML file that needs nothing else, and end.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Without --out: port on 127.0.0.1; else any free one.")
    ] = None,
    structural: Structural = False,
) -> None:
    """The tree in a browser: --out FILE writes a page to keep; without it, a page that follows new calls is served."""
    if out is not None and port is not None:
        raise Usage("expected --out, which writes a file, or --port, which serves; got both")
    if out is None:
        from proxy.pageserver import PageServer
        from treebuilder.page_live import LivePage

        with _doing() as step:
            step("reading")
            shown = _of_sessions(db, session, structural=structural).sessions if session else ()
            server = PageServer(_db(db), LivePage(structural=structural, sessions=shown), port=port or 0)
        _line(f"serving {server.url} until interrupted")
        server.run()
        return
    from treebuilder.page import write
    from treebuilder.page_images import images

    found: dict[str, str] = {}
    with _doing() as step:
        step("reading")
        trajectory = _of_sessions(db, session, structural=structural, each=lambda call: found.update(images(call)))
        write(trajectory, out, images=found)
    sessions = len(trajectory.sessions)
    _line(f"{len(trajectory.turns)} calls of {sessions} session{'s' * (sessions != 1)} in {out}")


@app.command()
def diff(
    first: Annotated[int, typer.Argument(metavar="CALL")],
    second: Annotated[int, typer.Argument(metavar="CALL")],
    db: Db = "",
    json: Json = False,
) -> None:
    """What left and what came between two calls (numbers as in `calls`): on the wire, and in what the model sees."""
    from treebuilder.show_diff import difference, render_diff

    with _store(db) as store:
        told = difference(store.call(first), store.call(second), tree=lambda: _of_sessions(db, None))
    if json:
        _json(told)
    else:
        _print(render_diff(told))


@app.command(context_settings={"ignore_unknown_options": True})  # a value may begin with a minus
def reward(
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="Session, or the start of its id.")] = None,
    value: Annotated[float | None, typer.Argument(metavar="[VALUE]", help="What it earned.")] = None,
    db: Db = "",
    name: Annotated[str, typer.Option(help="What the reward is called.")] = "reward",
    group: Annotated[
        str | None, typer.Option(help="Sessions to compare it with; without it, those with the same first prompt.")
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="JSON lines of session, value and, if you like, name and group."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take back SESSION's reward of that name.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show the rewards there are; so does no argument.")] = False,
    json: Json = False,
) -> None:
    """Say what a session earned; without a value, show it. `export` and `train` make advantages of it."""
    if value is not None and (from_ or list_ or remove):
        raise Usage("expected SESSION VALUE, --from FILE, --remove or --list; got two of them")
    if from_ and (session or list_ or remove or group is not None):
        raise Usage("expected --from FILE alone: sessions, names and groups stand in it")
    if remove and (session is None or list_):
        raise Usage("expected SESSION with --remove, and no --list")
    from recorder.rewards import Reward, read

    with _store(db) as store:
        named = _rewarded(store)
        if from_ or value is not None:
            given = [named(Reward(session or "", value, name, group))] if value is not None else []
            given += read(from_, known=named) if from_ else ()
            store.reward(given)
            shown = given if json else []
            if not json:
                _line(f"{len(given)} reward{'s' * (len(given) != 1)} stored")
        elif remove:
            done = store.unreward([named(Reward(session or "", 0)).session], name=name)
            _line(f"{done} reward{'s' * (done != 1)} removed")
            return
        else:
            wanted = named(Reward(session, 0)).session if session else None
            shown = [one for one in store.rewards() if wanted in (None, one.session)]
    if json:
        for one in shown:
            _json(one)
    elif shown:
        _table(
            ("session", "name", "value", "group"),
            [(s.session, s.name, f"{s.value:g}", s.group or "by first prompt") for s in shown],
        )


# ---- train


@app.command()
def export(
    tokenizer: Tokenizer,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder to make.")] = None,
    session: Sessions = None,
    db: Db = "",
    format: Annotated[Format, typer.Option(help="Dataset format.")] = "logittree",
    trains: Trains = "main,subagent,summary",
    harness: HarnessFilter = "",
    kind: KindFilter = "",
    min_reward: MinReward = None,
    reward: RewardName = "reward",
    advantages: AdvantageName = "grpo",
    split: Annotated[
        str, typer.Option(metavar="NAME=SHARE,...", help="Parts: train=0.9,eval=0.1. No trunk is in two.")
    ] = "",
    split_seed: Annotated[int, typer.Option(help="Another number, other parts.")] = 0,
    shard_rows: Annotated[
        int | None, typer.Option(min=1, help="Begin another file after so many rows; a family of sessions stays whole.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an export that was cut short.")] = False,
    inspect: Annotated[
        int | None, typer.Option(min=0, metavar="ROW", help="Write nothing; show this row, its trained tokens marked.")
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="With --inspect: all of the context.")] = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Write training data: each branch of the tree once, each sampled token trained once."""
    from trainer.export import export as write
    from trainer.export.folder import unfinished_of
    from trainer.inspect import find
    from trainer.models import load_tokenizer
    from trainer.render import Renderer
    from trainer.split import Split
    from treebuilder.forest import Forest

    if out is None and inspect is None:
        raise Usage("expected --out DIR to write to, or --inspect ROW to look at one row")
    choice = _choice(trains, harness=harness, kind=kind, min_reward=min_reward)
    parts = Split.parse(split, seed=split_seed) if split else None
    renderer = Renderer(load_tokenizer(tokenizer))
    with _store(db) as store:
        rollouts = _rollouts(store, reward, advantages, min_reward=min_reward)
        forest = Forest.of(store, session or (), together=_groups(rollouts) if parts else ())
        with _ticking(_total(store, forest), "rendering") as tick:
            if inspect is not None or out is None:
                wanted = forest.wanted
                found = find(
                    forest.trees(),
                    renderer,
                    inspect or 0,
                    sessions=wanted,
                    choice=choice,
                    rollouts=rollouts,
                    progress=tick,
                )
                _inspected(found, renderer, wide=wide)
                return
            try:
                manifest = write(
                    forest.trees(),
                    renderer,
                    out=out,
                    sessions=forest.wanted,
                    format=format,
                    tokenizer=tokenizer,
                    source=_db(db),
                    choice=choice,
                    rollouts=rollouts,
                    split=parts,
                    state=_state(store),
                    shard_rows=shard_rows,
                    overwrite=overwrite,
                    resume=resume,
                    progress=tick,
                )
            except KeyboardInterrupt:
                if unfinished_of(out).exists():
                    sys.stderr.write("memorywalker: cut short; the same command with --resume goes on\n")
                raise
    if json:
        _line(manifest.json().decode())
        return
    counts = manifest.counts
    excused = ", ".join(f"{tokens:,} {why}" for why, tokens in sorted(counts.excused_tokens.items()) if tokens)
    sampled = counts.trained_tokens + sum(counts.excused_tokens.values())
    _line(f"{counts.rows:,} rows from {counts.trajectories} sessions, {counts.calls} calls, in {out}")
    _line(f"{sampled:,} sampled tokens = {counts.trained_tokens:,} trained + {excused or '0'} excused")
    share = counts.call_tokens / max(1, counts.branch_tokens)
    _line(f"{counts.branch_tokens:,} tokens in rows ({share:.1f} times fewer than a row per call)")
    _line(f"{counts.trie_tokens:,} distinct tokens in context: what a shared pass computes")
    if counts.rewarded:
        idle = f"; {counts.idle_tokens:,} trained tokens have advantage 0 (see --advantages)"
        idle = idle if counts.idle_tokens else ""
        _line(f"{counts.rewarded:,} sessions have a reward, in {len(counts.groups):,} groups{idle}")
    if parts:
        _line("split: " + ", ".join(f"{name} {counts.parts[name]:,} sessions" for name in parts.names))
    if counts.mismatches:
        causes = ", ".join(f"{calls:,} {cause}" for cause, calls in sorted(counts.mismatches.items()))
        _line(f"served ids that are not the template's: {causes} calls; see mismatches.jsonl in {out}")
    for lost in manifest.lost:
        _line(f"not in this format: {lost}")


@app.command()
def train(
    model: Model,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the checkpoint goes.")],
    session: Sessions = None,
    db: Db = "",
    rows: Rows = None,
    trains: Trains = "main,subagent,summary",
    harness: HarnessFilter = "",
    kind: KindFilter = "",
    min_reward: MinReward = None,
    reward: RewardName = "reward",
    advantages: Annotated[
        Advantages | None, typer.Option(help="From rewards; by default grpo with --objective grpo, else none.")
    ] = None,
    scheme: Annotated[Scheme, typer.Option(help="How calls become training sequences.")] = "logittree",
    engine: Engine = "auto",
    chunk_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Hold the activations of so many tokens, compute the rest again.",
            rich_help_panel=MODEL_AND_MACHINE,
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 10,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate.")] = 1e-5,
    schedule: Annotated[
        ScheduleName, typer.Option(help="Course of the learning rate.", rich_help_panel=OPTIMIZER)
    ] = "constant",
    warmup: Annotated[
        int, typer.Option(min=0, help="Steps until the full learning rate.", rich_help_panel=OPTIMIZER)
    ] = 0,
    weight_decay: Annotated[float, typer.Option(min=0, help="Of AdamW.", rich_help_panel=OPTIMIZER)] = 0.0,
    clip_gradient: Annotated[
        float, typer.Option(min=0, help="Largest gradient norm; 0 = any.", rich_help_panel=OPTIMIZER)
    ] = 1.0,
    group: Annotated[int, typer.Option(min=1, help="Sessions in one trie.", rich_help_panel=OPTIMIZER)] = 1,
    accumulate: Annotated[
        int, typer.Option(min=1, help="Tries in one optimizer step, over all processes.", rich_help_panel=OPTIMIZER)
    ] = 1,
    objective: Annotated[
        ObjectiveName, typer.Option(help="Likelihood, or policy gradient.", rich_help_panel=OBJECTIVE)
    ] = "nll",
    per: Annotated[
        MeanPer | None,
        typer.Option(help="What counts alike: by default token for nll, rollout for grpo.", rich_help_panel=OBJECTIVE),
    ] = None,
    clip: Annotated[
        float, typer.Option(min=0, help="grpo: how far the ratio may leave 1.", rich_help_panel=OBJECTIVE)
    ] = 0.2,
    clip_high: Annotated[
        float | None,
        typer.Option(min=0, help="grpo: the same upwards; --clip if not given.", rich_help_panel=OBJECTIVE),
    ] = None,
    beta: Annotated[
        float, typer.Option(min=0, help="grpo: weight of the KL to the reference.", rich_help_panel=OBJECTIVE)
    ] = 0.0,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="grpo: the reference; the model as it starts if not given.", rich_help_panel=OBJECTIVE
        ),
    ] = None,
    sdcc_lambda: Annotated[
        float, typer.Option(min=0, help="sdcc: weight of the divergence to the live view.", rich_help_panel=OBJECTIVE)
    ] = 1.0,
    lora: Annotated[
        int,
        typer.Option(
            min=0, metavar="R", help="Train adapters of rank R, not the weights.", rich_help_panel=MODEL_AND_MACHINE
        ),
    ] = 0,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge", help="Write the adapters into the weights at the end.", rich_help_panel=MODEL_AND_MACHINE
        ),
    ] = False,
    bf16: Annotated[
        bool,
        typer.Option(
            "--bf16", help="Compute in bfloat16; weights stay as they are.", rich_help_panel=MODEL_AND_MACHINE
        ),
    ] = False,
    fsdp: Annotated[
        bool,
        typer.Option("--fsdp", help="Shard weights over the processes of torchrun.", rich_help_panel=MODEL_AND_MACHINE),
    ] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Stay on the CPU.", rich_help_panel=MODEL_AND_MACHINE)] = False,
    eval_rows: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Evaluate on this logittree export, before and after.",
            rich_help_panel=EVALUATION_AND_LOGS,
        ),
    ] = None,
    eval_split: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            min=0,
            max=1,
            help="Hold out this share of the sessions instead.",
            rich_help_panel=EVALUATION_AND_LOGS,
        ),
    ] = None,
    eval_steps: Annotated[
        int, typer.Option(min=0, help="Evaluate every so many steps, too.", rich_help_panel=EVALUATION_AND_LOGS)
    ] = 0,
    tensorboard: Annotated[
        bool,
        typer.Option("--tensorboard", help="Write TensorBoard events into DIR.", rich_help_panel=EVALUATION_AND_LOGS),
    ] = False,
    seed: int = 0,
    save_steps: Annotated[int, typer.Option(min=0, help="Checkpoint every so many steps; 0 = none.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint at DIR.")] = False,
    overwrite: Overwrite = False,
    max_head_tokens: MaxHead = None,
    max_tokens: MaxTokens = None,
    json: Json = False,
) -> None:
    """Train a causal LM on the contexts it really had; leaves a Hugging Face checkpoint with a model card.

    On several processes: torchrun --nproc-per-node 2 -m memorywalker train ...
    """
    if not lr > 0:
        raise Usage(f"expected --lr above 0, got {lr}")
    if merge and not lora:
        raise Usage("expected --merge with --lora R, got it alone")
    if fsdp and lora:
        raise Usage("expected --fsdp or --lora, got both: adapters are small as they are")
    if eval_rows is not None and eval_split is not None:
        raise Usage("expected --eval-rows or --eval-split, got both")
    if eval_split is not None and not 0 < eval_split < 1:
        raise Usage(f"expected --eval-split between 0 and 1, got {eval_split:g}")

    from trainer.held_out import parts, split
    from trainer.run import train as run_training
    from trainer.settings import Settings
    from trainer.sources import from_export

    settings = Settings(
        scheme=scheme,
        engine=engine,
        chunk_tokens=chunk_tokens,
        steps=steps,
        learning_rate=lr,
        schedule=schedule,
        warmup_steps=warmup,
        weight_decay=weight_decay,
        clip_gradient=clip_gradient,
        group=group,
        accumulate=accumulate,
        objective=objective,
        per=per,
        clip=clip,
        clip_high=clip_high,
        beta=beta,
        sdcc_lambda=sdcc_lambda,
        lora=lora,
        merge=merge,
        bf16=bf16,
        sharded=fsdp,
        cpu=cpu,
        eval_steps=eval_steps,
        seed=seed,
        save_steps=save_steps,
    )
    source = _source(
        db,
        session,
        rows,
        model,
        choice=_choice(trains, harness=harness, kind=kind, min_reward=min_reward),
        reward=reward,
        advantages=advantages or ("grpo" if objective == "grpo" else "none"),
        max_head_tokens=max_head_tokens,
        max_tokens=max_tokens,
    )
    source, held_out = parts(source)
    if eval_rows is not None:
        held_out = from_export(eval_rows, max_tokens=max_tokens)
    elif eval_split is not None:
        source, held_out = split(source, share=eval_split, seed=seed)
    done = run_training(
        source,
        model=model,
        out=out,
        settings=settings,
        held_out=held_out,
        reference=reference,
        tensorboard=tensorboard,
        resume=resume,
        overwrite=overwrite,
    )
    if os.environ.get("RANK", "0") != "0":
        return
    if json:
        _json(done)
        return
    for number, loss in enumerate(done.losses, done.steps - len(done.losses) + 1):
        _line(f"step {number}: loss {loss:.4f}")
    if done.eval_losses:
        _line(f"held-out loss {done.eval_losses[0]:.4f} before, {done.eval_losses[-1]:.4f} after")
    _line(f"checkpoint and model card in {out}")


@app.command()
def drift(
    model: Model,
    session: Sessions = None,
    db: Db = "",
    rows: Rows = None,
    trains: Trains = "main,subagent,summary",
    harness: HarnessFilter = "",
    kind: KindFilter = "",
    min_reward: MinReward = None,
    reward: RewardName = "reward",
    advantages: AdvantageName = "none",
    schemes: Annotated[
        str, typer.Option(metavar="NAME,...", help="Schemes to compare.")
    ] = "logittree,naive-compressed,naive-full",
    engine: Engine = "auto",
    kl: Annotated[bool, typer.Option("--kl", help="Compare whole distributions too.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a plot there, too.")] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the rows there as JSON lines, too.")
    ] = None,
    max_head_tokens: MaxHead = None,
    max_tokens: MaxTokens = None,
    json: Json = False,
) -> None:
    """How far each scheme's training contexts are from those the model really had: |dlogp| under the same weights."""
    from trainer.drift import drift as measure
    from trainer.drift import json_rows, table
    from trainer.drift import plot as draw
    from trainer.models import load_model, load_tokenizer

    chosen = tuple(dict.fromkeys(schemes.split(",")))
    if unknown := [name for name in chosen if name not in get_args(Scheme)]:
        raise Usage(f"expected --schemes out of {', '.join(get_args(Scheme))}; got {unknown[0]!r}")
    source = _source(
        db,
        session,
        rows,
        model,
        choice=_choice(trains, harness=harness, kind=kind, min_reward=min_reward),
        reward=reward,
        advantages=advantages,
        max_head_tokens=max_head_tokens,
        max_tokens=max_tokens,
    )
    with _doing() as step:
        found = measure(
            source,
            model=load_model(model),
            schemes=chosen,
            engine=engine,
            kl=kl,
            decode=load_tokenizer(model).decode,
            step=step,
        )
    if plot:
        draw(found, plot)
    lines = [_dumps(one) for one in json_rows(found)]
    if report:
        report.write_text("".join(f"{line}\n" for line in lines))
    if json:
        for line in lines:
            _line(line)
    else:
        _print(table(found))


# ---- shared


def _redactor(words: Sequence[str] | None) -> "Redactor | None":
    from recorder.home import data_dir
    from recorder.redact import redactor

    return redactor(words or (), home=data_dir())


def _usage(store: "Store", *, json: bool) -> None:
    from recorder.listing import row, usage

    found = list(usage(map(row, store.calls())))
    if json:
        for one in found:
            _json(one)
        return
    _table(
        ("session", "calls", "input", "cache read", "cache write", "output", "cached"),
        [
            (
                u.session or "?",
                u.calls,
                *(("?" if n is None else f"{n:,}") for n in (u.usage.input, u.usage.cache_read, u.usage.cache_write)),
                "?" if u.usage.output is None else f"{u.usage.output:,}",
                "?" if u.cache_share is None else f"{u.cache_share:.0%}",
            )
            for u in found
        ],
    )


def _stats(store: "Store", *, json: bool) -> None:
    from treebuilder.forest import Forest
    from treebuilder.statistics import row, statistics

    trees = Forest.of(store).trees()
    found = ((session, statistics(tree, session=session)) for tree in trees for session in tree.sessions)
    if json:
        for session, one in found:
            _json(row(session, one))
        return
    _table(
        ("session", "calls", "branches", "context", "evicted", "depth", "sampled", "lost", "shifted", "evicted by"),
        [
            (
                session,
                s.calls,
                s.branches,
                f"{s.rendered_chars:,}",
                f"{sum(s.evicted_chars.values()):,}",
                f"{s.compression_depth:.0%}",
                f"{s.sampled_chars:,}",
                f"{s.lost_share:.0%}",
                f"{s.shifted_share:.0%}",
                ", ".join(f"{kind} {n:,}" for kind, n in sorted(s.evicted_chars.items(), key=lambda kind: -kind[1])),
            )
            for session, s in found
        ],
    )


def _db(name: str) -> str:
    from recorder.home import default_db

    return name or default_db()


def _store(name: str, *, create: bool = False) -> "Store":
    from recorder.store import Store

    return Store.open(_db(name), create=create)


def _calls(store: "Store", wanted: Sequence[str] | None) -> "Iterator[Call]":
    if not wanted:
        yield from store.calls()
        return
    for one in _full_ids(wanted, [s.session for s in store.sessions()], store.where):
        yield from store.calls(session=one)


def _full_ids(wanted: Sequence[str], known: Sequence[str], where: str) -> list[str]:
    """Ids for ids or their beginnings. MemorywalkerError where one fits none, or several."""
    found = []
    for word in wanted:
        hits = [word] if word in known else [k for k in known if k.startswith(word)]
        if len(hits) != 1:
            got = f"{word!r}, which fits {len(hits)} of {len(known)}"
            raise MemorywalkerError(f"expected the id of one session, or its start, got {got}, at {where}")
        found += hits
    return found


def _of_sessions(
    db: str,
    wanted: Sequence[str] | None,
    *,
    structural: bool = False,
    each: "Callable[[Call], None]" = lambda call: None,
) -> "Trajectory":
    """The tree of the wanted sessions; `each` sees the calls it is built of."""
    from treebuilder.forest import Forest

    with _store(db) as store:
        forest = Forest.of(store, wanted) if wanted else Forest(store, (), None)
        return forest.tree(structural=structural, each=each)


def _choice(trains: str, *, harness: str, kind: str, min_reward: float | None) -> "Choice":
    from trainer.samples import TRAINS, Choice
    from treebuilder.tree import Kind

    words = [word.strip() for word in trains.split(",")]
    if unknown := [word for word in words if word not in TRAINS]:
        raise Usage(f"expected --train out of {', '.join(TRAINS)}; got {unknown[0]!r}")
    kinds = [word.strip() for word in kind.split(",") if word.strip()]
    if strange := [word for word in kinds if word not in list(Kind)]:
        raise Usage(f"expected --kind out of {', '.join(Kind)}; got {strange[0]!r}")
    return Choice.of(words, kinds=map(Kind, kinds) if kinds else None, harness=harness, min_reward=min_reward)


def _rollouts(store: "Store", name: str, advantages: str, *, min_reward: float | None) -> "dict[str, Rollout] | None":
    """What each session earned by that name; None = nobody did, or it is not to count."""
    from trainer.rollouts import from_store

    if advantages == "none" and min_reward is None:
        return None
    found = from_store(store, name=name, how="raw" if advantages == "none" else advantages)  # type: ignore[arg-type]
    if not found and min_reward is not None:
        raise Usage(f"expected --min-reward with rewards of the name {name!r}, got none at {store.where}")
    if advantages == "none":
        from dataclasses import replace

        found = {session: replace(one, advantage=1.0) for session, one in found.items()}
    return found or None


def _groups(rollouts: "dict[str, Rollout] | None") -> "list[list[str]]":
    """Sessions that are compared with each other."""
    groups: dict[str, list[str]] = {}
    for session, one in (rollouts or {}).items():
        groups.setdefault(one.group, []).append(session)
    return list(groups.values())


def _rewarded(store: "Store") -> "Callable[[Reward], Reward]":
    """Finds a reward's session. One that only trees tell apart gets its group at once: its calls say nothing of it."""
    from dataclasses import replace

    from trainer.rollouts import prompt_group, turn_prompt
    from treebuilder.forest import Names

    names = Names(store, store.families())

    def named(one: "Reward") -> "Reward":
        found = names.find(one.session)
        if len(found.sessions) > 1:
            said = f"got a run of {len(found.sessions)} sessions, which `tree` names"
            raise MemorywalkerError(f"expected the id of one session, {said}, at {store.where}")
        group = one.group or (prompt_group(turn_prompt(found.first)) if found.first else None)
        return replace(one, session=found.sessions[0], group=group)

    return named


def _state(store: "Store") -> str:
    """Another where a call was recorded meanwhile."""
    return ", ".join(f"{one.session} {one.calls}" for one in store.sessions())


def _inspected(found: "Found", renderer: "Renderer", *, wide: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    from trainer.inspect import inspect

    console = Console(soft_wrap=True)
    plain = not console.is_terminal or console.no_color
    shown = inspect(found.row, renderer.tokenizer, around=None if wide else 60, brackets=plain)
    console.print(Text(found.title(), style="bold"))
    console.print(shown)


def _total(store: "Store", forest: "Forest") -> int:
    """Calls that a forest's trees are built of."""
    calls = {one.session: one.calls for one in store.sessions()}
    return sum(calls.get(key, 0) for family in forest.families for key in family)


def _source(
    db: str,
    wanted: Sequence[str] | None,
    rows: Path | None,
    model: str,
    *,
    choice: "Choice",
    reward: str,
    advantages: str,
    max_head_tokens: int | None,
    max_tokens: int | None,
) -> "Source":
    from trainer.models import load_tokenizer
    from trainer.render import Renderer
    from trainer.samples import Choice
    from trainer.sources import from_export, from_trajectories
    from treebuilder.forest import Forest

    if rows is not None:
        if wanted or db or max_head_tokens is not None or choice != Choice():
            raise Usage("expected --rows alone: sessions, --db, --max-head-tokens and what trains belong to the export")
        return from_export(rows, max_tokens=max_tokens)
    renderer = Renderer(load_tokenizer(model))
    with _store(db) as store:
        rollouts = _rollouts(store, reward, advantages, min_reward=choice.min_reward)
        forest = Forest.of(store, wanted or ())
        with _ticking(_total(store, forest), "rendering") as tick:
            return from_trajectories(
                forest.trees(),
                renderer,
                sessions=forest.wanted,
                choice=choice,
                rollouts=rollouts,
                max_head_tokens=max_head_tokens,
                max_tokens=max_tokens,
                progress=tick,
            )


def _summary(finished: "Finished") -> None:
    """What was recorded, on stderr: the agent's stdout stays its own."""
    text = f"memorywalker: {finished.calls} calls"
    if finished.calls:
        try:
            text += _shape(finished)
        except Exception as e:  # noqa: BLE001  the agent has run and is recorded; its exit code must come through
            text += f" (no tree: {type(e).__name__}: {e})"
    sys.stderr.write(f"{text}; {finished.lost} lost; in {finished.db}\n")
    for note in finished.notes:
        sys.stderr.write(f"memorywalker: {note}\n")


def _shape(finished: "Finished") -> str:
    from recorder.store import Store
    from treebuilder.build import build

    with Store.open(finished.db) as store:
        trajectory = build(store.calls(run=finished.run))
    threads = {trajectory.turns[branch.turns[0]].thread for branch in trajectory.branches}
    forks = len(trajectory.branches) - len(threads)
    return f", {len(threads)} threads, {forks} forks; session {', '.join(trajectory.sessions)}"


def _line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _json(value: object) -> None:
    _line(_dumps(value))


def _dumps(value: object) -> str:
    import orjson

    try:
        return orjson.dumps(value, default=str).decode()
    except orjson.JSONEncodeError:  # half a surrogate pair, as JavaScript harnesses cut text
        import dataclasses
        import json

        def plain(one: object) -> object:
            if dataclasses.is_dataclass(one) and not isinstance(one, type):
                return dataclasses.asdict(one)
            return str(one)

        return json.dumps(value, default=plain, separators=(",", ":"))


def _print(drawn: "RenderableType") -> None:
    from rich.console import Console

    Console().print(drawn)


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


@contextmanager
def _ticking(total: int, what: str) -> "Iterator[Callable[[], None]]":
    """A bar on stderr when it is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


@contextmanager
def _doing() -> "Iterator[Callable[[str], None]]":
    """The step under way, on stderr when it is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda doing: None
        return
    from rich.console import Console

    with Console(stderr=True).status("loading") as status:
        yield status.update


if __name__ == "__main__":
    sys.exit(main())
