"""The recipes that can, for real: with a scripted model, or with a tiny one that really trains."""

import json
import re
from pathlib import Path

import pytest

import rlpipe
from rlpipe.config.paths import RECIPES
from rlpipe.store import read_trajectories

AGENT_FILES = {
    "mend-median": (
        "cat > stats.py <<'END'\nfrom statistics import mean, median\nEND",
        "printf 'def mean(n):\\n    return sum(n) / len(n)\\n\\n\\ndef median(n):\\n"
        "    n = sorted(n)\\n    half = len(n) // 2\\n"
        "    return n[half] if len(n) %% 2 else (n[half - 1] + n[half]) / 2\\n' > stats.py",
    ),
    "count-errors": ("grep -c ^ERROR app.log > count.txt",),
    "total-orders": (
        "python3 - <<'END'\n"
        "import csv, json\n"
        "sums = {}\n"
        "for row in csv.DictReader(open('orders.csv')):\n"
        "    sums[row['customer']] = sums.get(row['customer'], 0) + int(row['amount'])\n"
        "json.dump(sums, open('totals.json', 'w'))\n"
        "END",
    ),
    "merge-settings": (
        'python3 -c "import json; read = lambda name: json.load(open(name)); '
        "json.dump(read('base.json') | read('local.json'), open('merged.json', 'w'))\"",
    ),
    "write-script": ("echo 'echo \"Hello, ${1:-world}!\"' > greet.sh",),
    "rename-function": ("sed -i s/compute_it/answer/g app.py lib/tools.py",),
    "sort-words": ("sort -u words.txt > sorted.txt",),
    "mend-syntax": ("sed -i -e 's/31$/31}/' -e 's/()$/():/' report.py && python3 report.py",),
}
"""Commands that do each job. Those of a job run one in a turn, in one sandbox that keeps its state;
the first of `mend-median` imports itself, and fails."""


def bash(command):
    return {"tool_calls": [{"name": "bash", "arguments": {"command": command}}]}


def played(tmp_path, **script):
    """Run the jobs of `agent_files` with a scripted model; return the trajectory of each."""
    experiment = rlpipe.load_experiment(
        "agent_files", "mode=collect", "policy=scripted", "policy.turns=[Nothing to do.]"
    )
    policy = experiment.policy.model_validate(experiment.policy.model_dump() | script)
    experiment = experiment.model_copy(update={"policy": policy})
    assert rlpipe.check(experiment) == []
    result = rlpipe.run(experiment, tmp_path / "run")
    rows = read_trajectories(result.folder / "trajectories/collect.jsonl")
    return {row.task_id: row for row in rows}


def test_every_job_of_agent_files_can_be_done_in_its_sandbox(tmp_path):
    script = {job: [*map(bash, commands), "It is done."] for job, commands in AGENT_FILES.items()}
    rows = played(tmp_path, by_task=script)
    assert {job: row.score.note for job, row in rows.items()} == dict.fromkeys(
        AGENT_FILES, "exit status 0"
    )
    assert {row.stop_reason for row in rows.values()} == {"final_answer"}


def test_no_job_of_agent_files_is_done_by_doing_nothing(tmp_path):
    rows = played(tmp_path)
    assert {job: row.reward for job, row in rows.items()} == dict.fromkeys(AGENT_FILES, 0.0)


def test_editing_its_tests_does_no_job_of_agent_files(tmp_path):
    lines = (RECIPES / "data/agent_files.jsonl").read_text().splitlines()
    tested = {row["id"]: row["test_files"] for row in map(json.loads, lines) if "test_files" in row}
    assert len(tested) == 2
    script = {
        job: [bash(f"echo > {next(iter(files))}"), "It is done."] for job, files in tested.items()
    }
    rows = played(tmp_path, by_task=script)
    assert {rows[job].reward for job in tested} == {0.0}


TINY = (
    *("policy=tiny", "policy.hidden_size=32", "policy.heads=2", "backend.threads=1"),
    *("train.group_size=2", "rollout.max_tokens=8"),
)


def trained(recipe, folder, *overrides):
    pytest.importorskip("trl", reason="needs the trl extra")
    return rlpipe.run(rlpipe.load_experiment(recipe, *TINY, *overrides), folder)


def test_trl_toy_trains_with_its_line_per_reward_call(tmp_path, capsys):
    result = trained("trl_toy", tmp_path / "run")
    assert sorted(step for step in result.metrics if step) == list(range(1, 11))
    lines = [line for line in capsys.readouterr().out.splitlines() if "Reward call" in line]
    assert len(lines) == 10
    for number, line in enumerate(lines, 1):
        ran, skipped = map(
            int, re.fullmatch(r"  Reward call \d+: (\d) .*?(?:(\d) skipped.*)?", line).groups("0")
        )
        rows = list(read_trajectories(result.folder / f"trajectories/step_{number}.jsonl"))
        assert skipped == sum(row.score.outcome == "no_answer" for row in rows)
        assert ran + skipped == len(rows) == 2
        assert line.startswith(f"  Reward call {number}: ")


def test_agent_files_trains(tmp_path):
    settings = ("train.steps=1", "train.groups_per_batch=1", "dataset.held_out=1")
    result = trained("agent_files", tmp_path / "run", *settings)
    (row, _) = read_trajectories(result.folder / "trajectories/step_1.jsonl")
    assert [tool["function"]["name"] for tool in row.tools] == ["bash", "read_file", "write_file"]
    assert row.messages[0]["role"] == "system"
    assert row.reward == 0.0


def test_the_toy_problems_are_right_and_an_empty_program_is_not(tmp_path):
    experiment = rlpipe.load_experiment("trl_toy", "mode=collect", "policy=reference")
    assert rlpipe.run(experiment, tmp_path / "right").last("collect/reward") == 1.0
    quits = ("policy=scripted", "policy.turns=['<answer>import sys; sys.exit(0)</answer>']")
    experiment = rlpipe.load_experiment("trl_toy", "mode=collect", *quits)
    assert rlpipe.run(experiment, tmp_path / "quits").last("collect/reward") == 0.0


MBPP = Path(__file__).parents[2] / "shared" / "data" / "mbpp" / "mbpp.jsonl"


@pytest.mark.skipif(not MBPP.exists(), reason=f"no MBPP data at {MBPP}")
@pytest.mark.parametrize("train", ["grpo", "teacher_grpo", "sft"])
def test_mbpp_art_trains_in_every_mode(tmp_path, train):
    mistaken = ("teacher=reference",)  # each group is alike, so that teacher_grpo has nothing to do
    result = trained(
        *("mbpp_art", tmp_path / "run", f"dataset.path={MBPP}", f"train={train}", *mistaken),
        *("train.steps=1", "train.groups_per_batch=2", "dataset.held_out=1"),
    )
    assert sorted(result.metrics) == [0, 1]
    skipped = result.metrics[1].get("train/skipped", 0.0)
    assert skipped == (0.0 if train == "sft" else 1.0)


def test_mbpp_art_has_the_guides_figures():
    experiment = rlpipe.load_experiment("mbpp_art")
    assert experiment.name == "cwsandbox-mbpp"
    assert experiment.dataset.limit == 10
    train = experiment.train
    assert (train.steps, train.group_size, train.learning_rate) == (5, 2, 1e-5)
    assert experiment.rollout.max_tool_calls == 20
    tool = experiment.tools["execute_code"]
    assert (tool.timeout, tool.max_output, tool.keep) == (60.0, 8192, "tail")
    assert (experiment.policy.name, experiment.teacher.name) == (
        "Qwen/Qwen3-8B",
        "gpt-5.1-codex-mini",
    )
