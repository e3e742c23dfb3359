"""Run an agent under the proxy with its terminal untouched; record, wind down, and tell what came of it.

The agent inherits stdin, stdout and stderr. Ctrl-C reaches it from the terminal as ever, and we wait for it; signals
sent to us alone are passed on. We write to stderr only, and only before the agent starts or when a call is first lost.
"""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from proxy import harnesses
from proxy.recording import Environ, Finished, Options, recording
from recorder.errors import LaunchError


def run(command: Sequence[str], options: Options, *, environ: Environ | None = None) -> Finished:
    """Run `command` recorded. Raises LaunchError or StoreError before the command has started."""
    environ = os.environ if environ is None else environ
    if not command:
        raise LaunchError("expected a command after --, got none, at memorywalker run")
    program = shutil.which(command[0], path=environ.get("PATH"))
    if program is None:
        raise LaunchError(f"expected a command that can be run, got {command[0]!r}, which is not on PATH")
    profile = harnesses.profile(options.harness) if options.harness else harnesses.detect(command)
    with recording(options, profile=profile, environ=environ) as it:
        words = [command[0], *it.arguments, *command[1:]]
        exit_code = _wait(words, program=program, environ={**environ, **it.variables})
    return it.finished(exit_code)


def serve_proxy(
    options: Options,
    *,
    announce: Callable[[str], None],
    environ: Environ | None = None,
    until: threading.Event | None = None,
) -> Finished:
    """Record whatever comes until SIGINT or SIGTERM (or `until`); `announce` gets the lines to put into a shell."""
    environ = os.environ if environ is None else environ
    profile = harnesses.profile(options.harness) if options.harness else harnesses.GENERIC
    stop = threading.Event() if until is None else until
    with recording(options, profile=profile, environ=environ) as it:
        for name, value in it.variables.items():
            announce(f"export {name}='{value}'")
        with _signals({s: lambda _s, _f: stop.set() for s in (signal.SIGINT, signal.SIGTERM)}):
            stop.wait()
    return it.finished(0)


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
