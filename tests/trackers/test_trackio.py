"""Read back with Trackio's own API, from its local database."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from .conftest import tracked_run

pytestmark = pytest.mark.skipif(find_spec("trackio") is None, reason="needs the extra trackio")

SCRIPT = """
import json, pathlib, sys
from rlpipe.trackers.base import Ending
from rlpipe.trackers.trackio import Trackio
from tests.trackers.conftest import tell, tracked_run

run = tracked_run(pathlib.Path(sys.argv[1]))
tell(Trackio(project="maths"), run, Ending("failed", 1, "RunError: no"))
again = Trackio(project="maths").open(run)
again.log(6, {"train/reward": 0.75})
again.close(Ending("done"))

import trackio
from trackio.sqlite_storage import SQLiteStorage

(found,) = trackio.Api().runs("maths")
logs = SQLiteStorage.get_logs("maths", found.name, run_id=found.id)
said = {"name": found.name, "config": found.config, "alerts": found.alerts(), "logs": logs}
print("READ " + json.dumps(said, default=str))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What Trackio kept. In a process of its own: it looks once where its folder is."""
    folder = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(folder / "db"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        command = [sys.executable, "-c", SCRIPT, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("READ ")]
    return json.loads(line.removeprefix("READ "))


def test_figures_have_their_steps_and_late_ones_are_there(found):
    def of(name):
        return [(row["step"], row[name]) for row in found["logs"] if name in row]

    assert sorted(of("val/pass@1")) == [(4, 0.75)]
    assert of("cwsandbox/executions") == [(4, 12.0)]
    # The last is of the run as it was gone on with.
    assert sorted(of("train/reward")) == [(4, 0.25), (5, 0.5), (6, 0.75)]


def test_spec_group_and_trajectories_are_there(found, tmp_path):
    assert found["name"] == tracked_run(tmp_path).id
    assert found["config"]["train"] == {"steps": 5, "learning_rate": 1e-05}
    assert found["config"]["_Group"] == "sweep_1"
    (row,) = [row for row in found["logs"] if "trajectories/train" in row]
    table = row["trajectories/train"]["_value"]
    assert [shown["reward"] for shown in table] == [1.0, None]


def test_a_failed_run_raises_an_alert(found):
    (alert,) = found["alerts"]
    assert (alert["title"], alert["text"]) == ("failed with exit status 1", "RunError: no")
