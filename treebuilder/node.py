"""A prefix as a node of a persistent trie: it holds the one message it adds, and the prefix before it.

    u1 ── a1 ── u2 ── a2 ── u3        a node of depth 5 jumps to depth 3 or further, not only to depth 4, so that any
     └────┘      └────┘               ancestor is a logarithm of steps away (Myers 1983, skew-binary jump pointers)

Equal prefixes are one node. A longer prefix makes new nodes for what it adds and shares the rest.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from recorder.message import Message, prefix_hash


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A prefix, told as its last message and the prefix before it. Compared by identity; equal `id`, equal prefix."""

    parent: "Node | None" = field(repr=False)
    message: Message
    id: bytes
    """`recorder.message.prefix_hash` of the parent's id (b"" at the top) and the message's digest."""
    depth: int
    """Messages in this prefix, this one included."""
    chars: int
    """Characters in this prefix, this one included."""
    jump: "Node | None" = field(default=None, repr=False)
    """A shorter prefix of this one, far ahead; None = the empty one."""

    def walk(self, start: int = 0) -> tuple[Message, ...]:
        """The messages from `start` down to this one."""
        found: list[Message] = []
        node: Node | None = self
        while node is not None and node.depth > start:
            found.append(node.message)
            node = node.parent
        found.reverse()
        return tuple(found)

    def ancestor(self, depth: int) -> "Node | None":
        """The prefix of the first `depth` messages; None = the empty one."""
        node: Node | None = self
        while node is not None and node.depth > depth:
            far = node.jump
            node = far if far is not None and far.depth >= depth else node.parent
        return node


def shared(a: Node | None, b: Node | None) -> int:
    """Messages that two prefixes of one trie share at the front."""
    if a is None or b is None:
        return 0
    if a.depth < b.depth:
        a, b = b, a
    left, right = a.ancestor(b.depth), b.ancestor(b.depth)
    while left is not None and right is not None and left is not right:
        far, other = left.jump, right.jump
        if far is other or far is None or other is None or far.depth != other.depth:
            left, right = left.parent, right.parent
        else:
            left, right = far, other
    return left.depth if left is not None else 0


@dataclass(slots=True)
class Trie:
    """Every prefix met."""

    nodes: dict[bytes, Node] = field(default_factory=dict)
    """By id."""

    def grow(self, at: Node | None, messages: Iterable[Message]) -> Node | None:
        """The node of `messages` behind `at` (None = nothing); makes what is missing."""
        nodes = self.nodes
        for message in messages:
            id = prefix_hash(at.id if at is not None else b"", message.digest)
            known = nodes.get(id)
            if known is None:
                known = nodes[id] = _below(at, message, id)
            at = known
        return at


def _below(parent: Node | None, message: Message, id: bytes) -> Node:
    if parent is None:
        return Node(None, message, id, 1, _size_chars(message))
    far = parent.jump
    steps = parent.depth - (far.depth if far is not None else 0)
    again = far.jump if far is not None else None
    even = far is not None and steps == far.depth - (again.depth if again is not None else 0)
    chars = parent.chars + _size_chars(message)
    return Node(parent, message, id, parent.depth + 1, chars, again if even else parent)


def _size_chars(message: Message) -> int:
    """`Message.size_chars`, in a loop: a third of the cost."""
    size = 0
    blocks = [*message.blocks]
    for block in blocks:
        size += len(block.text) + len(block.name)
        blocks += block.parts
    return size
