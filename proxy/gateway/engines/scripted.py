"""The scripted engine: each conversation plays the script from its beginning. A retry is a new request: it plays on.

A conversation is named by the harness's session and agent headers, or by the reply a request says it follows, or else
by its content up to the first user message.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping

from proxy.gateway.completion import Answer, Completion, Piece, Refusal, Stop, pieces, replay
from proxy.gateway.ids import fresh
from proxy.gateway.request import Request
from proxy.gateway.script import CHARS_PER_TOKEN, Script, Turn, When, counted
from recorder.errors import ScriptError
from recorder.message import Block, prefix_hash

_CALL_IDS = {"anthropic": "toolu_01", "openai_chat": "call_", "openai_responses": "call_"}
_DONE = Turn(text="Done.")
"""What a model says whose script is used up."""


class ScriptedEngine:
    def __init__(self, script: Script, *, variables: Mapping[str, str] | None = None) -> None:
        given = dict(variables or {})
        missing = [name for name in script.variables if name not in given]
        if missing:
            raise ScriptError(f"script: expected a value for each variable, got none for {', '.join(missing)}")
        self._script = script
        self._variables = {name: given[name] for name in script.variables}
        self._played: Counter[tuple[str, int]] = Counter()
        self._lane_of_reply: dict[str, str] = {}

    @property
    def models(self) -> tuple[str, ...]:
        return self._script.models

    def count_tokens(self, request: Request) -> int:
        return max(request.size_chars // CHARS_PER_TOKEN, 1)

    async def answer(self, request: Request) -> Answer | Refusal:
        turn = self._next(request)
        if turn is None:
            if self._script.strict:
                used = len(self._script.turns)
                return Refusal(400, "invalid_request_error", f"the script's {used} turns are used up")
            turn = _DONE
        if turn.error is not None:
            return turn.error
        return Answer(replay(self._pieces(turn, request)), turn.pace)

    def _next(self, request: Request) -> Turn | None:
        lane = self._lane(request)
        for number, rule in enumerate(self._script.rules):
            if fits(rule.when, request):
                played = self._played[lane, number]
                self._played[lane, number] += 1
                return rule.turns[min(played, len(rule.turns) - 1)]
        played = self._played[lane, -1]
        self._played[lane, -1] += 1
        return self._script.turns[played] if played < len(self._script.turns) else None

    def _lane(self, request: Request) -> str:
        if self._script.lanes == "one":
            return ""
        lane = self._lane_of_reply.get(request.hints.previous_id) or lane_of(request)
        if request.wire == "openai_responses":
            self._lane_of_reply[request.reply_id] = lane
        return lane

    def _pieces(self, turn: Turn, request: Request) -> Iterator[Piece]:
        completion = self._completion(turn, request)
        whole = pieces(completion, chunk_chars=turn.chunk_chars)
        if turn.stream_error is None:
            yield from whole
            return
        for i, piece in enumerate(whole):
            if isinstance(piece, Stop) or i == turn.stream_error_after:
                break
            yield piece
        yield turn.stream_error

    def _completion(self, turn: Turn, request: Request) -> Completion:
        blocks = []
        if turn.thinking:
            blocks.append(Block("thinking", self._filled(turn.thinking)))
        if turn.text:
            blocks.append(Block("text", self._filled(turn.text)))
        for tool in turn.tools:
            arguments = self._filled(tool.arguments, quoted=True)
            blocks.append(Block("tool_call", arguments, tool.name, fresh(_CALL_IDS[request.wire])))
        reply_chars = sum(b.size_chars for b in blocks)
        usage = counted(turn.usage, prompt_chars=request.size_chars, reply_chars=reply_chars)
        return Completion(tuple(blocks), turn.stop, usage)

    def _filled(self, text: str, *, quoted: bool = False) -> str:
        for name, value in self._variables.items():
            text = text.replace("{" + name + "}", json.dumps(value)[1:-1] if quoted else value)
        return text


def lane_of(request: Request) -> str:
    """The conversation a request belongs to, judged from the request alone."""
    hints = request.hints
    if hints.session:
        return f"{hints.session}/{hints.agent}"
    digest = request.head.digest
    for message in request.messages:
        digest = prefix_hash(digest, message.digest)
        if message.role == "user":
            break
    return digest.hex()


def fits(when: When, request: Request) -> bool:
    count = len(request.messages)
    return (
        when.wire in (None, request.wire)
        and (when.model is None or when.model in request.head.model)
        and when.has_tools in (None, bool(request.head.tools))
        and when.agent in (None, bool(request.hints.agent))
        and (when.system is None or when.system in request.system_text)
        and (when.first_user is None or when.first_user in request.user_text(last=False))
        and (when.last_user is None or when.last_user in request.user_text(last=True))
        and (when.min_messages is None or when.min_messages <= count)
        and (when.max_messages is None or count <= when.max_messages)
    )
