"""Conversations as text, one JSON object a line: a branch of the tree of messages, each reply trained once.

    messages   list   role system | user | assistant | tool, content str, and where there is any:
        reasoning_content   str     thinking, as chat templates read it
        tool_calls          list    id, type "function", function {name, arguments: the JSON text as it was sampled}
        tool_call_id, name  str     of a tool's answer
        weight              int     on every assistant message: 1 = sampled here, train on it; 0 = context
    tools      list   JSON schemas as chat templates take them
    id         str    `TRAJECTORY:BRANCH`
    reward     float | null   of the rollout
    advantage  float          of the rollout; 1.0 where there are no rewards

The shape is that of OpenAI's chat fine-tuning files, `weight` included; axolotl reads the same with `type:
chat_template` and `message_field_training: weight`. A trainer that gives every assistant message loss would train kept
turns again in each branch: drop the messages of weight 0 from its loss, or take a format with tokens.

Token identity is lost: what the model sampled is tokenised anew, and where the template drops thinking from older
turns their context is another than it was. Trained tokens in the manifest are those of the replies as `--tokenizer`
renders them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from recorder.message import Head, Message
from trainer.conversation import Converter, turns
from trainer.export.format import Format, Record
from trainer.samples import Selection
from trainer.template import ChatMessage, Takes
from trainer.trie import TokenTrie
from treebuilder.lineage import as_messages

EVERYTHING = Takes(*(True,) * 9)


@dataclass(slots=True, eq=False)
class _Node:
    """A message in its context."""

    message: Message
    sampled_by: list[int] = field(default_factory=list)
    """Samples whose reply it is."""
    children: dict[bytes, "_Node"] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Root:
    """The contexts under one head."""

    head: Head
    children: dict[bytes, _Node] = field(default_factory=dict)


def records(session: str, selection: Selection, trie: TokenTrie) -> Iterator[Record]:
    branch = 0
    for root in _grow(selection):
        seen: set[int] = set()
        for path in _paths(root):
            new = [node for node in path if id(node) not in seen]
            seen |= {id(node) for node in new}
            for depth in range(max(len(node.sampled_by) for node in new)):
                here = [node for node in new if len(node.sampled_by) > depth]
                shown = path[: path.index(here[-1]) + 1] if depth else path
                name = f"{session}:{branch}" + (f".{depth}" if depth else "")
                yield _record(name, root.head, shown, {id(n): n.sampled_by[depth] for n in here}, selection)
            branch += 1


def _grow(selection: Selection) -> list[_Root]:
    roots: dict[bytes, _Root] = {}
    for index, turn in enumerate(selection.turns):
        at: _Root | _Node = roots.setdefault(turn.head.digest, _Root(turn.head))
        reply = turn.reply
        assert reply is not None
        sampled = Message("assistant", reply.message.blocks)
        echoed = Message("assistant", tuple(b for m in as_messages(reply, turn.wire) for b in m.blocks))
        for message in turns(turn.messages):
            at = at.children.setdefault(message.digest, _Node(message))
        at = at.children.setdefault(echoed.digest, _Node(sampled))
        if not at.sampled_by:
            at.message = sampled
        at.sampled_by.append(index)
    return list(roots.values())


def _paths(root: _Root) -> Iterator[list[_Node]]:
    """Every walk from the root to a leaf, depth first."""
    stack = [[node] for node in reversed(root.children.values())]
    while stack:
        path = stack.pop()
        while len(below := list(path[-1].children.values())) == 1:
            path.append(below[0])
        if not below:
            yield path
        stack.extend([*path, node] for node in reversed(below))


def _record(name: str, head: Head, path: Sequence[_Node], trained: dict[int, int], selection: Selection) -> Record:
    """`trained`: node -> the sample that it is trained as."""
    converter = Converter(EVERYTHING, escape=lambda text: text)
    opening = converter.conversation(head, ())
    said: list[dict[str, object]] = [{**message} for message in opening.messages]
    for node in path:
        for message in converter.say(node.message):
            said.append(_plain(message, node.message))
            if node.message.role == "assistant":
                said[-1]["weight"] = int(id(node) in trained)
    of = [selection.samples[sample] for sample in trained.values()]
    fields = {
        "messages": said,
        "tools": opening.tools,
        "id": name,
        "reward": of[0].reward,
        "advantage": of[0].advantage,
    }
    trained_tokens = sum(len(sample.completion_ids) for sample in of)
    return Record(fields, tokens=max(map(len, of)), trained=trained_tokens)


def _plain(said: ChatMessage, message: Message) -> dict[str, object]:
    """Arguments as text, the model's own where it sampled them."""
    plain: dict[str, object] = {**said}
    if "tool_calls" in said:
        texts = [block.text for block in message.blocks if block.kind == "tool_call"]
        plain["tool_calls"] = [
            {**call, "function": {"name": call["function"]["name"], "arguments": text}}
            for call, text in zip(said["tool_calls"], texts, strict=True)
        ]
    return plain


FORMAT = Format("messages", records, ("jsonl",), identity="text", logprobs=False)
