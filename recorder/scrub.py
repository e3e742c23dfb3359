"""A recording fit to be shown: every line of wording becomes pseudo-words, the same line always the same ones.

Kept: structure, keys, roles, ids, names of tools and models, numbers, punctuation, tags, and what the caller names as
wording that programs write. Each letter becomes a letter and each digit a digit, so lengths and cuts stay what they
were. Which words a line gets depends on a salt that is not kept: equal lines stay equal within one recording only.
"""

import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import shake_128
from pathlib import Path

from recorder.call import Call, Outcome
from recorder.errors import StoreError
from recorder.har_writing import write_har
from recorder.outcome import settled
from recorder.rewrite import Path as Keys
from recorder.rewrite import rewritten
from recorder.store import Store

MARKERS = (
    "x-anthropic-billing-header",
    "[Request interrupted by user]",
    "[Request interrupted by user for tool use]",
)
"""What programs write and readers of the wire look for, whoever the harness is."""
KEPT_KEYS = frozenset(
    (
        *("type", "role", "id", "name", "model", "object", "status", "event", "phase", "code", "namespace"),
        *("tool_use_id", "tool_call_id", "call_id", "item_id", "response_id", "request_id", "parent_tool_use_id"),
        *("previous_response_id", "previous_message_id", "prompt_cache_key", "session_id", "thread_id", "conversation"),
        *("stop_reason", "finish_reason", "finishReason", "blockReason", "reason", "responseId", "modelVersion"),
        *("media_type", "mimeType", "mime_type", "format", "required", "$ref", "$schema", "tool_choice", "betas"),
        *("service_tier", "effort", "verbosity", "ttl", "anthropic_version", "system_fingerprint", "truncation"),
    )
)
"""Keys whose values are the wire's own words, as long as they look like words and not like prose."""
KEPT_HEADERS = re.compile(
    r"content-type|user-agent|originator|retry-after|request-id|x-request-id|anthropic-(version|beta)|session-id|"
    r"thread-id|x-session-(id|affinity)|x-parent-session-id|x-app|x-memorywalker-.*|"
    r"x-claude-code-(session-id|agent-id|parent-agent-id|request-class|agent-type|compaction|context-compacted)"
)
_WORD_OF_WIRE = re.compile(r"[\w.:/@+=$#-]{0,160}\Z")
_SPOKEN = frozenset(("input", "arguments", "partial_json", "args", "functionResponse", "function_response"))
"""Below these keys everything is the agent's or the user's own."""
_TAG = r"</?[A-Za-z][\w:-]{0,48}>"
_WORD = re.compile(r"[^\W\d_]+|\d+")
_LINES = re.compile(r"[^\r\n]+")
_VOWELS, _CONSONANTS, _DIGITS = "aeiou", "bcdfghjklmnpqrstvwxz", "0123456789"
_MEMORY_CHARS = 32 << 20


def scrub_calls(calls: Iterable[Call], *, keep: Iterable[str] = (), salt: bytes | None = None) -> Iterator[Call]:
    """The calls in pseudo-words, one at a time. `keep`: phrases that stay (`treebuilder.wording` knows which the tree
    needs). `salt`: None = a new one."""
    scrubber = Scrubber(keep=keep, salt=salt)
    return map(scrubber.call, calls)


def write(calls: Iterable[Call], out: str | Path, *, keep: Iterable[str] = (), salt: bytes | None = None) -> int:
    """Scrub into a new HAR (`out` ends in `.har`) or a new database; how many calls. Nothing there is overwritten."""
    scrubbed = scrub_calls(calls, keep=keep, salt=salt)
    if "://" not in str(out) and Path(out).exists():
        raise StoreError(f"scrub: expected a name for a new file, got one that exists, at {out}")
    if str(out).endswith(".har"):
        return write_har(out, scrubbed)
    with Store.open(out) as store:
        return sum(1 for call in scrubbed if store.put(call))


class Scrubber:
    def __init__(self, *, keep: Iterable[str] = (), salt: bytes | None = None) -> None:
        self._salt = secrets.token_bytes(16) if salt is None else salt
        phrases = sorted({*MARKERS, *keep}, key=len, reverse=True)
        self._kept = re.compile("|".join([*map(re.escape, phrases), _TAG]))
        self._lines: dict[str, str] = {}
        self._chars = 0

    def call(self, call: Call) -> Call:
        try:
            made = rewritten(call, self.leaf)
        except RecursionError:  # JSON deeper than Python walks
            made = replace(call, request_body=b"", response_body=b"", error="recorder: too deep to be scrubbed")
        made = replace(
            made, request_headers=_headers(made.request_headers), response_headers=_headers(made.response_headers)
        )
        if call.outcome is Outcome.STREAM_ERROR:  # the error tells the reply's own words
            made = settled(replace(made, outcome=Outcome.COMPLETE, error=""))
        return made

    def leaf(self, text: str, path: Keys) -> str:
        if not path:
            return self.text(text)
        last = path[-1]
        if last == "*":
            return text
        spoken = any(key in _SPOKEN for key in path[_depth(path) :])
        if last == "user_id" and not spoken:
            return self._user(text)
        return text if not spoken and last in KEPT_KEYS and _WORD_OF_WIRE.match(text) else self.text(text)

    def text(self, text: str) -> str:
        """Line by line; kept phrases and tags part a line into pieces that are lines of their own."""
        return _LINES.sub(lambda found: self._line(found[0]), text)

    def _line(self, line: str) -> str:
        known = self._lines.get(line)
        if known is not None:
            return known
        made, at = [], 0
        for found in self._kept.finditer(line):
            made += [self._piece(line[at : found.start()]), found[0]]
            at = found.end()
        known = "".join([*made, self._piece(line[at:])])
        self._chars += 2 * len(line)
        if self._chars > _MEMORY_CHARS:
            self._lines.clear()
            self._chars = 0
        self._lines[line] = known
        return known

    def _piece(self, piece: str) -> str:
        wording = piece.strip()
        if not wording:
            return piece
        stream = shake_128(self._salt + wording.encode("utf-8", "surrogatepass")).digest(2 * len(wording))
        start = piece.index(wording[0])

        def other(found: re.Match[str]) -> str:
            return _pseudo(found[0], stream[2 * found.start() : 2 * found.end()])

        return piece[:start] + _WORD.sub(other, wording) + piece[start + len(wording) :]

    def _user(self, text: str) -> str:
        """Anthropic's `metadata.user_id`: the session stays, the account and the device do not."""
        session = re.search(r'_session_[\w-]+\Z|"session_id":\s*"[^"]*"', text)
        if session is None:
            return self.text(text)
        names = re.compile(r'"[a-z_]+":|user_|_account_')
        out, at = [], 0
        for found in sorted([session, *names.finditer(text)], key=lambda m: m.start()):
            if found.start() >= at:
                out += [self._piece(text[at : found.start()]), found[0]]
                at = found.end()
        return "".join([*out, self._piece(text[at:])])


def _depth(path: Keys) -> int:
    """Where to begin to look for keys of spoken content: Responses names the whole prefix `input`."""
    return 1 if path[0] == "input" else 2 if path[:2] == ("response", "input") else 0


def _pseudo(word: str, noise: bytes) -> str:
    if word.isdecimal():
        return "".join(_DIGITS[(int(c) + 1 + noise[2 * i] % 9) % 10] for i, c in enumerate(word))
    made = "".join((_VOWELS if i % 2 else _CONSONANTS)[noise[2 * i] % (5 if i % 2 else 20)] for i in range(len(word)))
    if made == word.lower():
        made = _CONSONANTS[(_CONSONANTS.find(made[0]) + 1) % 20] + made[1:]
    return "".join(m.upper() if c.isupper() else m for m, c in zip(made, word, strict=True))


def _headers(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in headers if KEPT_HEADERS.fullmatch(name))
