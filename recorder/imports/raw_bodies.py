"""A folder that Claude Code fills under OTEL_LOG_RAW_API_BODIES=file:DIR: requests and responses, each a file.

`UUID.request.json` is a request as it was built; `REQUEST-ID.response.json` the whole assistant message (a UUID when
the server named no id). Nothing in a response says what it answers, so the two are joined by what later requests say:
one that repeats the response holds, before it, the request that was answered; one that names its id (`cc_prev_req`)
goes on from it. What nothing later repeats is joined by the order in which the files were written. Claude Code puts
`<REDACTED>` for all thinking. (Format: docs of apache/skywalking-ai-sessionizer, measured there on 2.1.260.)
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from recorder import canonical, wire
from recorder.call import Call, Outcome
from recorder.errors import SourceError
from recorder.message import Exchange, Message, prefix_hash

REQUEST, RESPONSE = ".request.json", ".response.json"
_PREVIOUS = re.compile(rb"cc_prev_req=([A-Za-z0-9_-]+)")
_URL = "https://api.anthropic.com/v1/messages?beta=true"
"""Where Claude Code sends them unless told otherwise; the files do not say."""
_NONE = "recorder: the folder holds no response"
RUN = "import-raw-api-bodies"
"""One for all folders: they grow, and names in them are unique, so a second import adds what is new."""


@dataclass(frozen=True, slots=True)
class _Asked:
    path: Path
    at_ns: int
    node: bytes
    """Its prefix; empty = it could not be read."""
    model: str


@dataclass(frozen=True, slots=True)
class _Answered:
    path: Path
    at_ns: int
    digest: bytes
    """Of the message as a later request repeats it."""
    model: str

    @property
    def id(self) -> str:
        return self.path.name.removesuffix(RESPONSE)


@dataclass(slots=True)
class _Folder:
    asked: list[_Asked] = field(default_factory=list)
    answered: list[_Answered] = field(default_factory=list)
    before: dict[bytes, list[bytes]] = field(default_factory=dict)
    """An assistant message -> the prefixes behind which it stands."""
    before_named: dict[str, list[bytes]] = field(default_factory=dict)
    """A request id -> prefixes that end before an assistant message, in the request that names it, longest first."""


def is_folder(path: Path) -> bool:
    return path.is_dir() and next(path.glob(f"*{REQUEST}"), None) is not None


def files(path: Path) -> list[Path]:
    """Requests and responses, in the order in which they were written."""
    return [
        p for _, p in sorted((p.stat().st_mtime_ns, p) for end in (REQUEST, RESPONSE) for p in path.glob(f"*{end}"))
    ]


def pairs(path: Path) -> tuple[list[tuple[Path, Path | None]], int]:
    """Each request with its response, if one was found; and how many responses were left over."""
    folder = _read(path)
    found: dict[Path, Path] = {}
    left: list[_Answered] = []
    for answer in folder.answered:
        prefixes = folder.before.get(answer.digest, []) or folder.before_named.get(answer.id, [])
        if not _join(found, answer, [a for node in prefixes for a in folder.asked if a.node == node]):
            left.append(answer)
    spare = sum(not _join(found, answer, [a for a in folder.asked if a.model == answer.model]) for answer in left)
    return [(a.path, found.get(a.path)) for a in folder.asked], spare


def _join(found: dict[Path, Path], answer: _Answered, candidates: list[_Asked]) -> bool:
    """Give the answer to the last candidate that was written before it and has none."""
    open_ = [a for a in candidates if a.path not in found]
    before = [a for a in open_ if a.at_ns <= answer.at_ns]
    if before:
        found[max(before, key=lambda a: a.at_ns).path] = answer.path
    return bool(before)


def _read(path: Path) -> _Folder:
    folder = _Folder()
    for file in files(path):
        at_ns = file.stat().st_mtime_ns
        if file.name.endswith(REQUEST):
            meaning = wire.read(call(file, None))
            if not isinstance(meaning, Exchange):
                folder.asked.append(_Asked(file, at_ns, b"", ""))
                continue
            node, said = b"", []
            for message in meaning.messages:
                if message.role == "assistant":
                    said.append(node)
                    places = folder.before.setdefault(message.digest, [])
                    if node not in places:
                        places.append(node)
                node = prefix_hash(node, message.digest)
            if named := _PREVIOUS.search(_bytes(file)[:4096]):
                folder.before_named.setdefault(named[1].decode(), said[::-1])
            folder.asked.append(_Asked(file, at_ns, node, meaning.head.model))
        else:
            body = canonical.loads(_bytes(file))
            reader = wire.reply_reader("anthropic")
            reader.feed(_bytes(file))
            reply = reader.finish()
            blocks = tuple(canonical.echo(b) for b in reply.message.blocks) if reply else ()
            model = str(body.get("model", "")) if isinstance(body, dict) else ""
            folder.answered.append(_Answered(file, at_ns, Message("assistant", blocks).digest, model))
    return folder


def call(request: Path, response: Path | None) -> Call:
    """SourceError when one of the files holds no JSON object."""
    body = _bytes(response) if response else b""
    started = request.stat().st_mtime_ns / 1e9
    name = response.name.removesuffix(RESPONSE) if response else ""
    headers = (("content-type", "application/json"), *((("request-id", name),) if name.startswith("req_") else ()))
    return Call(
        method="POST",
        url=_URL,
        status=200 if response else None,
        outcome=Outcome.COMPLETE if response else Outcome.UNANSWERED,
        request_headers=(("content-type", "application/json"),),
        response_headers=headers if response else (),
        request_body=_bytes(request),
        response_body=body,
        started_at_utc=started,
        duration_s=max(0.0, response.stat().st_mtime_ns / 1e9 - started) if response else None,
        error="" if response else _NONE,
        source="#".join(p.name for p in (request, response) if p),
        run=RUN,
    )


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        value = canonical.loads(data)
    except OSError as e:
        raise SourceError(f"import: expected a file to read, got {e.strerror} at {path}") from e
    except ValueError as e:
        raise SourceError(f"import: expected a JSON object, got {e} at {path}") from e
    if not isinstance(value, dict):
        raise SourceError(f"import: expected a JSON object, got {type(value).__name__} at {path}")
    return data
