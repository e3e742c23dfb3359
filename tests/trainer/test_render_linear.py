"""A prefix told by what it grew is the prefix told whole; and a template for which that fails is found out."""

from pathlib import Path

import numpy as np
import pytest
from chats import assistant, fresh_renderer, reply, thinking, tool_call, tool_result, turn, user

from recorder.importing import read_har
from recorder.message import Message
from trainer.render import Renderer
from trainer.samples import Selection, samples
from treebuilder.build import build
from treebuilder.tree import Kind, Trajectory

CAPTURES = Path(__file__).parents[1] / "captures"
NAMES = (
    "claude-code/multiturn",
    "opencode/prune_anthropic",
    "opencode/tools_anthropic_thinking",
    "opencode/tools_responses",
)


def rounds(count: int) -> Trajectory:
    """One agent's loop: in each call it thinks and reads a file; twice it is spoken to."""
    turns, prefix = [], [user("fix it")]
    for i in range(count):
        blocks = (thinking(f"hm {i}"), tool_call(f'{{"path": "{i}", "all": true}}', id=f"t{i}"))
        kind, parent = (Kind.APPEND, i - 1) if i else (Kind.ROOT, None)
        turns.append(turn(i, *prefix, reply=reply(*blocks, stop="tool_use"), kind=kind, parent=parent))
        echoed = tool_call(f'{{"all":true,"path":"{i}"}}', id=f"t{i}")
        prefix += [assistant(blocks[0], echoed), user(tool_result(f"seen {i}", id=f"t{i}"))]
        if i in (3, 7):
            prefix += [assistant("well"), user("and now")]
    return Trajectory(tuple(turns))


def same(a: Selection, b: Selection) -> bool:
    return len(a.samples) == len(b.samples) and all(
        np.array_equal(x.prompt_ids, y.prompt_ids) and np.array_equal(x.completion_ids, y.completion_ids)
        for x, y in zip(a.samples, b.samples, strict=True)
    )


def whole(trajectory: Trajectory, renderer: Renderer) -> Selection:
    renderer._teller.linear = False
    return samples(trajectory, renderer)


class TestGrownIsWhole:
    @pytest.mark.parametrize("style", ["qwen3", "llama3", "smollm2"])
    def test_in_a_long_loop(self, style: str) -> None:
        grown = fresh_renderer(style)
        assert same(samples(rounds(12), grown), whole(rounds(12), fresh_renderer(style)))
        assert grown._teller.linear

    @pytest.mark.parametrize(
        ("style", "name"), [("qwen3", n) for n in NAMES] + [("llama3", NAMES[0]), ("smollm2", NAMES[3])]
    )
    def test_on_real_sessions(self, style: str, name: str) -> None:
        trajectory = build(read_har(CAPTURES / f"{name}.har"))
        grown = fresh_renderer(style)
        assert same(samples(trajectory, grown), whole(trajectory, fresh_renderer(style)))
        assert grown._teller.linear


def test_each_call_renders_a_handful_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = fresh_renderer("llama3")
    seen: list[int] = []
    text = renderer.template.text

    def counting(messages: list[Message], **rest: object) -> str:
        seen.append(len(messages))
        return text(messages, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(renderer.template, "text", counting)
    samples(rounds(60), renderer)
    long = [n for n in seen if n > 12]
    assert len(long) == 5, "two user messages, prompt and turn each, and the end to confirm it"


class TestATemplateOfAnotherKind:
    ODD = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + MARK + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )

    def test_that_marks_the_eighth_message_is_found_out_and_told_whole(self) -> None:
        odd = self.ODD.replace("MARK", "('eighth ' if loop.index == 8 and m.role == 'tool' else '')")
        renderer = fresh_renderer("smollm2", odd)
        got = samples(rounds(4), renderer)
        assert not renderer._teller.linear
        assert same(got, whole(rounds(4), fresh_renderer("smollm2", odd)))
        assert "eighth " in renderer.tokenizer.decode(got.samples[-1].prompt_ids)

    def test_that_counts_its_messages_is_told_whole_at_once(self) -> None:
        odd = self.ODD.replace("MARK", "(messages | length | string if m.role == 'user' and not loop.last else '')")
        assert same(
            samples(rounds(3), fresh_renderer("smollm2", odd)), whole(rounds(3), fresh_renderer("smollm2", odd))
        )
