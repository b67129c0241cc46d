import json

import pytest
import yaml

from rlpipe.config.compose import load_experiment
from rlpipe.errors import RunError
from rlpipe.store import RunFolder, from_row, read_metrics, read_trajectories, redact, to_row
from rlpipe.types import Failure, SandboxRecord, Score, StopReason, TestResult, Trajectory, Turn

SCORED = Trajectory(
    rollout_id="train-1-0-0",
    group_id="train-1-0",
    task_id="a",
    step=1,
    stop_reason=StopReason.SUBMITTED,
    messages=({"role": "user", "content": "é\u2028x"},),
    turns=(Turn(prompt_ids=(1,), completion_ids=(2,), logprobs=(-0.25,)),),
    submission="x = 1",
    tool_calls={"bash": 2},
    score=Score(
        value=0.5,
        parts={"tests": 2},
        tests=(TestResult(name="assert f(1) == 1", outcome="passed"),),
        outcome="tests_failed",
    ),
    sandbox=SandboxRecord(id="box", tags=("a:b",)),
)
FAILED = SCORED.model_copy(
    update={
        "score": None,
        "stop_reason": StopReason.FAILED,
        "failure": Failure(boundary="sandbox", type="SandboxGone", message="died"),
    }
)


@pytest.fixture
def experiment():
    return load_experiment("quickstart")


@pytest.mark.parametrize("trajectory", [SCORED, FAILED], ids=["scored", "failed"])
def test_a_trajectory_survives_its_row(trajectory):
    assert from_row(json.loads(json.dumps(to_row(trajectory)))) == trajectory


def test_a_row_shows_the_reward_flat_and_null_for_a_failure():
    row = to_row(SCORED)
    assert (row["reward"], row["reward_parts"], row["outcome"]) == (
        0.5,
        {"tests": 2},
        "tests_failed",
    )
    assert row["tests"][0]["name"] == "assert f(1) == 1"
    assert to_row(FAILED)["reward"] is None
    assert to_row(FAILED)["failure"]["type"] == "SandboxGone"


def test_a_folder_holds_the_spec_and_what_was_added(experiment, tmp_path):
    folder = RunFolder.create(experiment, tmp_path / "run")
    folder.add_trajectory("step_1", SCORED)
    folder.add_trajectory("step_1", FAILED)
    folder.add_failure(FAILED)
    folder.add_metrics(1, {"train/reward": 0.5})
    folder.add_metrics(1, {"val/pass_rate": 0.7})
    folder.note(status="done")

    assert yaml.safe_load((folder.path / "config.yaml").read_text())["train"]["kind"] == "grpo"
    assert list(read_trajectories(folder.path / "trajectories/step_1.jsonl")) == [SCORED, FAILED]
    (failure,) = (folder.path / "failures.jsonl").read_text().splitlines()
    assert json.loads(failure)["boundary"] == "sandbox"
    assert read_metrics(folder.path) == {1: {"train/reward": 0.5, "val/pass_rate": 0.7}}
    assert json.loads((folder.path / "manifest.json").read_text()) == {"status": "done"}


def test_a_folder_that_holds_a_run_is_never_mixed_with_another(experiment, tmp_path):
    RunFolder.create(experiment, tmp_path / "run").note(status="running")
    with pytest.raises(RunError, match="holds a run already"):
        RunFolder.create(experiment, tmp_path / "run")


def test_two_launches_in_one_second_get_two_folders(experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RunFolder.create(experiment).path != RunFolder.create(experiment).path


def test_secrets_are_redacted_and_token_counts_are_not(experiment, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-TEST-12345")
    folder = RunFolder.create(experiment, tmp_path / "run")
    folder.note(command=["rlpipe", "policy.key=sk-TEST-12345"])
    said = {"role": "user", "content": "my key is sk-TEST-12345, max_tokens is 512"}
    folder.add_trajectory("step_1", SCORED.model_copy(update={"messages": (said,)}))
    for file in folder.path.rglob("*"):
        assert not file.is_file() or "sk-TEST-12345" not in file.read_text()
    tree = {"num_memory_tokens": 4, "max_tokens": 512, "a": ["Bearer sk-TEST-12345"]}
    assert redact(tree) == tree | {"a": ["Bearer [redacted]"]}


def test_the_id_of_a_run_is_its_folder_or_tells_folders_of_one_name_apart(experiment, tmp_path):
    own = RunFolder.create(experiment, tmp_path / "2026-01-02_03-04-05-abcdef")
    assert own.id == "2026-01-02_03-04-05-abcdef"
    jobs = [RunFolder.create(experiment, tmp_path / sweep / "0").id for sweep in "ab"]
    assert jobs[0] != jobs[1]
    assert all(job.startswith("0-") for job in jobs)
    assert RunFolder(tmp_path / "a" / "0").id == jobs[0]
