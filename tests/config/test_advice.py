"""What a run that has ended offers, and what is never run."""

import pytest

from rlpipe.config.compose import load_experiment
from rlpipe.errors import ConfigError
from rlpipe.runner import _next_steps, run

QUICKSTART = load_experiment("quickstart", "train.steps=5")


def test_a_spec_that_asks_for_a_check_is_not_run(tmp_path):
    with pytest.raises(ConfigError, match="leave it out"):
        run(load_experiment("quickstart", "dry_run=true"), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_the_next_commands_are_the_last_one_with_its_settings_and_files_that_exist(tmp_path):
    (tmp_path / "trajectories").mkdir()
    (tmp_path / "trajectories" / "teacher.jsonl").touch()
    (tmp_path / "checkpoints" / "step_5").mkdir(parents=True)
    given = ["+recipe=quickstart", "++name=try", "++seed=3", "++train.steps=5", "policy=tiny"]
    again, read, trained = _next_steps(QUICKSTART, tmp_path, given)
    assert again.split("  ")[0] == (
        "rlpipe +recipe=quickstart name=try train.steps=5 policy=tiny seed=1"
    )
    assert read == f"less {tmp_path}/trajectories/teacher.jsonl"
    assert trained == (
        "rlpipe +recipe=quickstart name=try seed=3 train.steps=5 mode=eval policy=trainable "
        f"policy.model={tmp_path}/checkpoints/step_5"
    )


def test_a_run_without_a_command_line_or_files_offers_nothing(tmp_path):
    assert _next_steps(QUICKSTART, tmp_path, ()) == []
