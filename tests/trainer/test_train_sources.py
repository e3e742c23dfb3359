"""Episodes from trees and from exports are the same; a shortened head and calls left out are said and counted."""

from pathlib import Path

import numpy as np
import orjson
import pytest

from recorder.errors import SourceError
from recorder.importing import read_har
from trainer.export import export
from trainer.models import load_tokenizer
from trainer.render import Renderer
from trainer.rollouts import Rollout
from trainer.sources import Source, from_export, from_trajectories
from treebuilder.build import build
from treebuilder.tree import Trajectory

CAPTURES = Path(__file__).parent.parent / "captures"


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(load_tokenizer("tiny"))


@pytest.fixture(scope="module")
def trajectory() -> Trajectory:
    return build(read_har(CAPTURES / "claude-code" / "autocompact.har"))


@pytest.fixture(scope="module")
def source(trajectory: Trajectory, renderer: Renderer) -> Source:
    return from_trajectories([trajectory], renderer)


def told(source: Source) -> list[tuple[str, object, object, str, list[int], list[int]]]:
    return [
        (e.name, s.call, s.thread, kind, np.asarray(s.prompt_ids).tolist(), np.asarray(s.completion_ids).tolist())
        for e in source.episodes
        for s, kind in zip(e.samples, e.kinds, strict=True)
    ]


def test_a_session_is_an_episode_with_the_kind_of_every_call(source: Source) -> None:
    (episode,) = source.episodes
    assert episode.kinds[:6] == ("root", "append", "append", "append", "summary_request", "summarized")
    assert len({s.thread for s in episode.samples}) == 1
    assert {s.rollout for s in episode.samples} == {episode.name}


@pytest.mark.parametrize("capture", ["claude-code/autocompact", "claude-code/subagent"])
def test_an_export_gives_back_the_episodes_it_was_made_from(tmp_path: Path, renderer: Renderer, capture: str) -> None:
    trajectory = build(read_har(CAPTURES / f"{capture}.har"))
    direct = from_trajectories([trajectory], renderer)
    export([trajectory], renderer, out=tmp_path / "rows")
    again = from_export(tmp_path / "rows")
    assert told(again) == told(direct)
    assert dict(again.excused) == dict(direct.excused)
    assert again.sampled_tokens == direct.sampled_tokens


def test_what_a_rollout_earned_comes_back_from_an_export(
    tmp_path: Path, trajectory: Trajectory, renderer: Renderer
) -> None:
    (session,) = trajectory.sessions
    export([trajectory], renderer, out=tmp_path / "rows", rollouts={session: Rollout(0.25, "task", -0.5)})
    (episode,) = from_export(tmp_path / "rows").episodes
    assert {(s.reward, s.group, s.advantage, s.rollout) for s in episode.samples} == {(0.25, "task", -0.5, session)}


def test_sessions_that_share_a_trunk_are_one_family_in_an_export_too(tmp_path: Path, renderer: Renderer) -> None:
    names = ("opencode/fork_anthropic", "opencode/tools_anthropic")
    families = [build(read_har(CAPTURES / f"{name}.har")) for name in names]
    direct = from_trajectories(families, renderer)
    export(families, renderer, out=tmp_path / "rows")
    again = from_export(tmp_path / "rows")
    assert [(e.name, e.family) for e in again.episodes] == [(e.name, e.family) for e in direct.episodes]
    assert len({e.family for e in again.episodes}) == 2 < len(again.episodes)


def test_a_folder_that_is_no_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="expected an export in logittree format"):
        from_export(tmp_path)


def test_a_shortened_head_is_said_and_the_same_for_every_call(
    trajectory: Trajectory, renderer: Renderer, source: Source
) -> None:
    short = from_trajectories([trajectory], renderer, max_head_tokens=50)
    (episode,), (whole,) = short.episodes, source.episodes
    cut = {len(a.prompt_ids) - len(b.prompt_ids) for a, b in zip(whole.samples, episode.samples, strict=True)}
    assert len(cut) == 1
    assert min(cut) > 10_000
    assert short.sampled_tokens == source.sampled_tokens
    (note,) = short.notes
    assert note.startswith("heads of ")
    assert "were shortened to 50 for all schemes alike: tool schemas left out, system text cut at its end" in note


def test_a_head_that_fits_is_left_alone(trajectory: Trajectory, renderer: Renderer, source: Source) -> None:
    whole = from_trajectories([trajectory], renderer, max_head_tokens=1_000_000)
    assert whole.notes == ()
    assert told(whole) == told(source)


def test_calls_that_are_too_long_are_left_out_and_counted(
    trajectory: Trajectory, renderer: Renderer, source: Source
) -> None:
    (whole,) = source.episodes
    limit = sorted(len(s) for s in whole.samples)[-3]
    some = from_trajectories([trajectory], renderer, max_tokens=limit)
    gone = sum(len(s.completion_ids) for s in whole.samples if len(s) > limit)
    assert some.excused == {**source.excused, "truncated to length": gone}
    assert some.sampled_tokens == source.sampled_tokens
    assert some.notes == (f"2 calls of more than {limit:,} tokens were left out",)
    assert len(some.episodes[0].samples) == len(whole.samples) - 2


def test_only_the_sessions_asked_for_are_taken(trajectory: Trajectory, renderer: Renderer) -> None:
    assert from_trajectories([trajectory], renderer, sessions=[]).episodes == ()


def test_a_call_written_in_two_rows_is_one_sample_again(tmp_path: Path) -> None:
    """Calls 1 and 2 both sampled 3, then went apart: 3 4 and 3 5. Row 0 owns the 3 for both."""
    common = {"thread": "main", "kind": "retry", "advantage": 0.5}
    rows = [
        {
            "trajectory": "t",
            "input_ids": [1, 2, 3, 4],
            "logprobs": [None, None, -0.3, -0.4],
            "owners": [
                {"call": 1, "turn": 0, "start": 2, "stop": 4, **common},
                {"call": 2, "turn": 1, "start": 2, "stop": 3, **common},
            ],
        },
        {
            "trajectory": "t",
            "input_ids": [1, 2, 3, 5],
            "logprobs": [None, None, None, -0.5],
            "owners": [{"call": 2, "turn": 1, "start": 3, "stop": 4, **common}],
        },
    ]
    (tmp_path / "rows.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    (tmp_path / "manifest.json").write_bytes(b'{"conservation": {"excused": {"aborted": {"calls": 1, "tokens": 7}}}}')
    source = from_export(tmp_path)
    assert [(call, prompt, sampled) for _, call, _, _, prompt, sampled in told(source)] == [
        (1, [1, 2], [3, 4]),
        (2, [1, 2], [3, 5]),
    ]
    assert [np.asarray(s.logprobs).tolist() for s in source.episodes[0].samples] == [[-0.3, -0.4], [-0.3, -0.5]]
    assert source.excused == {"aborted": 7}
