"""Token ids and logprobs that an engine puts into its replies: the only token identity that needs no tokenizer.

vLLM with `return_token_ids`: `prompt_token_ids` at the top of the first chunk (or of the body), `token_ids` in each
choice; `logprobs.content[].logprob` in each choice, with `token: "token_id:17"` under `return_tokens_as_token_ids`.
The other formats have no words for this, so the same names are read at the top of any of their events: our gateway
writes them there, logprobs as a plain array of nats.
"""

from recorder.message import Served
from recorder.wire.body import Json, arr, obj, string

_TOKEN_ID = "token_id:"


class Gathered:
    """Ids and logprobs as they come in, chunk by chunk."""

    def __init__(self) -> None:
        self._prompt: tuple[int, ...] | None = None
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._named: list[int] = []

    def take(self, data: Json) -> None:
        """Read an event, a body or a choice; each id must be handed in once."""
        prompt = data.get("prompt_token_ids")
        if isinstance(prompt, list) and prompt:
            self._prompt = _ints(prompt)
        if isinstance(ids := data.get("token_ids"), list):
            self._ids.extend(_ints(ids) or ())
        logprobs = data.get("logprobs")
        if isinstance(logprobs, list):
            self._logprobs.extend(float(x) for x in logprobs if isinstance(x, int | float))
        for entry in map(obj, arr(obj(logprobs).get("content"))):
            value, token = entry.get("logprob"), string(entry.get("token"))
            if isinstance(value, int | float):
                self._logprobs.append(float(value))
            if token.startswith(_TOKEN_ID) and token[len(_TOKEN_ID) :].isdecimal():
                self._named.append(int(token[len(_TOKEN_ID) :]))

    def served(self) -> Served | None:
        """None when no completion ids came; logprobs only when there is one for each."""
        ids = self._ids or self._named
        if not ids:
            return None
        return Served(self._prompt, tuple(ids), tuple(self._logprobs) if len(self._logprobs) == len(ids) else None)


def _ints(values: list[object]) -> tuple[int, ...] | None:
    """None where one is no id: those are 0 to 2^31 - 1."""
    ids = tuple(v for v in values if isinstance(v, int) and 0 <= v < 1 << 31)
    return ids if len(ids) == len(values) else None
