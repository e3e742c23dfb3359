"""Who speaks, by headers and by the few body fields that carry ids. Evidence for the tree, never content."""

from recorder import canonical
from recorder.message import Hints
from recorder.wire.body import Json, obj, string

_HARNESSES = (
    ("claude-cli", "claude-code"),
    ("claude-code", "claude-code"),
    ("opencode", "opencode"),
    ("codex", "codex"),
    ("qwencode", "qwen-code"),
    ("geminicli", "gemini-cli"),
    ("gemini-cli", "gemini-cli"),
)
"""Start of the user agent, lower case -> harness. An SDK's user agent says nothing about who uses it."""


def speaker(headers: tuple[tuple[str, str], ...], body: Json) -> Hints:
    """Names of headers in lower case, as `Call` keeps them; an empty body = headers alone."""
    said: dict[str, str] = {}
    for name, value in headers:
        said.setdefault(name, value)

    def first(*names: str) -> str:
        return next((said[name] for name in names if said.get(name)), "")

    session = first("x-claude-code-session-id", "x-session-id", "x-session-affinity", "session-id", "session_id")
    thread = first("thread-id")
    return Hints(
        harness=_harness(first("user-agent"), first("originator")),
        session=session or _session(body),
        parent_session=first("x-parent-session-id"),
        agent=first("x-claude-code-agent-id") or (thread if session and thread != session else ""),
        parent_agent=first("x-claude-code-parent-agent-id"),
        request_class=first("x-claude-code-request-class"),
        compaction=first("x-claude-code-compaction"),
        context_compacted=first("x-claude-code-context-compacted"),
        previous_id=string(obj(body.get("diagnostics")).get("previous_message_id"))
        or string(body.get("previous_response_id")),
    )


def _harness(agent: str, originator: str) -> str:
    for said in (agent.lower(), originator.lower()):
        for start, harness in _HARNESSES:
            if said.startswith(start):
                return harness
    return ""


def _session(body: Json) -> str:
    """Anthropic `metadata.user_id` in its two forms; else Codex's or OpenCode's cache key, or Gemini CLI's field."""
    user = string(obj(body.get("metadata")).get("user_id"))
    if user.startswith("{"):
        try:
            return string(obj(canonical.loads(user)).get("session_id"))
        except ValueError:
            return ""
    if "_session_" in user:
        return user.rpartition("_session_")[2]
    return string(body.get("prompt_cache_key")) or string(obj(body.get("request")).get("session_id"))
