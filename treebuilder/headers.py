"""What a call says of itself, outright: by headers, and by the wording of harnesses we know."""

from recorder.message import Hints
from treebuilder import wording
from treebuilder.arrival import New
from treebuilder.classify import Verdict
from treebuilder.tree import Kind


def said_outright(new: New, *, structural: bool) -> Verdict | None:
    """What headers and known wording say about a call that is not simply the next."""
    hints = new.hints
    if hints.compaction or hints.request_class == "compaction":
        return Verdict(Kind.SUMMARY_REQUEST, 1.0, (f"header:x-claude-code-compaction={hints.compaction or 'yes'}",))
    if hints.request_class == "auxiliary":
        return Verdict(Kind.SIDE_CALL, 1.0, ("header:x-claude-code-request-class=auxiliary",))
    if structural:
        return None
    words = wording.asks_for_title(new.head, new.fresh)
    if words:
        return Verdict(Kind.SIDE_CALL, 0.95, (f"wording:{words}",))
    words = wording.asks_for_summary(new.head, new.fresh)
    return Verdict(Kind.SUMMARY_REQUEST, 0.95, (f"wording:{words}",)) if words else None


def key_and_lane(hints: Hints) -> tuple[str, str]:
    if hints.agent:
        return hints.agent, f"agent:{hints.agent}"
    if hints.parent_session:
        return "", f"agent:{hints.session}"
    return "", "main"
