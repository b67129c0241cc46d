import json
import logging
import math

import pytest
import yaml

from rlpipe.config.compose import load_experiment
from rlpipe.errors import RunError
from rlpipe.redaction import RedactingFormatter, redact
from rlpipe.store import RunFolder, from_row, read_metrics, read_trajectories, to_row
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


def test_a_folder_that_cannot_be_made_is_one_sentence(experiment, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"no run folder can be made at .*: Not a directory"):
        RunFolder.create(experiment, tmp_path / "file" / "run")
    with pytest.raises(RunError, match="is a file"):
        RunFolder.create(experiment, tmp_path / "file")


def test_two_runs_that_race_for_a_folder_do_not_share_it(experiment, tmp_path):
    RunFolder.create(experiment, tmp_path / "run")
    with pytest.raises(RunError, match="holds a run already"):
        RunFolder.create(experiment, tmp_path / "run")


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_what_a_killed_run_wrote_is_readable(experiment, tmp_path, kept):
    folder = RunFolder.create(experiment, tmp_path / "run")
    for step in (1, 2):
        folder.add_metrics(step, {"train/reward": 0.5})
        folder.add_trajectory("step_1", SCORED)
    for name in ("metrics.jsonl", "trajectories/step_1.jsonl"):
        file = folder.path / name
        first, last = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(first + last.rstrip(b"\n")[:kept])
    assert read_metrics(folder.path) == {1: {"train/reward": 0.5}}
    assert list(read_trajectories(folder.path / "trajectories/step_1.jsonl")) == [SCORED]


def test_a_broken_line_is_named(experiment, tmp_path):
    folder = RunFolder.create(experiment, tmp_path / "run")
    (folder.path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 2}\n')
    with pytest.raises(RunError, match=r"metrics.jsonl, line 2: not valid JSON"):
        read_metrics(folder.path)


def test_a_lone_surrogate_is_kept(experiment, tmp_path):
    folder = RunFolder.create(experiment, tmp_path / "run")
    odd = SCORED.model_copy(update={"messages": ({"role": "user", "content": "a\ud800b"},)})
    folder.add_trajectory("step_1", odd)
    assert list(read_trajectories(folder.path / "trajectories/step_1.jsonl")) == [odd]


def test_a_figure_that_is_not_finite_is_null(experiment, tmp_path):
    folder = RunFolder.create(experiment, tmp_path / "run")
    folder.add_metrics(1, {"train/loss": math.nan, "train/kl": math.inf, "train/reward": 1.0})
    folder.note(result={"train/loss": math.nan})
    row = json.loads((folder.path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert row == {"step": 1, "train/loss": None, "train/kl": None, "train/reward": 1.0}
    manifest = (folder.path / "manifest.json").read_text()
    assert json.loads(manifest, parse_constant=pytest.fail) == {"result": {"train/loss": None}}
    assert math.isnan(read_metrics(folder.path)[1]["train/loss"])


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


@pytest.mark.parametrize(
    "name", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "HF_TOKEN", "PGPASSWORD_PASS", "MY_PASS"]
)
def test_a_secret_is_known_by_a_word_of_its_name(name, monkeypatch):
    monkeypatch.setenv(name, "s3cret-value")
    assert redact("is s3cret-value") == "is [redacted]"


def test_what_is_no_secret_is_left(monkeypatch):
    for name in ("MAX_TOKENS", "KEYBOARD", "MONKEY_BUSINESS", "COMPASS"):
        monkeypatch.setenv(name, "s3cret-value")
    monkeypatch.setenv("HF_TOKEN", "short")
    assert redact("is s3cret-value and short") == "is s3cret-value and short"


def test_a_secret_that_json_escapes_is_redacted(experiment, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", 'quote"and\\slash')
    folder = RunFolder.create(experiment, tmp_path / "run")
    said = {"role": "user", "content": 'my key is quote"and\\slash'}
    folder.add_trajectory("step_1", SCORED.model_copy(update={"messages": (said,)}))
    (row,) = read_trajectories(folder.path / "trajectories/step_1.jsonl")
    assert row.messages[0]["content"] == "my key is [redacted]"


def test_a_log_holds_no_secret(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf-TEST-12345")
    try:
        raise ValueError("bad key hf-TEST-12345")
    except ValueError as error:
        told = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "", 0, "hf-TEST-12345", (), told)
    assert "hf-TEST-12345" not in RedactingFormatter().format(record)


def test_the_id_of_a_run_is_its_folder_or_tells_folders_of_one_name_apart(experiment, tmp_path):
    own = RunFolder.create(experiment, tmp_path / "2026-01-02_03-04-05-abcdef")
    assert own.id == "2026-01-02_03-04-05-abcdef"
    jobs = [RunFolder.create(experiment, tmp_path / sweep / "0").id for sweep in "ab"]
    assert jobs[0] != jobs[1]
    assert all(job.startswith("0-") for job in jobs)
    assert RunFolder(tmp_path / "a" / "0").id == jobs[0]
