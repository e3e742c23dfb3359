"""Every kind and every detail, each by what causes it: what left, what came, what survives."""

from dataclasses import replace

import pytest
from recording import Recording, asks, result, said
from simulate import HEAD, text

from recorder.call import Outcome
from recorder.message import Block, Head, Hints, Message
from treebuilder.details import Detail, details, survivors
from treebuilder.rows import Row, rows
from treebuilder.tree import Kind, Trajectory, Turn

BOTH = pytest.mark.parametrize("structural", [False, True], ids=["evidence", "structure"])
U = text("user", "count the files")
LONG = "\n".join(f"line {i} of the file, as it stands there" for i in range(20))


def told(tree: Trajectory, turn: Turn) -> tuple[Detail, ...]:
    return details(tree.turns[turn.index], tree.turns[turn.parent] if turn.parent is not None else None)


def kept(tree: Trajectory, turn: Turn) -> tuple[int, ...]:
    return survivors(tree.turns[turn.index], tree.turns[turn.parent] if turn.parent is not None else None)


def row(tree: Trajectory, index: int) -> Row:
    return list(rows(tree))[index]


def talk(r: Recording, results: tuple[str, ...] = (LONG, LONG + "\nmore")) -> list[Message]:
    """Two tool calls and their results; the second reply is still open."""
    view = [U]
    for i, said_by_tool in enumerate(results, 1):
        call = asks(f"t{i}", f'{{"path":"{i}"}}')
        r.send(*view, reply=call)
        view += [call, result(f"t{i}", said_by_tool)]
    r.send(*view, reply=said("both were read"))
    return view


def replaced(view: list[Message], at: int, id_: str, words: str) -> list[Message]:
    return [*view[:at], result(id_, words), *view[at + 1 :], said("both were read"), text("user", "go on")]


@BOTH
@pytest.mark.parametrize(
    ("words", "kind", "detail"),
    [
        ("[Old tool result content cleared]", Kind.CLEARED, Detail.RESULT_NOTICE),
        ("Saved to /home/user/.cache/results/t1.txt", Kind.CLEARED, Detail.RESULT_POINTER),
        (LONG[:300] + "... (cut)", Kind.TRUNCATED, Detail.RESULT_CUT),
    ],
)
def test_what_stands_in_a_results_place_says_what_was_done_to_it(
    structural: bool, words: str, kind: Kind, detail: Detail
) -> None:
    r = Recording(structural=structural)
    turn = r.send(*replaced(talk(r), 2, "t1", words))
    assert (turn.kind, turn.prefix, told(r.tree, turn)) == (kind, 2, (detail,))
    assert kept(r.tree, turn) == (1, 2)


@BOTH
def test_a_notice_longer_than_the_result_is_still_a_notice(structural: bool) -> None:
    r = Recording(structural=structural)
    turn = r.send(*replaced(talk(r, ("3 files", LONG)), 2, "t1", "[Tool results were removed, search is off]"))
    assert (turn.kind, told(r.tree, turn)) == (Kind.CLEARED, (Detail.RESULT_NOTICE,))
    assert turn.edit is not None
    assert (turn.edit.evicted_chars, turn.edit.evicted[0].message) == (len("3 files"), 2)


@BOTH
def test_a_result_that_reads_a_little_differently_is_of_no_known_kind(structural: bool) -> None:
    r = Recording(structural=structural)
    turn = r.send(*replaced(talk(r), 2, "t1", LONG.replace("line 7", "line seven")))
    assert (turn.kind, turn.confidence, told(r.tree, turn)) == (Kind.UNKNOWN, 0.5, ())


@BOTH
def test_reasoning_left_out_of_older_turns(structural: bool) -> None:
    r = Recording(structural=structural)
    thought = Message("assistant", (Block("thinking", "how many may there be"), Block("text", "there are three")))
    r.send(U, reply=thought)
    r.send(U, thought, text("user", "sure?"), reply=said("yes, quite"))
    turn = r.send(U, said("there are three"), text("user", "sure?"), said("yes, quite"), text("user", "thanks"))
    assert (turn.kind, told(r.tree, turn)) == (Kind.THINKING_DROPPED, (Detail.THINKING_DROPPED,))
    assert turn.edit is not None
    assert turn.edit.evicted_chars == len("how many may there be")


@BOTH
def test_reasoning_that_became_text_with_another_model_is_the_switch(structural: bool) -> None:
    r = Recording(structural=structural)
    thought = Message("assistant", (Block("thinking", "how many may there be"), Block("text", "there are three")))
    r.send(U, reply=thought)
    told_otherwise = text("assistant", "how many may there be", "there are three")
    turn = r.send(U, told_otherwise, text("user", "sure?"), head=replace(HEAD, model="model-2"))
    assert (turn.kind, turn.parent) == (Kind.MODEL_SWITCHED, 0)


@BOTH
def test_system_messages_that_become_reminders_for_another_model_are_the_switch(structural: bool) -> None:
    r = Recording(structural=structural)
    first = (U, text("system", "You have a folder."), said("there are three files"), text("user", "sure?"))
    r.send(*first[:2], reply=first[2])
    r.send(*first, reply=said("yes, quite sure"))
    merged = text("user", "<reminder>\nYou have a folder.\n</reminder>", "count the files")
    after = (merged, *first[2:], said("yes, quite sure"), text("user", "now the folder below"))
    turn = r.send(*after, head=replace(HEAD, model="model-2"))
    assert (turn.kind, turn.prefix, kept(r.tree, turn)) == (Kind.MODEL_SWITCHED, 0, (0, 1))


def test_an_edit_by_the_server_is_told_and_makes_the_call_opaque() -> None:
    r = Recording()
    r.send(U, reply=said("three"))
    turn = r.send(U, said("three"), text("user", "sure?"), reply=said("yes"), edits=("clear_tool_uses_20250919",))
    assert (turn.kind, told(r.tree, turn)) == (Kind.APPEND, (Detail.SERVER_EVICTED,))
    assert turn.opaque == "server edited the context: clear_tool_uses_20250919"


@BOTH
def test_going_on_after_the_user_stopped_the_model(structural: bool) -> None:
    r = Recording(structural=structural)
    r.send(U, reply=said("there are thr"), whole=False, outcome=Outcome.ABORTED)
    turn = r.send(U, said("there are thr"), text("user", "[stopped] never mind, list them"), reply=said("a b c"))
    assert (turn.kind, told(r.tree, turn)) == (Kind.APPEND, (Detail.INTERRUPTED,))


@BOTH
def test_an_interruption_before_anything_came_leaves_only_its_mark(structural: bool) -> None:
    r = Recording(structural=structural)
    r.send(U, reply=said("there are three"))
    r.send(U, said("there are three"), text("user", "sure?"), outcome=Outcome.ABORTED)
    marked = text("user", "sure?", "[Request interrupted by user]", "list them")
    turn = r.send(U, said("there are three"), marked, reply=said("a b c"))
    assert turn.kind is Kind.APPEND


@BOTH
@pytest.mark.parametrize("outcome", [Outcome.TRUNCATED, Outcome.STREAM_ERROR, Outcome.COMPLETE])
def test_going_on_after_a_cut_keeps_the_part_that_came(structural: bool, outcome: Outcome) -> None:
    r = Recording(structural=structural)
    part = said("there are three, and below them")
    stop = "max_tokens" if outcome is Outcome.COMPLETE else ""
    r.send(U, reply=part, whole=outcome is Outcome.COMPLETE, outcome=outcome, stop=stop)
    turn = r.send(U, part, text("user", "You were cut off. Go on."), reply=said("are five more"))
    assert (turn.kind, told(r.tree, turn)) == (Kind.APPEND, (Detail.CONTINUED,))


@BOTH
def test_the_same_again_after_a_cut_is_a_retry_and_no_continuation(structural: bool) -> None:
    r = Recording(structural=structural)
    r.send(U, reply=said("there are thr"), whole=False, outcome=Outcome.TRUNCATED)
    turn = r.send(U, reply=said("there are three"))
    assert (turn.kind, told(r.tree, turn)) == (Kind.RETRY, ())


def reminders(structural: bool, before: Message, after: Message, newest: Message) -> tuple[Kind, tuple[Detail, ...]]:
    r = Recording(structural=structural)
    r.send(before, reply=said("there are three"))
    r.send(before, said("there are three"), text("user", "sure?"), reply=said("yes, quite"))
    turn = r.send(after, said("there are three"), text("user", "sure?"), said("yes, quite"), newest)
    return turn.kind, told(r.tree, turn)


NOTE = "<note>\nonly plan, do not edit\n</note>"


@BOTH
@pytest.mark.parametrize(
    ("before", "after", "newest", "detail"),
    [
        (U, text("user", NOTE, "count the files"), text("user", "go on"), Detail.REMINDER_ADDED),
        (text("user", NOTE, "count the files"), U, text("user", "go on"), Detail.REMINDER_DROPPED),
        (text("user", NOTE, "count the files"), U, text("user", NOTE, "go on"), Detail.REMINDER_MOVED),
    ],
    ids=["added", "dropped", "moved"],
)
def test_injected_text_comes_goes_and_moves(
    structural: bool, before: Message, after: Message, newest: Message, detail: Detail
) -> None:
    assert reminders(structural, before, after, newest) == (Kind.REMINDER_MOVED, (detail,))


@BOTH
def test_the_oldest_turns_slide_out_behind_the_head(structural: bool) -> None:
    r = Recording(structural=structural)
    view = [U]
    for i in range(6):
        answer = said(f"part {i} of the count is done")
        r.send(*view, reply=answer)
        view += [answer, text("user", f"go on with part {i + 1}")]
    turn = r.send(view[0], *view[7:], reply=said("the last part"))
    assert (turn.kind, turn.prefix, kept(r.tree, turn)) == (Kind.WINDOW_DROPPED, 1, (3, 4, 5))
    assert turn.edit is not None
    assert {s.message for s in turn.edit.evicted} == {1, 2, 3, 4, 5, 6}


@BOTH
def test_a_summary_is_paired_with_its_call_though_others_lie_between(structural: bool) -> None:
    r = Recording(structural=structural)
    first, second = said("there are three of them"), said("and five in the folder below")
    r.send(U, reply=first)
    r.send(U, first, text("user", "and below?"), reply=second)
    summary = said("<summary>\nThree files here, five below were counted.\n</summary>")
    asked = r.send(U, first, text("user", "and below?"), second, text("user", "Sum it up."), reply=summary)
    other = Head("model-1", (Block("text", "Name this."),), ())
    for i in range(40):
        r.send(text("user", f"a page about birds, number {i}"), head=other, reply=said(f"Birds {i}"))
    story = text("user", "Before:\nThree files here, five below were counted.")
    turn = r.send(story, text("user", "and below?"), second, text("user", "go on"), reply=said("gone on"))
    assert r.tree.turns[asked.index].kind is Kind.SUMMARY_REQUEST
    assert (turn.kind, turn.quotes, kept(r.tree, turn)) == (Kind.SUMMARIZED, asked.index, (1,))


@BOTH
@pytest.mark.parametrize("by_url", [False, True])
def test_a_summary_made_by_the_server_is_asked_for_by_the_wire(structural: bool, by_url: bool) -> None:
    r = Recording(structural=structural)
    wire = "openai_responses"
    r.send(U, reply=said("there are three of them"), wire=wire)
    view = (U, said("there are three of them"), text("user", "and below?"))
    trigger = Message("assistant", (Block("other", '{"type":"compaction_trigger"}', "compaction_trigger"),))
    made = Message("assistant", (Block("other", '{"type":"compaction"}', "compaction"),))
    url = "https://api.openai.com/v1/responses/compact" if by_url else "https://api.openai.com/v1/responses"
    asked = r.send(*view, *(() if by_url else (trigger,)), reply=made, wire=wire, edits=("compaction",), url=url)
    assert (asked.kind, asked.prefix, asked.opaque) == (Kind.SUMMARY_REQUEST, 1, "")
    turn = r.send(U, made, text("user", "go on"), wire=wire, reply=said("on it"))
    assert (turn.kind, turn.quotes) == (Kind.SUMMARIZED, asked.index)


def test_a_summary_without_tools_that_shares_the_view_stands_in_its_thread() -> None:
    r = Recording()
    hints = Hints(session="one")
    r.send(U, reply=said("there are three of them"), hints=hints)
    asked = text("user", "You are performing a CONTEXT CHECKPOINT COMPACTION. Write a handoff.")
    view = (U, said("there are three of them"), asked)
    turn = r.send(*view, reply=said("Three files so far."), head=replace(HEAD, tools=()), hints=hints)
    assert (turn.kind, turn.lane, turn.prefix) == (Kind.SUMMARY_REQUEST, "main", 1)


@BOTH
def test_a_history_put_in_the_models_name_that_it_never_said_is_a_summary(structural: bool) -> None:
    r = Recording(structural=structural)
    view = [U]
    for i in range(4):
        answer = said(f"part {i} of the count is done")
        r.send(*view, reply=answer)
        view += [answer, text("user", f"go on with part {i + 1}")]
    head = (text("user", "Where are we?"), said("The first three parts of the count are done."))
    turn = r.send(*head, *view[-2:], reply=said("the last part"))
    assert turn.kind is Kind.SUMMARIZED
    assert turn.confidence <= 0.6  # whose summary it is was not seen


def test_an_agent_that_starts_with_its_parents_view_is_no_step_of_the_parent() -> None:
    r = Recording(structural=True)
    start = asks("t1", '{"about":"b","prompt":"Look into the folder below and report"}', "spawn")
    r.send(U, reply=start)
    done = Block("tool_result", id="t1", parts=(Block("text", "started"),))
    fork = Message("user", (done, Block("text", "You are the copy. Look into the folder below and report")))
    agent = r.send(U, start, fork, reply=said("Folder b holds beta."))
    main = r.send(U, start, result("t1", "Folder b holds beta."), reply=said("done"))
    assert (agent.kind, agent.lane.partition(":")[0], agent.prefix, agent.origin) == (Kind.FORKED, "agent", 1, 0)
    assert (main.kind, main.lane, main.prefix) == (Kind.APPEND, "main", 1)


def test_a_row_names_details_the_summary_and_the_survivors_by_their_place_in_the_database() -> None:
    r = Recording()
    turn = r.send(*replaced(talk(r), 2, "t1", "[gone]"))
    made = row(r.tree, turn.index)
    assert (made.details, made.quotes, made.survivors) == (("tool result replaced by a notice",), None, (0, 0))


def test_items_behind_a_reply_that_was_not_recorded_are_of_unknown_kind() -> None:
    r = Recording()
    one = Hints(session="one")
    r.send(U, reply=said("there are three"), wire="openai_responses", hints=one)
    lost = replace(one, previous_id="resp_lost")
    turn = r.send(text("user", "and below?"), reply=said("five"), wire="openai_responses", hints=lost)
    assert (turn.kind, turn.parent, turn.thread) == (Kind.UNKNOWN, None, r.tree.turns[0].thread)
    assert turn.opaque == "earlier items unknown: expected a recorded reply resp_lost, got none"


def test_a_session_whose_agents_were_recorded_first_still_has_a_main_thread() -> None:
    r = Recording()
    agent, other = Hints(session="one", agent="a1"), Head("model-1", (Block("text", "You look."),), HEAD.tools[:1])
    r.send(text("user", "look into b"), reply=asks("t1", '{"path":"b"}'), hints=agent, head=other)
    turn = r.send(U, reply=said("three"), hints=Hints(session="one"))
    assert (turn.kind, turn.lane) == (Kind.ROOT, "main")


class TestLimitsOfStructure:
    """What content alone cannot tell; each would need an id."""

    def test_items_that_begin_with_a_user_message_are_not_put_behind_what_the_server_keeps(self) -> None:
        """With an id they are; with a tool result in front the tool call's id says where they belong."""
        for structural, kind, depth in ((False, Kind.APPEND, 3), (True, Kind.ROOT, 1)):
            r = Recording(structural=structural)
            r.send(U, reply=said("there are three"), wire="openai_responses")
            turn = r.send(text("user", "sure?"), wire="openai_responses", hints=Hints(previous_id="r1"))
            assert (turn.kind, turn.depth) == (kind, depth)

    def test_a_first_prompt_taken_back_and_put_otherwise_is_a_new_root(self) -> None:
        """Nothing sampled is kept, so nothing says that it is not another user's session."""
        for hints, kind in ((Hints(session="one"), Kind.REWOUND), (Hints(), Kind.ROOT)):
            r = Recording()
            r.send(U, reply=said("there are three"), hints=hints)
            turn = r.send(text("user", "list the files"), reply=said("a b c"), hints=hints)
            assert turn.kind is kind

    def test_a_fork_that_goes_on_where_the_other_thread_ended_is_its_next_turn(self) -> None:
        for two, kind in ((Hints(session="two"), Kind.FORKED), (Hints(), Kind.APPEND)):
            r = Recording()
            r.send(U, reply=said("there are three"), hints=Hints(session="one") if two.session else Hints())
            turn = r.send(U, said("there are three"), text("user", "sure?"), reply=said("yes"), hints=two)
            assert turn.kind is kind

    def test_a_summary_that_nothing_recorded_was_asked_for_begins_a_session(self) -> None:
        """With the session's id it is at least known whose history it replaced."""
        for hints, kind in ((Hints(session="one"), Kind.SUMMARIZED), (Hints(), Kind.ROOT)):
            r = Recording()
            view = (U, said("there are three"), text("user", "and below?"), said("five"), text("user", "go on"))
            r.send(*view[:3], reply=view[3], hints=hints)
            r.send(*view, reply=said("gone on"), hints=hints)
            turn = r.send(text("user", "So far: three here, five below."), said("Understood, I go on."), view[4],
                          reply=said("done"), hints=hints)  # fmt: skip
            assert turn.kind is kind

    def test_two_forks_from_one_point_in_another_recording_are_a_next_turn_and_one_taken_back(self) -> None:
        r = Recording()
        trunk = (U, said("there are three files in this folder"))
        r.send(U, reply=trunk[1], run="monday")
        first = r.send(*trunk, text("user", "list them"), reply=said("a b c"), run="tuesday")
        second = r.send(*trunk, text("user", "sort them"), reply=said("c b a"), run="wednesday")
        assert (first.kind, second.kind) == (Kind.APPEND, Kind.REWOUND)
        assert first.session == second.session


def test_a_suggestion_for_the_next_prompt_is_an_aside_by_its_words_or_its_class() -> None:
    words = text("user", "[SUGGESTION MODE: Suggest what the user might naturally type next into Claude Code.]")
    for asked, hints in ((words, Hints(session="one")), (U, Hints(session="one", request_class="side_reply"))):
        r = Recording()
        r.send(U, reply=said("there are three"), hints=Hints(session="one"))
        aside = r.send(U, said("there are three"), asked, reply=said("list them"), hints=hints)
        turn = r.send(U, said("there are three"), text("user", "sure?"), reply=said("yes"), hints=Hints(session="one"))
        assert (aside.kind, turn.kind, turn.parent) == (Kind.SIDE_CALL, Kind.APPEND, 0)


@BOTH
def test_a_tool_call_that_comes_back_into_the_middle_is_of_no_known_kind(structural: bool) -> None:
    """A session resumed in the middle of a turn lost the call; resumed again, it had it."""
    r = Recording(structural=structural)
    part, both = Block("text", "I look at b."), Block("tool_call", '{"path":"b"}', "read", "t1")
    r.send(U, Message("assistant", (part,)), text("user", "go on"), reply=said("I went on a bit"))
    whole = Message("assistant", (part, both))
    behind = Message("user", (*result("t1", "beta").blocks, Block("text", "go on")))
    turn = r.send(U, whole, behind, said("I went on a bit"), text("user", "and now?"))
    assert (turn.kind, turn.prefix) == (Kind.UNKNOWN, 1)


@BOTH
def test_a_prompt_put_again_and_again_and_taken_back_each_time_is_the_harnesss(structural: bool) -> None:
    r = Recording(structural=structural)
    guess = text("user", "Guess what the user will type next, in a few words.")
    view = [U]
    r.send(*view, reply=said("answer 0"))
    for i in range(3):
        view.append(said(f"answer {i}"))
        r.send(*view, guess, reply=said(f"guess {i}"))
        view.append(text("user", f"question {i}"))
        r.send(*view, reply=said(f"answer {i + 1}"))
    assert [t.kind.value for t in r.tree] == ["root", *["side_call", "append"] * 3]
    assert [t.parent for t in r.tree if not t.kind.aside] == [None, 0, 2, 4]
    assert [[(e.message, e.turn) for e in t.echoes] for t in r.tree if not t.kind.aside] == [
        [], [(1, 0)], [(3, 2)], [(5, 4)]
    ]  # fmt: skip
    assert r.tree.branches[0].turns == (0, 2, 4, 6)


def test_a_prompt_taken_back_once_is_the_users() -> None:
    r = Recording()
    guess = text("user", "Guess what the user will type next, in a few words.")
    r.send(U, reply=said("three"))
    r.send(U, said("three"), guess, reply=said("sort them"))
    r.send(U, said("three"), text("user", "list them"), reply=said("a b c"))
    assert r.kinds() == ["root", "append", "rewound"]
