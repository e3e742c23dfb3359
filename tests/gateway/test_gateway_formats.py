"""Each format's bytes, written out by hand, and read back by the recorder."""

import asyncio
import itertools
import json
from collections.abc import Callable

import pytest

from proxy.gateway.completion import Completion, Fault, Open, Piece, Start, Stop, Text, collect, pieces, replay
from proxy.gateway.formats import Encoder
from proxy.gateway.formats.anthropic import AnthropicEncoder, signature
from proxy.gateway.formats.openai_chat import ChatEncoder
from proxy.gateway.formats.openai_responses import ResponsesEncoder
from recorder.message import Block, Usage
from recorder.wire import reply_reader

COMPLETION = Completion(
    (
        Block("thinking", "Look first."),
        Block("text", "Reading it."),
        Block("tool_call", '{"path": "a.txt"}', "Read", "call_1"),
    ),
    "tool_use",
    Usage(input=10, output=9, cache_read=3, cache_write=0),
)
PIECES = list(pieces(COMPLETION, chunk_chars=12))


def encode(encoder: Encoder, given: list[Piece]) -> bytes:
    frames = [frame for piece in given for frame in encoder.frames(piece)]
    if isinstance(given[-1], Stop):
        frames += encoder.end()
    return b"".join(frames)


def anthropic() -> AnthropicEncoder:
    return AnthropicEncoder(reply_id="msg_01A", model="m")


def chat(*, include_usage: bool = True) -> ChatEncoder:
    return ChatEncoder(reply_id="chatcmpl-A", model="m", created=1, include_usage=include_usage)


def responses() -> ResponsesEncoder:
    numbers = itertools.count(1)
    return ResponsesEncoder(reply_id="resp_A", model="m", created=1, new_id=lambda prefix: f"{prefix}{next(numbers)}")


def lines(*rows: str) -> bytes:
    return "".join(rows).encode()


def test_anthropic_streams_what_the_real_server_streams() -> None:
    usage = (
        '"cache_creation_input_tokens":0,"cache_read_input_tokens":3,'
        '"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":0},'
    )
    signed = signature("Look first.")
    assert encode(anthropic(), PIECES) == lines(
        'event: message_start\ndata: {"type":"message_start","message":{"model":"m","id":"msg_01A","type":"message",'
        '"role":"assistant","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":10,'
        f'{usage}"output_tokens":1,"service_tier":"standard"}}}}}}\n\n',
        'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
        '"content_block":{"type":"thinking","thinking":"","signature":""}}\n\n',
        'event: ping\ndata: {"type":"ping"}\n\n',
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        '"delta":{"type":"thinking_delta","thinking":"Look first."}}\n\n',
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        f'"delta":{{"type":"signature_delta","signature":"{signed}"}}}}\n\n',
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n',
        'event: content_block_start\ndata: {"type":"content_block_start","index":1,'
        '"content_block":{"type":"text","text":""}}\n\n',
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":1,'
        '"delta":{"type":"text_delta","text":"Reading it."}}\n\n',
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":1}\n\n',
        'event: content_block_start\ndata: {"type":"content_block_start","index":2,'
        '"content_block":{"type":"tool_use","id":"call_1","name":"Read","input":{}}}\n\n',
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":2,'
        '"delta":{"type":"input_json_delta","partial_json":""}}\n\n',
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":2,'
        '"delta":{"type":"input_json_delta","partial_json":"{\\"path\\": \\"a."}}\n\n',
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":2,'
        '"delta":{"type":"input_json_delta","partial_json":"txt\\"}"}}\n\n',
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":2}\n\n',
        'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},'
        f'"usage":{{"input_tokens":10,{usage}"output_tokens":9,"service_tier":"standard"}}}}\n\n',
        'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    )


def test_chat_names_the_role_first_and_the_usage_last() -> None:
    top = '"id":"chatcmpl-A","object":"chat.completion.chunk","created":1,"model":"m"'

    def chunk(delta: str, finish: str = "null") -> str:
        choice = f'{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish}}}'
        return f'data: {{{top},"choices":[{choice}],"usage":null}}\n\n'

    assert encode(chat(), PIECES) == lines(
        chunk('{"role":"assistant","content":""}'),
        chunk('{"reasoning_content":"Look first."}'),
        chunk('{"content":"Reading it."}'),
        chunk('{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"Read","arguments":""}}]}'),
        chunk('{"tool_calls":[{"index":0,"function":{"arguments":"{\\"path\\": \\"a."}}]}'),
        chunk('{"tool_calls":[{"index":0,"function":{"arguments":"txt\\"}"}}]}'),
        chunk("{}", '"tool_calls"'),
        f'data: {{{top},"choices":[],"usage":{{"prompt_tokens":13,"completion_tokens":9,"total_tokens":22,'
        '"prompt_tokens_details":{"cached_tokens":3}}}\n\n',
        "data: [DONE]\n\n",
    )


def test_chat_tells_no_usage_that_was_not_asked_for() -> None:
    stream = encode(chat(include_usage=False), PIECES)
    assert b"usage" not in stream
    assert stream.endswith(b'"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n')


def test_responses_number_every_event_and_end_with_the_whole() -> None:
    def event(name: str, number: int, rest: str) -> str:
        return f'event: {name}\ndata: {{"type":"{name}","sequence_number":{number},{rest}}}\n\n'

    def response(status: str, output: str, usage: str) -> str:
        return (
            f'"response":{{"id":"resp_A","object":"response","created_at":1,"status":"{status}","error":null,'
            f'"incomplete_details":null,"instructions":null,"metadata":{{}},"model":"m","output":[{output}],'
            f'"parallel_tool_calls":true,"tool_choice":"auto","tools":[],"usage":{usage}}}'
        )

    hidden = "gAAAAA" + signature("Look first.")
    thought = (
        '{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"Look first."}],'
        f'"encrypted_content":"{hidden}"}}'
    )
    part = '{"type":"output_text","text":"Reading it.","annotations":[],"logprobs":[]}'
    said = f'{{"id":"msg_2","type":"message","status":"completed","role":"assistant","content":[{part}]}}'
    arguments = '"arguments":"{\\"path\\": \\"a.txt\\"}"'
    call = f'{{"id":"fc_3","type":"function_call","status":"completed",{arguments},"call_id":"call_1","name":"Read"}}'
    rs, msg, fc = (
        '"item_id":"rs_1","output_index":0,"summary_index":0',
        '"item_id":"msg_2","output_index":1,"content_index":0',
        '"item_id":"fc_3","output_index":2',
    )
    reasoning = "response.reasoning_summary"
    usage = (
        '{"input_tokens":13,"input_tokens_details":{"cached_tokens":3},"output_tokens":9,'
        '"output_tokens_details":{"reasoning_tokens":0},"total_tokens":22}'
    )
    assert encode(responses(), PIECES) == lines(
        event("response.created", 0, response("in_progress", "", "null")),
        event("response.in_progress", 1, response("in_progress", "", "null")),
        event(
            "response.output_item.added",
            2,
            '"output_index":0,"item":{"id":"rs_1","type":"reasoning","summary":[],"encrypted_content":""}',
        ),
        event(f"{reasoning}_part.added", 3, f'{rs},"part":{{"type":"summary_text","text":""}}'),
        event(f"{reasoning}_text.delta", 4, f'{rs},"delta":"Look first."'),
        event(f"{reasoning}_text.done", 5, f'{rs},"text":"Look first."'),
        event(f"{reasoning}_part.done", 6, f'{rs},"part":{{"type":"summary_text","text":"Look first."}}'),
        event("response.output_item.done", 7, f'"output_index":0,"item":{thought}'),
        event(
            "response.output_item.added",
            8,
            '"output_index":1,"item":{"id":"msg_2","type":"message","status":"in_progress","role":"assistant",'
            '"content":[]}',
        ),
        event(
            "response.content_part.added",
            9,
            f'{msg},"part":{{"type":"output_text","text":"","annotations":[],"logprobs":[]}}',
        ),
        event("response.output_text.delta", 10, f'{msg},"delta":"Reading it.","logprobs":[]'),
        event("response.output_text.done", 11, f'{msg},"text":"Reading it.","logprobs":[]'),
        event("response.content_part.done", 12, f'{msg},"part":{part}'),
        event("response.output_item.done", 13, f'"output_index":1,"item":{said}'),
        event(
            "response.output_item.added",
            14,
            '"output_index":2,"item":{"id":"fc_3","type":"function_call","status":"in_progress","arguments":"",'
            '"call_id":"call_1","name":"Read"}',
        ),
        event("response.function_call_arguments.delta", 15, f'{fc},"delta":"{{\\"path\\": \\"a."'),
        event("response.function_call_arguments.delta", 16, f'{fc},"delta":"txt\\"}}"'),
        event("response.function_call_arguments.done", 17, f"{fc},{arguments}"),
        event("response.output_item.done", 18, f'"output_index":2,"item":{call}'),
        event("response.completed", 19, response("completed", f"{thought},{said},{call}", usage)),
    )


def test_a_responses_reply_out_of_tokens_is_incomplete() -> None:
    stop: list[Piece] = [Start(Usage(1)), Stop("max_tokens", Usage(1, 2))]
    last = encode(responses(), stop).split(b"\n\n")[-2]
    assert last.startswith(b"event: response.incomplete\n")
    assert b'"status":"incomplete","error":null,"incomplete_details":{"reason":"max_output_tokens"}' in last


FORMATS: dict[str, Callable[[], Encoder]] = {"anthropic": anthropic, "openai_chat": chat, "openai_responses": responses}


@pytest.mark.parametrize("wire", FORMATS)
class TestTheRecorderReadsBackWhatWasSaid:
    @pytest.mark.parametrize("stream", [True, False])
    def test_whole_replies(self, wire: str, stream: bool) -> None:
        encoder: Encoder = FORMATS[wire]()
        reader = reply_reader(wire)
        reader.feed(encode(encoder, PIECES) if stream else json.dumps(encoder.body(COMPLETION)).encode())
        reply = reader.finish()
        assert reply is not None
        assert reply.message.role == "assistant"
        assert [b.text for b in reply.message.blocks[:2]] == ["Look first.", "Reading it."]
        assert json.loads(reply.message.blocks[2].text) == {"path": "a.txt"}
        assert [(b.kind, b.name, b.id) for b in reply.message.blocks] == [
            ("thinking", "", ""),
            ("text", "", ""),
            ("tool_call", "Read", "call_1"),
        ]
        assert reply.complete
        assert (reply.usage.input, reply.usage.output, reply.usage.cache_read) == (10, 9, 3)
        assert reply.id in ("msg_01A", "chatcmpl-A", "resp_A")
        assert reply.error == ""

    def test_an_error_inside_the_stream(self, wire: str) -> None:
        reader = reply_reader(wire)
        broken: list[Piece] = [Start(Usage(1)), Open(Block("text")), Text("Half"), Fault("overloaded_error", "Busy")]
        reader.feed(encode(FORMATS[wire](), broken))
        reply = reader.finish()
        assert reply is not None
        assert not reply.complete
        assert [b.text for b in reply.message.blocks] == ["Half"]
        assert "overloaded_error" in reply.error
        assert "Busy" in reply.error

    def test_a_cut_stream(self, wire: str) -> None:
        reader = reply_reader(wire)
        reader.feed(encode(FORMATS[wire](), PIECES[:3]))
        reply = reader.finish()
        assert reply is not None
        assert not reply.complete
        assert [b.text for b in reply.message.blocks] == ["Look first."]


async def read(given: list[Piece]) -> Completion | Fault:
    return await collect(replay(given))


def test_pieces_collect_to_the_completion_they_came_from() -> None:
    assert asyncio.run(read(PIECES)) == COMPLETION
    assert asyncio.run(read([*PIECES[:2], Fault("api_error", "no")])) == Fault("api_error", "no")
