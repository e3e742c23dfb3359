"""The memory of messages already met is bounded, forgets the longest unused, and never mixes formats."""

from recorder.message import Block, Message
from recorder.wire.body import Json, Shared, string


def convert(item: Json, where: str) -> Message:
    return Message("user", (Block("text", string(item.get("text"))),))


def test_the_longest_unused_is_forgotten_when_the_limit_is_reached() -> None:
    shared = Shared(limit_chars=3000)
    first = shared.message({"text": "a" * 400}, convert, "")
    second = shared.message({"text": "b" * 400}, convert, "")
    assert shared.message({"text": "a" * 400}, convert, "") is first  # used again: now the second is the older
    for i in range(2):
        shared.message({"text": str(i) * 400}, convert, "")
    assert shared.message({"text": "b" * 400}, convert, "") is not second


def test_the_limit_holds_however_much_comes() -> None:
    shared = Shared(limit_chars=50_000)
    for i in range(1000):
        shared.message({"text": f"{i:0100d}"}, convert, "")
        assert shared.chars <= 50_000


def test_messages_equal_to_the_model_are_one_object_though_their_json_differs() -> None:
    shared = Shared()
    one = shared.message({"text": "a"}, convert, "")
    assert shared.message({"text": "a", "cache_control": {"type": "ephemeral"}}, convert, "") is one


def test_a_message_that_cannot_be_written_as_utf8_is_made_anew() -> None:
    shared = Shared()
    assert shared.message({"text": "\ud800"}, convert, "") == Message("user", (Block("text", "\ud800"),))
    assert shared.chars == 0
