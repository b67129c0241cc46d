"""Run folders as they are found: while a run goes on, after a kill, from another version."""

import json

import pytest

from rlpipe import resuming
from rlpipe.report.data import RunData, body, brief
from rlpipe.report.figures import figures, index
from rlpipe.report.live import Report
from rlpipe.store import RowTail, RunFolder, find_runs, read_manifest, read_row, read_spec

from . import made


def test_a_second_reading_takes_what_was_added(tmp_path):
    folder = made.agent_run(tmp_path / "run", steps=2, held_out=3, done=False)
    data = RunData(folder.path)
    assert len(data.refresh()) == len(data.trajectories) == 2 * 16 + 2 * 3
    assert data.refresh() == []
    made.evaluate(folder, 3, 5, 0.5, made.random.Random(1))
    added = data.refresh()
    assert [item.task_id for item, _ in added] == [f"held/{n}" for n in range(5)]
    assert len(data.trajectories) == 43
    assert sorted(data.metrics) == [0, 1, 2, 3]


def test_half_a_line_is_read_once_it_is_whole(tmp_path):
    file = tmp_path / "rows.jsonl"
    tail = RowTail(file)
    assert list(tail.read()) == []
    file.write_text('{"a": 1}\n{"a"')
    assert list(tail.read()) == [(0, {"a": 1})]
    with file.open("a") as out:
        out.write(": 2}\n")
    assert list(tail.read()) == [(9, {"a": 2})]
    assert read_row(file, 9) == {"a": 2}
    assert tail.broken == 0


@pytest.mark.parametrize("line", ['{"a', "[1]", "null", "", "[" * 100_000])
def test_a_line_that_is_no_row_is_counted_and_left_out(tmp_path, line):
    file = tmp_path / "rows.jsonl"
    file.write_text(f'{{"a": 1}}\n{line}\n{{"a": 2}}\n')
    tail = RowTail(file)
    assert [row for _, row in tail.read()] == [{"a": 1}, {"a": 2}]
    assert tail.broken == 1
    assert read_row(file, 9) is None


def test_files_come_in_the_order_of_their_steps(tmp_path):
    folder = made.create(tmp_path / "run")
    (tmp_path / "run" / "trajectories").mkdir()
    for name in ("step_10", "step_9", "eval_0", "teacher", "eval_10", "collect"):
        row = {"rollout_id": name}
        (folder.path / "trajectories" / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    data = RunData(folder.path)
    data.refresh()
    order = [item.file for item in data.trajectories]
    assert order == ["collect", "teacher", "eval_0", "step_9", "eval_10", "step_10"]
    assert [item.phase for item in data.trajectories[1:4]] == ["teacher", "eval", "train"]


def test_a_row_of_another_version_may_lack_anything():
    item = brief("step_3", 7, {"rollout_id": "r", "usage": None, "timing": None, "reward": 1})
    assert (item.phase, item.step, item.group_id, item.reward) == ("train", 0, "r", 1)
    assert item.scored
    assert body({"turns": None})["turns"] == []


@pytest.mark.parametrize("files", [{}, {"manifest.json": "{}"}, {"manifest.json": '{"sta'}])
def test_a_folder_with_next_to_nothing_still_has_a_report(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    page = Report(tmp_path).write().read_text()
    assert "Not known: nothing was measured" in page


def test_a_failed_row_has_no_reward():
    failure = {"boundary": "grader", "type": "GraderError"}
    item = brief("step_1", 0, {"reward": 1.0, "passed": True, "failure": failure})
    assert (item.reward, item.passed, item.failure) == (None, False, "grader/GraderError")


def test_a_turn_shows_only_what_its_prompt_adds():
    first = {"prompt_ids": [1, 2], "completion_ids": [3], "logprobs": [-0.123456]}
    second = {"prompt_ids": [1, 2, 3, 4], "completion_ids": [5], "logprobs": [-1.0]}
    other = {"prompt_ids": [9], "completion_ids": [8], "logprobs": None}
    turns = body({"turns": [first, second, other, {"finish_reason": "stop"}]})["turns"]
    assert [(t.get("given"), t.get("goes_on")) for t in turns] == [
        ([1, 2], False),
        ([4], True),
        ([9], False),
        (None, None),
    ]
    assert turns[0]["logprobs"] == [-0.1235]
    assert turns[3] == {"finish_reason": "stop"}


def test_the_stamp_changes_with_what_is_shown(tmp_path):
    folder = made.create(tmp_path / "run")
    data = RunData(folder.path)
    stamps = [data.stamp, data.stamp]
    folder.add_metrics(1, {"a": 1.0})
    stamps.append(data.stamp)
    (folder.path / "rlpipe.log").write_text("a line")
    stamps.append(data.stamp)
    assert stamps[0] == stamps[1] != stamps[2] == stamps[3]


def test_an_index_says_where_bodies_lie(tmp_path):
    folder = made.agent_run(tmp_path / "run", steps=1, held_out=2)
    data = RunData(folder.path)
    data.refresh()
    columns = index(data.trajectories, [(-1, item.place) for item in data.trajectories])
    files = [columns["file"]["words"][code] for code in columns["file"]["codes"]]
    assert files[0] == "eval_0"
    for file, start, name in zip(files, columns["second"], columns["rollout"], strict=True):
        row = read_row(folder.path / "trajectories" / f"{file}.jsonl", start)
        assert row is not None
        assert row["rollout_id"] == name
    assert json.dumps(index([], []))


def test_runs_are_found_below_a_folder_and_not_inside_one(tmp_path):
    for name in ("a/one", "b/sweep/0", "b/sweep/1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "manifest.json").write_text("{}")
    (tmp_path / "a" / "one" / "checkpoints").mkdir()
    (tmp_path / "a" / "one" / "checkpoints" / "manifest.json").write_text("{}")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "manifest.json").write_text("{}")
    names = [str(run.relative_to(tmp_path)) for run in find_runs(tmp_path)]
    assert names == ["a/one", "b/sweep/0", "b/sweep/1"]
    assert find_runs(tmp_path / "a" / "one") == [tmp_path / "a" / "one"]
    assert find_runs(tmp_path, depth=1) == []
    assert find_runs(tmp_path / "nothing") == []
    assert read_manifest(tmp_path) == {}


def test_a_figure_that_is_not_finite_becomes_null(tmp_path):
    folder = made.create(tmp_path / "run")
    folder.add_metrics(1, {"train/loss": float("nan"), "train/reward": 0.5})
    folder.add_metrics(2, {"train/reward": 0.75})
    data = RunData(folder.path)
    data.refresh()
    metrics = figures(data)["metrics"]
    assert metrics == {
        "steps": [1, 2],
        "columns": {"train/loss": [None, None], "train/reward": [0.5, 0.75]},
    }


def test_a_run_that_was_taken_up_again_is_read_anew(tmp_path):
    with made.agent_run(tmp_path / "run", steps=2, held_out=3, done=False) as folder:
        path = folder.path
    data, report = RunData(path), Report(path)
    data.refresh()
    report.write()
    with RunFolder.reopen(path) as folder:
        resuming.rewind(folder, 1)
        spec = read_spec(path)
        spec["train"]["steps"] = 99
        folder.change_spec(spec, {"train.steps": "24 -> 99"})
        added = data.refresh()
        assert sorted(data.metrics) == [0, 1]
        assert {item.file for item in data.trajectories} == {"eval_0", "step_1"}
        assert len(added) == len(data.trajectories) == 3 + 16
        assert data.spec["train"]["steps"] == 99
        assert data.refresh() == []
        made.evaluate(folder, 1, 3, 0.5, made.random.Random(1))
        assert len(data.refresh()) == 3
    index = made.blocks(report.write())["index"]
    assert len(index["rollout"]) == 22
    assert index == made.blocks(Report(path).write())["index"]
