"""What a call says of itself, outright: by its wire format, by headers, and by the wording of harnesses we know."""

from recorder.message import Hints
from treebuilder import wording
from treebuilder.arrival import New
from treebuilder.classify import Verdict
from treebuilder.tree import Kind


def said_outright(new: New, *, structural: bool) -> Verdict | None:
    """What headers and known wording say about a call that is not simply the next."""
    hints = new.hints
    trigger = compacts(new)
    if trigger:
        return Verdict(Kind.SUMMARY_REQUEST, 1.0, (f"wire:{trigger}",))
    if hints.compaction or hints.request_class == "compaction":
        return Verdict(Kind.SUMMARY_REQUEST, 1.0, (f"header:x-claude-code-compaction={hints.compaction or 'yes'}",))
    if hints.request_class in ("auxiliary", "side_reply"):
        return Verdict(Kind.SIDE_CALL, 1.0, (f"header:x-claude-code-request-class={hints.request_class}",))
    if structural:
        return None
    words = wording.asks_for_title(new.head, new.fresh) or wording.asks_aside(new.fresh)
    if words:
        return Verdict(Kind.SIDE_CALL, 0.95, (f"wording:{words}",))
    words = wording.asks_for_summary(new.head, new.fresh)
    return Verdict(Kind.SUMMARY_REQUEST, 0.95, (f"wording:{words}",)) if words else None


def compacts(new: New) -> str:
    """The word by which a Responses call asks the server for a summary in place of a reply; empty = it does not."""
    if new.wire != "openai_responses":
        return ""
    last = new.fresh[-1].blocks[-1:] if new.fresh else ()
    if any(b.kind == "other" and b.name == "compaction_trigger" for b in last):
        return "compaction_trigger"
    return "/responses/compact" if new.call.url.partition("?")[0].endswith("/responses/compact") else ""


def key_and_lane(hints: Hints) -> tuple[str, str]:
    if hints.agent:
        return hints.agent, f"agent:{hints.agent}"
    if hints.parent_session:
        return "", f"agent:{hints.session}"
    return "", "main"
