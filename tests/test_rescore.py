import json

import pytest

import rlpipe
from rlpipe.config.compose import load_again, load_experiment
from rlpipe.console import Console
from rlpipe.errors import ConfigError, RunError
from rlpipe.rescore import rescore
from rlpipe.store import RunFolder, read_run, read_spec
from rlpipe.types import Failure, Score, StopReason, Trajectory

ROWS = [
    {
        "id": name,
        "prompt": "f doubles",
        "tests": ["assert f(1) == 2"],
        "hidden_tests": ["assert f(2) == 4"],
        "test_command": "test -e made",
    }
    for name in ("right", "half", "failed")
]
CODES = {"right": "def f(x): return 2 * x", "half": "def f(x): return 2", "failed": "f = 1"}


@pytest.fixture
def run(tmp_path):
    """A run with two judged trajectories, one whose judgement failed and one that failed itself."""
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    path = f"dataset.path={tmp_path / 'tasks.jsonl'}"
    experiment = load_experiment(None, "dataset=jsonl", path, "tools=[bash,submit_solution]")
    folder = RunFolder.create(experiment, tmp_path / "run")
    for index, (name, code) in enumerate(CODES.items()):
        folder.add_trajectory("step_1", trajectory(index, name, code))
    lost = trajectory(3, "right", "").model_copy(
        update={
            "failure": Failure(boundary="sandbox", type="SandboxGone", message=""),
            "score": None,
        }
    )
    folder.add_trajectory("step_1", lost)
    return folder.path


def trajectory(index, name, code):
    judged = name != "failed"
    call = {"name": "bash", "arguments": '{"command": "touch made; echo hi"}'}
    return Trajectory(
        rollout_id=f"train-1-0-{index}",
        group_id="train-1-0",
        task_id=name,
        step=1,
        messages=(
            {"role": "user", "content": "f doubles"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "a", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "a", "content": "exit=0\nhi\n"},
            {"role": "assistant", "content": "Done."},
        ),
        submission=code,
        stop_reason=StopReason.SUBMITTED if judged else StopReason.FAILED,
        score=Score(value=1.0, passed=True, outcome="passed") if judged else None,
        failure=None
        if judged
        else Failure(boundary="grader", type="GraderError", message="", grading=True),
    )


def again(run, *overrides, **options):
    return rescore(run, load_again(read_spec(run), overrides), Console(), **options)


def rows(file):
    return {row["task_id"]: row for row in map(json.loads, file.read_text().splitlines())}


def test_stored_code_is_judged_anew_beside_the_old_scores(run, capsys):
    before = list(read_run(run))
    result = again(run)
    scores = rows(result.file)
    assert result.file == run / "scores" / "tests_pass.jsonl"
    assert {name: row["reward"] for name, row in scores.items()} == {
        "right": 1.0,
        "half": 0.0,
        "failed": 0.0,
    }
    assert list(read_run(run)) == before
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "step_1 train-1-0-1 (half): 1 (passed) -> 0 (tests_failed)",
        "step_1 train-1-0-2 (failed): masked (grader GraderError) -> 0 (tests_failed)",
        "3 judged, 2 changed, 0 masked; mean reward 1.000 of 2 -> 0.333 of 3",
        "1 skipped: their rollouts failed",
        f"scores: {result.file}",
    ]


def test_another_reward_is_chosen_and_a_second_set_is_numbered(run):
    first = again(run, "reward=tests_fraction", "reward.timeout=20")
    assert rows(first.file)["half"]["reward"] == 0.5
    assert again(run, "reward=tests_fraction").file.name == "tests_fraction-2.jsonl"


def test_only_failed_judgements(run):
    result = again(run, failed_only=True)
    assert list(rows(result.file)) == ["failed"]


def test_a_state_is_judged_after_the_recorded_calls_are_made_again(run):
    with pytest.raises(ConfigError, match="add --replay"):
        again(run, "reward=command")
    result = again(run, "reward=command", replays=True)
    assert [row["reward"] for row in rows(result.file).values()] == [1.0, 1.0, 1.0]
    assert result.differing == 0


def test_replayed_calls_that_are_answered_differently_are_counted(run):
    for file in run.rglob("*.jsonl"):
        file.write_text(file.read_text().replace("exit=0\\nhi", "exit=0\\nbye"))
    assert again(run, "reward=command", replays=True).differing == 3


def test_a_judgement_that_fails_again_is_masked(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "breaking_reward.py").write_text("def f(task, trajectory, sandbox): 1 / 0")
    result = again(run, "reward=python", "reward.function=breaking_reward:f", replays=True)
    failures = [row["failure"] for row in rows(result.file).values()]
    assert {(f["type"], f["grading"]) for f in failures} == {("ZeroDivisionError", True)}


def test_groups_are_compared_anew(run, monkeypatch):
    from rlpipe.rewards.ruler import Ruler

    async def by_length(self, task, trajectories):
        return [Score(value=len(t.submission) / 100) for t in trajectories]

    monkeypatch.setattr(Ruler, "score_group", by_length)
    monkeypatch.setattr(Ruler, "check", lambda self: [])
    result = again(run, "reward=ruler")
    assert rows(result.file)["half"]["reward"] == len(CODES["half"]) / 100


def test_what_is_no_run_or_lost_its_tasks_is_refused(run, tmp_path):
    with pytest.raises(RunError, match="holds no run"):
        read_spec(tmp_path)
    (tmp_path / "tasks.jsonl").write_text(json.dumps(ROWS[0]))
    with pytest.raises(RunError, match="no longer has the task"):
        again(run)


def test_settings_are_set_in_what_was_run(run):
    spec = read_spec(run)
    assert load_again(spec, []) == rlpipe.Experiment.model_validate(spec)
    assert load_again(spec, ["reward.timeout=7"]).reward.timeout == 7
    with pytest.raises(ConfigError, match="did you mean 'timeout'"):
        load_again(spec, ["reward.timeot=7"])
