"""Whose call it is, when nothing but content says so; what a later call shows about an earlier one."""

from dataclasses import replace

from recording import Recording, asks, result, said
from simulate import CAPTURES, HEAD, call, text

from recorder.call import Call, Outcome
from recorder.importing import read_har
from recorder.message import Block, Head, Hints, Message, Tool
from recorder.wire import Opaque
from treebuilder.arrival import prepare
from treebuilder.build import Builder, build
from treebuilder.tree import Kind

U = text("user", "count the files")


def test_two_sessions_with_the_same_first_message_are_told_apart_by_their_replies() -> None:
    r = Recording()
    r.send(U, reply=said("there are three"))
    r.send(U, reply=said("there are four"))
    r.send(U, said("there are three"), text("user", "sure?"), reply=said("yes, three"))
    r.send(U, said("there are four"), text("user", "sure?"), reply=said("yes, four"))
    assert r.kinds() == ["root", "root", "append", "append"]
    assert [t.parent for t in r.tree] == [None, None, 0, 1]
    assert len(r.tree.sessions) == 2


def test_the_same_prefix_after_a_failed_call_is_a_retry() -> None:
    r = Recording()
    r.send(U)
    r.send(U, reply=said("there are"), whole=False)
    r.send(U, reply=said("there are three"))
    assert r.kinds() == ["root", "retry", "retry"]
    assert len(r.tree.sessions) == 1


def test_a_prompt_handed_over_in_a_tool_call_starts_an_agent() -> None:
    r = Recording()
    r.send(U, reply=asks("t1", '{"prompt":"Look into the folder b","kind":"scout"}', "spawn"))
    r.send(text("user", "Look into the folder b"), head=replace(HEAD, tools=HEAD.tools[:1]), reply=said("two files"))
    last = r.tree.turns[1]
    assert (last.kind, last.lane.partition(":")[0], last.origin) == (Kind.ROOT, "agent", 0)
    assert last.session == r.tree.turns[0].session


def test_a_fork_shows_when_the_other_thread_goes_on_with_what_the_fork_had_dropped() -> None:
    r = Recording()
    a = [U, said("three"), text("user", "list them"), said("a b c"), text("user", "sort them")]
    r.send(*a[:1], reply=a[1])
    r.send(*a[:3], reply=a[3])
    r.send(*a, reply=said("sorted now"))
    r.send(*a[:3], said("a b c"), text("user", "in other words"), reply=said("forked answer"))
    assert r.tree.turns[3].kind is Kind.REWOUND  # all that is known so far
    r.send(*a, said("sorted now"), text("user", "thanks"), reply=said("welcome"))
    assert r.kinds() == ["root", "append", "append", "forked", "append"]
    assert [len(t.turns) for t in r.tree.threads] == [4, 1]


def test_a_prompt_taken_back_and_put_otherwise_is_a_rewind_not_a_fork() -> None:
    r = Recording()
    r.send(U, reply=said("three"))
    r.send(U, said("three"), text("user", "list them"), reply=said("a b c"))
    turn = r.send(U, said("three"), text("user", "sort them"), reply=said("c b a"))
    assert (turn.kind, turn.prefix, turn.parent) == (Kind.REWOUND, 2, 1)
    assert len(r.tree.threads) == 1


def test_a_fork_by_a_new_session_id_is_compared_with_the_thread_it_left() -> None:
    r = Recording()
    one, two = Hints(session="session-one"), Hints(session="session-two")
    r.send(U, reply=said("three"), hints=one)
    r.send(U, said("three"), text("user", "list them"), reply=said("a b c"), hints=one)
    turn = r.send(U, said("three"), text("user", "list them"), said("a b c"), text("user", "x"), hints=two)
    assert (turn.kind, turn.parent, turn.prefix, turn.session) == (Kind.FORKED, 1, 3, "session-two")
    assert r.tree.threads[1].parent == 1


def test_a_summary_that_a_later_prefix_quotes_makes_its_call_a_summary_request() -> None:
    r = Recording(structural=True)
    talk = [U, said("three files here"), text("user", "and in the folder below?")]
    r.send(U, reply=talk[1])
    r.send(*talk, reply=said("five more of them"))
    asked = [*talk[:2], text("user", "and in the folder below?", "Write down what happened so far.")]
    r.send(*asked, reply=said("<note>\nThree files, then five more were counted.\n</note>"))
    assert r.tree.turns[2].confidence <= 0.5
    r.send(text("user", "Earlier:\nThree files, then five more were counted.\n\nGo on."), reply=said("going on"))
    assert r.kinds() == ["root", "append", "summary_request", "summarized"]
    assert r.tree.turns[3].quotes == 2


def test_a_title_call_is_no_thread_of_its_own_session_even_when_it_comes_first() -> None:
    r = Recording(structural=True)
    no_tools = Head("small-model", (Block("text", "Name this talk."),), ())
    r.send(text("user", f"<talk>{U.plain}</talk>"), head=no_tools, reply=said("File counts"))
    r.send(U, reply=said("three"))
    first, second = r.tree.turns
    assert (first.kind, first.lane, second.kind) == (Kind.SIDE_CALL, "title", Kind.ROOT)
    assert first.session == second.session


def test_a_helper_is_known_by_the_tool_result_that_repeats_its_reply() -> None:
    r = Recording()
    r.send(U, reply=asks("t1", '{"url":"http://a.example"}', "fetch"))
    no_tools = Head("small-model", (), ())
    r.send(text("user", "Page: lorem ipsum. Shorten it."), head=no_tools, reply=said("The page says lorem ipsum."))
    assert r.kinds() == ["root", "root"]
    answer = result("t1", "The page says lorem ipsum.")
    r.send(U, asks("t1", '{"url":"http://a.example"}', "fetch"), answer, reply=said("done"))
    assert r.kinds() == ["root", "side_call", "append"]
    assert (r.tree.turns[1].lane, r.tree.turns[1].origin) == ("title", 0)


def test_a_thread_whose_report_comes_back_as_a_tool_result_was_an_agent() -> None:
    r = Recording()
    r.send(U, reply=asks("t1", '{"goal":7}', "spawn"))
    work = text("user", "Goal seven: look at every folder.")
    r.send(work, reply=asks("t2", '{"path":"b"}'))
    r.send(work, asks("t2", '{"path":"b"}'), result("t2", "beta"), reply=said("Folder b holds beta."))
    r.send(U, asks("t1", '{"goal":7}', "spawn"), result("t1", "Report: Folder b holds beta."), reply=said("done"))
    assert r.kinds() == ["root", "root", "append", "append"]
    assert [t.lane.partition(":")[0] for t in r.tree] == ["main", "agent", "agent", "main"]


def test_an_aside_that_goes_on_becomes_an_agent() -> None:
    r = Recording()
    one = Hints(session="one")
    r.send(U, reply=said("three"), hints=one)
    other = Head("model-1", (Block("text", "You look things up."),), HEAD.tools[:1])
    ask = text("user", "where is b?")
    r.send(ask, reply=asks("t9", "{}"), head=other, hints=one)
    assert r.tree.turns[1].kind is Kind.SIDE_CALL
    r.send(ask, asks("t9", "{}"), result("t9", "there"), reply=said("there"), head=other, hints=one)
    assert r.kinds() == ["root", "root", "append"]
    assert r.tree.turns[1].lane == r.tree.turns[2].lane != "main"


def test_a_blank_more_at_the_end_of_a_text_is_no_edit() -> None:
    r = Recording()
    r.send(U, reply=said("three"))
    turn = r.send(text("user", "count the files\n"), said("three"), text("user", "sure?"), reply=said("yes"))
    assert turn.kind is Kind.APPEND


def test_a_reminder_within_the_only_text_of_a_message_is_known_by_the_reply_behind_it() -> None:
    r = Recording(structural=True)
    r.send(text("user", "go"), reply=said("gone there"))
    r.send(text("user", "go"), said("gone there"), text("user", "back. (plan mode is on)"), reply=said("planned it"))
    turn = r.send(
        text("user", "go"), said("gone there"), text("user", "back."), said("planned it"), text("user", "now do it")
    )
    assert (turn.kind, turn.prefix) == (Kind.REMINDER_MOVED, 2)


def test_an_echo_that_gained_defaults_is_still_the_reply() -> None:
    r = Recording()
    r.send(U, reply=asks("t1", '{"path": "a"}'))
    turn = r.send(U, asks("t1", '{"all":false,"path":"a"}'), result("t1", "alpha"), reply=said("ok"))
    assert turn.kind is Kind.APPEND
    assert [(e.message, e.turn, e.exact) for e in turn.echoes] == [(1, 0, False)]


def test_blanks_in_sampled_arguments_do_not_make_the_echo_inexact() -> None:
    r = Recording()
    r.send(U, reply=asks("t1", '{"path": "a"}'))
    turn = r.send(U, asks("t1", '{"path":"a"}'), result("t1", "alpha"), reply=said("ok"))
    assert [(e.message, e.turn, e.exact) for e in turn.echoes] == [(1, 0, True)]


def test_an_edit_made_by_the_server_makes_the_call_opaque() -> None:
    r = Recording()
    turn = r.send(U, reply=said("three"), edits=("clear_tool_uses_20250919",))
    assert turn.opaque == "server edited the context: clear_tool_uses_20250919"


def test_a_delta_is_put_behind_the_prefix_and_reply_it_names() -> None:
    r = Recording()
    r.send(U, reply=asks("t1", "{}"), wire="openai_responses")
    done = Message("tool", (Block("tool_result", id="t1", parts=(Block("text", "alpha"),)),))
    turn = r.send(done, reply=said("ok"), wire="openai_responses", hints=Hints(previous_id="r1"))
    assert turn.messages == (U, asks("t1", "{}"), done)
    assert (turn.kind, turn.prefix) == (Kind.APPEND, 1)


def test_a_delta_behind_an_unknown_reply_is_opaque() -> None:
    r = Recording()
    turn = r.send(U, reply=said("ok"), wire="openai_responses", hints=Hints(previous_id="resp_lost"))
    assert turn.opaque == "earlier items unknown: expected a recorded reply resp_lost, got none"


def test_a_whole_websocket_session_is_rebuilt_as_long_as_its_last_full_prefix() -> None:
    turns = build(read_har(CAPTURES / "codex" / "codex_proxy_websocket.har")).turns
    lengths = [(t.call.source.partition("#")[2], t.depth, t.prefix) for t in turns if not t.kind.aside]
    assert lengths == [
        ("004.ws002", 4, 0),
        ("004.ws003", 10, 4),
        ("004.ws004", 13, 10),
        ("008.ws002", 15, 13),
        ("008.ws003", 18, 15),
    ]


def test_a_model_switch_under_the_same_head_is_an_append_and_with_another_head_a_switch() -> None:
    r = Recording()
    r.send(U, reply=said("three"))
    grown = [U, said("three"), text("user", "sure?")]
    r.send(*grown, reply=said("yes"), head=replace(HEAD, model="model-2"))
    other = Head("model-3", (Block("text", "You are model-3."),), HEAD.tools)
    r.send(*grown, said("yes"), text("user", "really?"), reply=said("yes!"), head=other)
    assert r.kinds() == ["root", "append", "model_switched"]


def test_a_new_tool_changes_the_tools() -> None:
    r = Recording()
    r.send(U, reply=said("three"))
    more = replace(HEAD, tools=(*HEAD.tools, Tool("fetch", "", "{}")))
    turn = r.send(U, said("three"), text("user", "sure?"), head=more)
    assert (turn.kind, turn.evidence[-1]) == (Kind.TOOLS_CHANGED, "structure:tools +1 -0")


def test_a_body_that_cannot_be_read_is_a_turn_of_kind_unknown_on_no_branch() -> None:
    builder = Builder()
    turn = builder.place(prepare(call(1), Opaque("anthropic", "expected JSON, got <html>, in request")))
    assert (turn.kind, turn.opaque) == (Kind.UNKNOWN, "expected JSON, got <html>, in request")
    assert builder.trajectory().branches == ()


def test_calls_keep_no_bodies() -> None:
    made = Call("POST", "http://127.0.0.1/v1/messages", 200, Outcome.COMPLETE, (), (), b"x" * 9, b"y" * 9, 0.0)
    assert prepare(made, Opaque("anthropic", "r")).call.request_body == b""


def test_picking_a_session_numbers_its_turns_anew() -> None:
    r = Recording()
    r.send(U, reply=said("three"), hints=Hints(session="one"))
    r.send(text("user", "hello there"), reply=said("hi"), hints=Hints(session="two"))
    r.send(text("user", "hello there"), said("hi"), text("user", "bye"), hints=Hints(session="two"))
    two = r.tree.only(["two"])
    assert [(t.index, t.parent, t.echoes[0].turn if t.echoes else None) for t in two] == [(0, None, None), (1, 0, 0)]


def test_two_forks_of_one_session_both_start_from_it() -> None:
    r = Recording()
    one, two, three = (Hints(session=s) for s in ("session-one", "session-two", "session-three"))
    r.send(U, reply=said("three"), hints=one)
    r.send(U, said("three"), text("user", "list them"), reply=said("a b c"), hints=one)
    trunk = (U, said("three"), text("user", "list them"), said("a b c"))
    r.send(*trunk, text("user", "sort them"), reply=said("c b a"), hints=two)
    turn = r.send(*trunk, text("user", "count them"), reply=said("still three"), hints=three)
    assert (turn.kind, turn.parent, turn.prefix) == (Kind.FORKED, 1, 3)


def test_a_recording_that_goes_on_from_anothers_belongs_to_its_session() -> None:
    r = Recording()
    first = said("there are three of them in this folder")
    r.send(U, reply=first, run="monday")
    grown = (U, first, text("user", "and below?"))
    r.send(*grown, reply=said("five more"), run="monday")
    turn = r.send(*grown, said("five more"), text("user", "thanks"), reply=said("welcome"), run="tuesday")
    assert (turn.kind, turn.parent, turn.prefix) == (Kind.APPEND, 1, 3)
    assert len(r.tree.sessions) == 1


def test_a_failed_call_is_no_ones_retry_under_another_head() -> None:
    r = Recording(structural=True)
    r.send(U)
    other = Head("model-1", (Block("text", "You are another agent."),), HEAD.tools)
    r.send(U, head=other, reply=said("three"))
    r.send(U, reply=said("four"))
    assert r.kinds() == ["root", "root", "retry"]


def test_a_summary_carried_on_by_another_recording_belongs_to_the_session_that_asked_for_it() -> None:
    r = Recording()
    first = said("there are three of them in this folder")
    r.send(U, reply=first, run="monday")
    asked = text("user", "First, reason. Then, produce the <state_snapshot> XML.")
    r.send(U, first, asked, reply=said("<state_snapshot>\nThree files were counted.\n</state_snapshot>"), run="monday")
    turn = r.send(text("user", "So far:\nThree files were counted."), reply=said("on it"), run="tuesday")
    assert r.kinds() == ["root", "summary_request", "summarized"]
    assert (turn.quotes, turn.parent, len(r.tree.sessions)) == (1, 0, 1)
