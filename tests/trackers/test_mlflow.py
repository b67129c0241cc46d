"""Read back with MLflow's own client, from a database."""

import json
import math

import pytest

from rlpipe.trackers.base import Ending
from rlpipe.trackers.mlflow import Mlflow

from .conftest import tell

pytest.importorskip("mlflow", reason="needs the extra mlflow")
pytest.importorskip("sqlalchemy", reason="needs the extra mlflow")


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    """One database for all: making its tables takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def client(uri, tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)  # artifacts lie beside the one who works
    return MlflowClient(tracking_uri=uri)


def the_run(client, name):
    found = client.search_runs([client.get_experiment_by_name(name).experiment_id])
    (run,) = found
    return run


def history(client, run, name):
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]


def test_figures_have_their_steps_and_late_ones_are_there(client, uri, tracked):
    tell(Mlflow(tracking_uri=uri, experiment="a"), tracked)
    run = the_run(client, "a")
    assert history(client, run, "train/reward") == [(4, 0.25), (5, 0.5)]
    assert history(client, run, "val/pass_at_1") == [(4, 0.75)]
    assert history(client, run, "cwsandbox/executions") == [(4, 12.0)]
    ((_, loss),) = history(client, run, "train/loss")
    assert math.isnan(loss)


def test_spec_sweep_and_trajectories_are_there(client, uri, tracked, tmp_path):
    tell(Mlflow(tracking_uri=uri, experiment="b"), tracked)
    run = the_run(client, "b")
    assert run.info.run_name == f"maths {tracked.id}"
    assert run.data.params == {
        "seed": "3",
        "mode": "train",
        "train.steps": "5",
        "train.learning_rate": "1e-05",
    }
    assert run.data.tags["rlpipe.sweep"] == "sweep_1"
    file = client.download_artifacts(run.info.run_id, "trajectories/train_5.jsonl", str(tmp_path))
    with open(file) as rows:
        assert [json.loads(row)["reward"] for row in rows] == [1.0, None]


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (Ending("done"), "FINISHED"),
        (Ending("stopped", message="limits.cost=1 is reached"), "FINISHED"),
        (Ending("failed", 1, "RunError: no"), "FAILED"),
        (Ending("interrupted", 130), "KILLED"),
    ],
)
def test_it_is_told_how_a_run_ended(ending, status, client, uri, tracked):
    tell(Mlflow(tracking_uri=uri, experiment=ending.status), tracked, ending)
    run = the_run(client, ending.status)
    assert run.info.status == status
    assert run.data.tags["rlpipe.status"] == ending.status
    assert run.data.tags["rlpipe.exit_code"] == str(ending.exit_code)
    assert run.data.tags.get("rlpipe.ended", "") == ending.message


def test_a_resumed_run_is_the_same_one(client, uri, tracked):
    tracker = Mlflow(tracking_uri=uri, experiment="resumed")
    tell(tracker, tracked, Ending("failed", 1))
    tracking = tracker.open(tracked)
    assert the_run(client, "resumed").info.status == "RUNNING"
    tracking.log(6, {"train/reward": 0.75})
    tracking.close(Ending("done"))
    run = the_run(client, "resumed")
    assert run.info.status == "FINISHED"
    assert history(client, run, "train/reward") == [(4, 0.25), (5, 0.5), (6, 0.75)]
