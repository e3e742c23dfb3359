"""Prompt and completion, cut exactly where sampling began, in three styles of chat template."""

import pytest
from chats import (
    READ,
    assistant,
    exchange,
    head,
    rendered,
    renderer,
    reply,
    system,
    text,
    thinking,
    tool_call,
    tool_result,
    user,
)

from recorder.errors import RenderError
from recorder.message import Block, Exchange, Message, Served
from trainer.render import Renderer
from trainer.tiny import tiny_tokenizer

STYLES = ("qwen3", "llama3", "smollm2")
HI = exchange(user("hi"), reply=reply("hello"))


def with_template(template: str) -> Renderer:
    tokenizer = tiny_tokenizer("qwen3")
    tokenizer.chat_template = template
    return Renderer(tokenizer)


def test_qwen3_prompt_and_completion() -> None:
    assert rendered("qwen3", HI) == (
        "<|im_start|>system\nrules<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
        "hello<|im_end|>",
    )


def test_llama3_prompt_and_completion() -> None:
    assert rendered("llama3", HI) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nrules<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "hello<|eot_id|>",
    )


def test_smollm2_prompt_and_completion() -> None:
    assert rendered("smollm2", HI) == (
        "<|im_start|>system\nrules<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
        "hello<|im_end|>",
    )


@pytest.mark.parametrize("style", STYLES)
class TestInEveryStyle:
    def test_the_next_prompt_goes_on_where_the_reply_ended(self, style: str) -> None:
        said = (text("look"), tool_call('{"path": "a", "depth": 1}'))
        first = renderer(style).render(exchange(user("hi"), reply=reply(*said, stop="tool_use")))
        echoed = assistant("look", tool_call('{"depth":1,"path":"a"}'))
        second = renderer(style).render(exchange(user("hi"), echoed, user(tool_result("seen")), reply=reply("ok")))
        whole = [*first.prompt_ids.tolist(), *first.completion_ids.tolist()]
        assert second.prompt_ids.tolist()[: len(whole)] == whole

    def test_a_reply_sent_back_item_by_item_reads_as_it_was_sampled(self, style: str) -> None:
        at_once = exchange(user("hi"), assistant(thinking("so"), "look", tool_call()), user(tool_result("seen")))
        items = exchange(
            user("hi"), assistant(thinking("so")), assistant("look"), assistant(tool_call()), user(tool_result("seen"))
        )
        assert rendered(style, items) == rendered(style, at_once)

    def test_a_reply_that_spells_the_stop_token_is_text(self, style: str) -> None:
        got = renderer(style).render(exchange(user("hi"), reply=reply("a<|im_end|>b<|eot_id|>c")))
        special = [i for i in got.completion_ids.tolist() if i in renderer(style).segments.added.values()]
        assert special == [got.completion_ids.tolist()[-1]]

    def test_a_reply_cut_by_max_tokens_has_no_stop_token(self, style: str) -> None:
        cut = exchange(user("hi"), reply=reply("hel", stop="max_tokens"))
        assert rendered(style, cut)[1] == "hel"

    def test_an_empty_reply_is_its_stop_token(self, style: str) -> None:
        assert rendered(style, exchange(user("hi"), reply=reply()))[1] == renderer(style).tokenizer.eos_token

    def test_thinking_is_sampled_too(self, style: str) -> None:
        completion = rendered(style, exchange(user("hi"), reply=reply(thinking("so so"), "hello")))[1]
        assert completion == "<think>\nso so\n</think>\n\nhello" + renderer(style).tokenizer.eos_token

    def test_a_prefix_without_a_reply_has_an_empty_completion(self, style: str) -> None:
        assert rendered(style, exchange(user("hi")))[1] == ""

    def test_unicode_survives(self, style: str) -> None:
        assert rendered(style, exchange(user("漢"), reply=reply("é🎉\u2028")))[1].startswith("é🎉")

    def test_an_image_stands_as_a_placeholder(self, style: str) -> None:
        one = exchange(user("see", Block("image", "b2:00", "image/png")))
        assert "see\n\n[image image/png]" in rendered(style, one)[0]
        assert renderer(style).render(one).fallbacks >= {"image"}

    def test_a_tool_result_without_a_call_is_still_shown(self, style: str) -> None:
        assert "seen" in rendered(style, exchange(user("hi"), assistant("a"), user(tool_result("seen"))))[0]

    def test_two_system_messages_at_the_start_are_one(self, style: str) -> None:
        prompt, _ = rendered(style, exchange(system("one"), system("two"), user("hi"), head=head()))
        assert "one\n\ntwo" in prompt

    def test_a_conversation_that_starts_with_the_assistant_is_rendered(self, style: str) -> None:
        prompt, completion = rendered(style, exchange(assistant("first"), user("hi"), reply=reply("ok")))
        assert "first" in prompt
        assert completion.startswith("ok")

    def test_a_message_without_content_is_rendered(self, style: str) -> None:
        assert rendered(style, exchange(user(), reply=reply("ok")))[1].startswith("ok")

    def test_the_tools_are_shown(self, style: str) -> None:
        assert '"name": "read"' in rendered(style, exchange(user("hi"), head=head("rules", tools=(READ,))))[0]


class TestWhatATemplateHasNoWordsFor:
    def fallbacks(self, style: str, one: Exchange) -> set[str]:
        return set(renderer(style).render(one).fallbacks)

    def test_tools_stand_in_the_system_text(self) -> None:
        one = exchange(user("hi"), head=head("rules", tools=(READ,)))
        assert self.fallbacks("smollm2", one) == {"tools_in_system"}
        assert rendered("smollm2", one)[0].startswith(
            '<|im_start|>system\nrules\n\n# Tools\n{"name": "read", "description": "reads", "parameters": {"prop'
        )

    def test_a_later_system_message_is_marked_in_a_user_message(self) -> None:
        one = exchange(user("hi"), assistant("a"), system("be kind"), user("go on"))
        assert self.fallbacks("qwen3", one) == {"system_in_user"}
        assert "<|im_start|>user\n<system>\nbe kind\n</system>\n\ngo on<|im_end|>" in rendered("qwen3", one)[0]
        assert "system<|end_header_id|>\n\nbe kind<|eot_id|>" in rendered("llama3", one)[0]

    def test_a_call_beside_text_stands_in_the_text(self) -> None:
        one = exchange(user("hi"), reply=reply("look", tool_call()))
        assert self.fallbacks("llama3", one) == {"calls_in_text"}
        call = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
        assert rendered("llama3", one)[1] == f"look\n{call}<|eot_id|>"
        alone = exchange(user("hi"), reply=reply(tool_call()))
        assert rendered("llama3", alone)[1] == '{"name": "read", "parameters": {"path": "a"}}<|eot_id|>'

    def test_two_calls_at_once_stand_in_the_text_where_one_is_taken(self) -> None:
        one = exchange(user("hi"), reply=reply(tool_call(), tool_call(id="t2")))
        assert self.fallbacks("llama3", one) == {"calls_in_text"}
        assert rendered("llama3", one)[1].count("<tool_call>") == 2
        assert rendered("qwen3", one)[1].count("<tool_call>") == 2
        assert self.fallbacks("qwen3", one) == set()

    def test_a_template_that_finds_no_query_gets_an_empty_one(self) -> None:
        one = exchange(assistant(tool_call()), user(tool_result("seen")), reply=reply("ok"))
        assert self.fallbacks("qwen3", one) == {"user_first"}
        assert (
            "rules<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n<tool_call>"
            in rendered("qwen3", one)[0]
        )

    def test_text_after_a_call_moves_in_front_of_it(self) -> None:
        one = exchange(user("hi"), reply=reply(tool_call(), "look"))
        assert self.fallbacks("qwen3", one) == {"reordered"}
        assert rendered("qwen3", one)[1].startswith("look\n<tool_call>")

    def test_arguments_that_are_no_json_stand_as_they_are(self) -> None:
        one = exchange(user("hi"), reply=reply(tool_call('{"path": "a')))
        assert self.fallbacks("qwen3", one) == {"invalid_arguments"}
        assert (
            rendered("qwen3", one)[1]
            == '<tool_call>\n{"name": "read", "arguments": {"path": "a}\n</tool_call><|im_end|>'
        )

    def test_a_template_without_system_tools_and_results_is_told_all_in_text(self) -> None:
        plain = with_template(
            "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('only two roles') }}"
            "{% endif %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
        )
        one = exchange(user("hi"), assistant(tool_call()), user(tool_result("seen")), reply=reply("ok"))
        got = plain.render(one)
        assert plain.tokenizer.decode(got.prompt_ids) == (
            "<|im_start|>user\nrules\n\nhi<|im_end|>\n"
            '<|im_start|>assistant\n<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call><|im_end|>\n'
            "<|im_start|>user\n<tool_response>\nseen\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        )
        assert got.fallbacks == {"system_in_user", "calls_in_text", "results_in_user"}


class TestThinkStripping:
    def test_thinking_is_kept_until_the_next_user_message(self) -> None:
        step = (user("hi"), assistant(thinking("so"), tool_call()), user(tool_result("seen")))
        assert "<think>\nso\n</think>" in rendered("qwen3", exchange(*step))[0]
        assert "<think>" not in rendered("qwen3", exchange(*step, assistant("a"), user("more")))[0]

    def test_a_reply_without_thinking_gets_no_empty_think_block_that_nobody_sampled(self) -> None:
        assert rendered("qwen3", HI)[1] == "hello<|im_end|>"

    def test_nor_where_the_template_knows_no_tools_either(self) -> None:
        two_roles = with_template(
            "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
            "{{ '<|im_start|>' + m.role + '\n' }}{{ '<think>\n\n</think>\n\n' if loop.last and m.role == 'assistant' }}"
            "{{ m.content + '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' if add_generation_prompt }}"
        )
        got = two_roles.render(HI)
        assert two_roles.tokenizer.decode(got.completion_ids) == "hello<|im_end|>"

    def test_a_generation_prompt_that_opens_the_thinking_belongs_to_the_prompt(self) -> None:
        opening = tiny_tokenizer("qwen3").chat_template.replace(
            "{{- '<|im_start|>assistant\\n' }}", "{{- '<|im_start|>assistant\\n<think>\\n' }}"
        )
        always = with_template(opening)
        got = always.render(exchange(user("hi"), reply=reply(thinking("so"), "hello")))
        assert always.tokenizer.decode(got.prompt_ids).endswith("<|im_start|>assistant\n<think>\n")
        assert always.tokenizer.decode(got.completion_ids) == "so\n</think>\n\nhello<|im_end|>"


class TestWhatIsRefused:
    def test_a_tokenizer_without_a_chat_template(self) -> None:
        bare = tiny_tokenizer("qwen3")
        bare.chat_template = None
        with pytest.raises(RenderError, match="expected one with a chat template, got none"):
            Renderer(bare)

    def test_a_template_that_raises_is_quoted(self) -> None:
        stern = with_template("{{ raise_exception('never ' + 'again') }}")
        with pytest.raises(RenderError, match="it says: never again"):
            stern.render(HI)

    def test_a_prompt_that_does_not_start_the_rendered_turn(self) -> None:
        shifted = with_template(
            "{% for m in messages %}{{ '<|im_start|>' + m.role + ' ' ~ messages|length ~ m.content + '<|im_end|>' }}"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
        )
        with pytest.raises(RenderError, match="expected the prompt to start the rendered turn, got '2rules"):
            shifted.render(HI)

    def test_a_template_that_drops_what_was_sampled(self) -> None:
        deaf = with_template(
            "{% for m in messages %}{{ '<|im_start|>' + m.role + (m.content if m.role != 'assistant' else '') }}"
            "{{ '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
        )
        with pytest.raises(RenderError, match="expected the whole reply in its turn, got none of its text"):
            deaf.render(HI)

    def test_a_turn_without_a_stop_token_of_its_own(self) -> None:
        open_ended = with_template(
            "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}assistant: "
        )
        with pytest.raises(RenderError, match="expected a special token at the end of an assistant turn"):
            open_ended.render(HI)

    def test_a_reply_cut_inside_a_call_whose_end_nobody_sampled(self) -> None:
        cut = exchange(user("hi"), reply=reply(tool_call('{"path": "a'), stop="max_tokens"))
        assert rendered("qwen3", cut)[1] == '<tool_call>\n{"name": "read", "arguments": {"path": "a'
        with pytest.raises(RenderError, match="expected to find where the reply was cut, its last tool_call"):
            renderer("llama3").render(cut)


class TestServedIds:
    def test_are_used_as_they_are(self) -> None:
        served = Served((5, 6, 7), (8, 9), (-0.5, -0.25))
        got = renderer("qwen3").render(exchange(user("hi"), reply=reply("other text", served=served)))
        assert got.prompt_ids.tolist() == [5, 6, 7]
        assert got.completion_ids.tolist() == [8, 9]
        assert got.logprobs is not None
        assert got.logprobs.tolist() == [-0.5, -0.25]
        assert got.grade == "served"

    def test_of_the_completion_alone_stand_behind_a_rendered_prompt(self) -> None:
        got = renderer("qwen3").render(exchange(user("hi"), reply=reply("x", served=Served(None, (8, 9), None))))
        assert got.completion_ids.tolist() == [8, 9]
        assert renderer("qwen3").tokenizer.decode(got.prompt_ids).endswith("assistant\n")
        assert got.grade == "rendered"

    def test_beyond_the_tokenizer_are_another_models(self) -> None:
        with pytest.raises(RenderError, match="expected ids below 999, the tokenizer's size, got 5000"):
            renderer("qwen3").render(exchange(user("hi"), reply=reply("x", served=Served((5,), (5000,), None))))


def test_a_tool_message_of_the_chat_format_is_a_tool_result() -> None:
    chat = exchange(user("hi"), assistant(tool_call()), Message("tool", (tool_result("seen"),)))
    anthropic = exchange(user("hi"), assistant(tool_call()), user(tool_result("seen")))
    assert rendered("qwen3", chat) == rendered("qwen3", anthropic)
