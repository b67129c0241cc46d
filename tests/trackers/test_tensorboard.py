"""Read back with TensorBoard's own accumulator."""

import math

import pytest

from rlpipe.trackers.base import Ending
from rlpipe.trackers.tensorboard import Tensorboard

from .conftest import tell

pytest.importorskip("tensorboard", reason="needs the extra tensorboard")


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def scalars(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


def text(events, tag):
    (event,) = events.Tensors(tag)
    return event.step, event.tensor_proto.string_val[0].decode()


def test_figures_have_their_steps_and_late_ones_are_there(tracked):
    tell(Tensorboard(), tracked)
    events = read(tracked.folder / "tensorboard")
    assert scalars(events, "train/reward") == [(4, 0.25), (5, 0.5)]
    assert scalars(events, "val/pass@1") == [(4, 0.75)]
    assert scalars(events, "cwsandbox/executions") == [(4, 12.0)]
    ((step, loss),) = scalars(events, "train/loss")
    assert step == 5
    assert math.isnan(loss)


def test_trajectories_spec_and_end_are_text(tracked):
    tell(Tensorboard(), tracked, Ending("failed", 1, "RunError: no"))
    events = read(tracked.folder / "tensorboard")
    assert '"learning_rate": 1e-05' in text(events, "config")[1]
    step, shown = text(events, "trajectories/train/0")
    assert step == 5
    assert '"reward": 1.0' in shown
    assert "    ```\n    <b>done</b>" in shown  # nothing that was said leaves the code block
    assert text(events, "status")[1] == "failed RunError: no"


def test_a_resumed_run_goes_on_in_the_same_folder(tracked):
    tell(Tensorboard(), tracked)
    tracking = Tensorboard().open(tracked)
    tracking.log(6, {"train/reward": 0.75})
    tracking.close(Ending("done"))
    events = read(tracked.folder / "tensorboard")
    assert scalars(events, "train/reward") == [(4, 0.25), (5, 0.5), (6, 0.75)]
