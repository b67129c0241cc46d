import pytest

from rlpipe.trackers.base import Ending, TrackedRun

DONE = Ending("done")
ROWS = [
    {
        "step": 5,
        "phase": "train",
        "task": "t/1",
        "reward": 1.0,
        "passed": True,
        "stop_reason": "submitted",
        "failure": None,
        "turns": 2,
        "tool_calls": 3,
        "conversation": "[user]\ngo\n\n[assistant]\n```\n<b>done</b>",
    },
    {
        "step": 5,
        "phase": "train",
        "task": "t/2",
        "reward": None,
        "passed": None,
        "stop_reason": "failed",
        "failure": "sandbox: SandboxGone",
        "turns": 0,
        "tool_calls": 0,
        "conversation": "[user]\ngo",
    },
]


def tracked_run(path):
    (path / "run").mkdir()
    return TrackedRun(
        name="maths",
        id="2026-01-02_03-04-05-abcdef",
        folder=path / "run",
        config={"seed": 3, "mode": "train", "train": {"steps": 5, "learning_rate": 1e-5}},
        group="sweep_1",
    )


@pytest.fixture
def tracked(tmp_path):
    return tracked_run(tmp_path)


def tell(tracker, run, ending=DONE):
    """Record two steps, a late figure of the first, and two trajectories."""
    tracking = tracker.open(run)
    tracking.log(4, {"train/reward": 0.25, "cwsandbox/executions": 12.0})
    tracking.log(5, {"train/reward": 0.5, "train/loss": float("nan")})
    tracking.log(4, {"val/pass@1": 0.75})
    tracking.show(5, "train", ROWS)
    tracking.close(ending)
    return tracking


def files_with(folder, text):
    """Files below a folder that hold a text anywhere."""
    wanted = text.encode()
    return [f for f in folder.rglob("*") if f.is_file() and wanted in f.read_bytes()]
