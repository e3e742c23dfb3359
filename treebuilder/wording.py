"""What known harnesses write around an edit. Evidence that `structural` does without.

Seen live, WIRE.md section 3, versions in the comments; a wording that no longer occurs costs nothing.
"""

from collections.abc import Iterable

from recorder.message import Block, Head, Message

VERSION = 1

TITLE_SYSTEM = (
    "title generator",
    "Generate a short title",
    "generate a concise title",
)  # OpenCode 1.18, Claude Code 2.1
ASIDE = ("[SUGGESTION MODE:",)  # Claude Code 2.1: what might the user type next?
SUMMARY_REQUEST = (
    "CRITICAL: Respond with TEXT ONLY",  # Claude Code 2.1
    "CONTEXT CHECKPOINT COMPACTION",  # Codex 0.17x
    "generate the <state_snapshot>",  # Gemini CLI
    "produce the <state_snapshot> XML",  # Qwen Code 0.24
)
SUMMARY_SYSTEM = ("component that summarizes internal chat history", "anchored context summarization assistant")
SUMMARIZED = (
    "This session is being continued from a previous conversation",  # Claude Code 2.1
    "What did we do so far?",  # OpenCode 1.18
    "Another language model started to solve this problem and produced a summary",  # Codex 0.17x
)
CLEARED = (
    "[Old tool result content cleared]",  # OpenCode 1.18, Claude Code 2.1, others
    "<persisted-output>",  # Claude Code 2.1
    "Tool result saved to",
)

KNOWN = (*TITLE_SYSTEM, *ASIDE, *SUMMARY_REQUEST, *SUMMARY_SYSTEM, *SUMMARIZED, *CLEARED)
"""All of it: what a scrubbed recording keeps, so that its tree stays the same."""


def says(blocks: Iterable[Block], words: tuple[str, ...]) -> str:
    """The first of the words that a block holds, or the empty string."""
    for block in blocks:
        text = block.plain
        for word in words:
            if word in text:
                return word
    return ""


def asks_for_title(head: Head, messages: tuple[Message, ...]) -> str:
    if head.tools:
        return ""
    return says([*head.system, *(b for m in messages[:2] if m.role == "system" for b in m.blocks)], TITLE_SYSTEM)


def asks_aside(messages: tuple[Message, ...]) -> str:
    """The newest prompt is the harness's own, beside the conversation."""
    return says(_newest(messages), ASIDE)


def asks_for_summary(head: Head, messages: tuple[Message, ...]) -> str:
    """Only the newest user text counts: an old request can stand in a forked history."""
    found = says(head.system, SUMMARY_SYSTEM)
    if found:
        return found
    return says(_newest(messages), SUMMARY_REQUEST)


def _newest(messages: tuple[Message, ...]) -> list[Block]:
    """Text of the last message but system messages, where it is the user's."""
    last = next((m for m in reversed(messages) if m.role != "system"), None)
    return [b for b in last.blocks if b.kind == "text"] if last is not None and last.role == "user" else []


def is_summarized(messages: tuple[Message, ...]) -> str:
    return says((b for m in messages[:3] for b in m.blocks if b.kind == "text"), SUMMARIZED)
