import re

import pytest

from rlpipe.sandboxes._tags import run_tags, tag


def tags(environ=None):
    return run_tags(
        run="2026-01-02_03-04-05-abcdef",
        project="mine",
        model="Qwen/Qwen3-8B",
        environ=environ or {},
    )


def test_without_an_environment_every_tag_has_a_default():
    assert tags() == (
        "rlpipe",
        "run:2026-01-02_03-04-05-abcdef",
        "project:mine",
        "training-run:local",
        "slurm-job:interactive",
        "model:qwen-qwen3-8b",
        "env:dev",
    )


def test_the_environment_says_where_a_run_was_started():
    environ = {
        "TRAINING_RUN_ID": "Train 001",
        "SLURM_JOB_ID": "4711",
        "RLPIPE_ENV": "prod",
        "RLPIPE_PROJECT": "cwsandbox-mbpp",
    }
    assert {
        "training-run:train-001",
        "slurm-job:4711",
        "env:prod",
        "project:cwsandbox-mbpp",
    } <= set(tags(environ))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a" * 70 + "/step_12", "n:" + "a" * 55 + "-step_12"),
        ("/data/models/x/", "n:data-models-x"),
        ("grüße, welt", "n:gr-e-welt"),
        ("///", "n:none"),
    ],
)
def test_a_value_is_short_and_safe(value, expected):
    assert tag("n", value) == expected
    assert re.fullmatch(r"n:[a-z0-9._-]{1,63}", tag("n", value))
