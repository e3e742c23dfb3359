"""Short ways to say calls, turns and trajectories in the tests of rendering and export."""

from functools import cache

from recorder.call import Call, Outcome
from recorder.message import Block, Exchange, Head, Hints, Message, Reply, Served, Tool, prefix_hash
from trainer.models import TINY
from trainer.render import Renderer
from trainer.tiny import tiny_tokenizer
from treebuilder.tree import Kind, Node, Trajectory, Turn

READ = Tool("read", "reads", '{"properties":{"path":{"type":"string"}},"type":"object"}')


def text(value: str) -> Block:
    return Block("text", value)


def thinking(value: str) -> Block:
    return Block("thinking", value)


def tool_call(arguments: str = '{"path": "a"}', *, id: str = "t1", name: str = "read") -> Block:
    return Block("tool_call", arguments, name, id)


def tool_result(value: str, *, id: str = "t1") -> Block:
    return Block("tool_result", id=id, parts=(text(value),))


def user(*content: str | Block) -> Message:
    return Message("user", _blocks(content))


def assistant(*content: str | Block) -> Message:
    return Message("assistant", _blocks(content))


def system(*content: str | Block) -> Message:
    return Message("system", _blocks(content))


def _blocks(content: tuple[str | Block, ...]) -> tuple[Block, ...]:
    return tuple(text(c) if isinstance(c, str) else c for c in content)


def head(*said: str, tools: tuple[Tool, ...] = ()) -> Head:
    return Head("model", tuple(text(s) for s in said), tools)


def reply(*content: str | Block, stop: str = "end_turn", complete: bool = True, served: Served | None = None) -> Reply:
    return Reply(assistant(*content), stop, complete, served=served)


def exchange(*messages: Message, reply: Reply | None = None, head: Head = head("rules")) -> Exchange:  # noqa: B008
    return Exchange("anthropic", "generate", head, messages, reply, Hints())


@cache
def renderer(style: str) -> Renderer:
    return Renderer(tiny_tokenizer(TINY[f"tiny-{style}"]))


def fresh_renderer(style: str, template: str = "") -> Renderer:
    """One that has seen nothing yet, with the style's template or another."""
    tokenizer = tiny_tokenizer(TINY[f"tiny-{style}"])
    tokenizer.chat_template = template or tokenizer.chat_template
    return Renderer(tokenizer)


def rendered(style: str, one: Exchange) -> tuple[str, str]:
    """Prompt and completion as text again."""
    tokenizer = renderer(style).tokenizer
    got = renderer(style).render(one)
    return tokenizer.decode(got.prompt_ids), tokenizer.decode(got.completion_ids)


def turn(
    index: int,
    *messages: Message,
    reply: Reply | None,
    kind: Kind = Kind.APPEND,
    parent: int | None = None,
    lane: str = "main",
    opaque: str = "",
    session: str = "s",
) -> Turn:
    node: Node | None = None
    for message in messages:
        id = prefix_hash(node.id if node else b"", message.digest)
        node = Node(node, message, id, (node.depth if node else 0) + 1, 0)
    call = Call("POST", "http://127.0.0.1/v1/messages", 200, Outcome.COMPLETE, (), (), b"", b"", 0.0, seq=index + 1)
    return Turn(
        index=index,
        call=call,
        wire="anthropic",
        call_kind="generate",
        head=head("rules"),
        node=node,
        reply=reply,
        hints=Hints(),
        session=session,
        thread=f"{session}/{lane}",
        lane=lane,
        kind=kind,
        prefix=0,
        edit=None,
        parent=parent,
        confidence=1.0,
        evidence=(),
        opaque=opaque,
    )


def compacted() -> Trajectory:
    """Two turns, a summary, and a turn that goes on from it; beside them a title, a cut reply and an opaque call."""
    asked, read = user("fix it"), assistant(tool_call())
    seen = user(tool_result("broken"))
    return Trajectory(
        (
            turn(0, asked, reply=reply("a title"), kind=Kind.SIDE_CALL, lane="title"),
            turn(1, asked, reply=reply(tool_call(), stop="tool_use"), kind=Kind.ROOT),
            turn(2, asked, read, seen, reply=reply("now i", complete=False), parent=1),
            turn(3, asked, read, seen, reply=reply("fixed"), kind=Kind.RETRY, parent=2),
            turn(4, asked, read, seen, assistant("fixed"), user("sum up"), reply=reply("it was broken"),
                 kind=Kind.SUMMARY_REQUEST, lane="summary", parent=3),
            turn(5, user("so far: it was broken"), reply=reply("done"), kind=Kind.SUMMARIZED, parent=3),
            turn(6, user("so far: it was broken"), assistant("done"), user("more"), reply=reply("no"), parent=5,
                 opaque="clear_tool_uses"),
            turn(7, user("so far: it was broken"), assistant("done"), user("more"), reply=None, parent=5),
        )
    )  # fmt: skip
