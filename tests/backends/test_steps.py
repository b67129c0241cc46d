"""The step loop that backends share, driven by a learner that only takes notes."""

import asyncio

import pytest

from rlpipe import checkpoints
from rlpipe.backends._steps import Learner, batch, learn, learning_rate
from rlpipe.backends.base import Job
from rlpipe.errors import RunError
from rlpipe.policies.base import Actor
from rlpipe.policies.scripted import Scripted
from rlpipe.train.grpo import Grpo
from rlpipe.train.sft import Sft
from rlpipe.train.teacher_grpo import TeacherGrpo
from rlpipe.types import Score, StopReason, Task, Trajectory, TrajectoryGroup


def shown(number, passed=True):
    return Trajectory(
        rollout_id=f"teacher-0-{number}-0",
        group_id=f"teacher-0-{number}",
        task_id=f"t{number}",
        stop_reason=StopReason.FINAL_ANSWER,
        score=Score(value=float(passed), passed=passed),
    )


class Notes(list):
    """What happened, in order; cancelled once when it is this."""

    def __init__(self, cancel_at):
        super().__init__()
        self.cancel_at = cancel_at
        self.figures = {}

    def append(self, note):
        super().append(note)
        if note == self.cancel_at:
            raise asyncio.CancelledError


class Noting(Learner):
    def __init__(self, notes):
        self.notes = notes

    async def actor(self, version):
        actor = type("Named", (Actor,), {"act": None})()
        actor.version = version
        return actor

    async def save(self, step, folder):
        assert folder.is_dir()
        self.notes.append(f"save {step}")

    async def reinforce(self, groups, rate):
        self.notes.append(f"reinforce {groups[0].task_id} {rate:g}")
        return {"train/rows": 2.0}

    async def imitate(self, shown, rate, *, reasoning):
        assert not reasoning
        self.notes.append(f"imitate {' '.join(t.task_id for t in shown)} {rate:g}")
        return {}

    async def compare(self, groups, rate):
        self.notes.append(f"compare {groups[0].task_id} {rate:g}")
        return {}


def lent(tmp_path, train, notes=None, *, done=None, passed=True, limit=None):
    """A job whose parts write into `notes`; `limit` is the step that a limit ends it at."""
    notes = Notes(None) if notes is None else notes

    def group(task):
        member = shown(int(task.id[1:]))
        return TrajectoryGroup(
            group_id=member.group_id, task_id=member.task_id, trajectories=(member,)
        )

    async def collect(actor, tasks, step):
        notes.append(f"collect {step} by {actor.version}")
        return [group(task) for task in tasks]

    async def teach(tasks, step):
        notes.append(f"teach {step}")
        return [group(task) for task in tasks]

    async def demonstrate():
        notes.append("demonstrate")
        return [shown(number, passed) for number in range(3)]

    async def evaluate(actor, step):
        notes.append(f"evaluate {step} by {actor.version}")

    def finish(step, said):
        notes.figures[step] = dict(said)
        return step == limit

    return Job(
        policy=Scripted(turns=("x",)),
        train=train,
        seed=0,
        temperature=1.0,
        max_sampled_tokens=8,
        folder=tmp_path,
        batch=lambda step: [Task(id=f"t{step}", messages=())],
        collect=collect,
        teach=teach,
        demonstrate=demonstrate,
        evaluate=evaluate,
        finish_step=finish,
        checkpoint=lambda step: checkpoints.saving(tmp_path, step),
        resume=None if done is None else checkpoints.Checkpoint(done, tmp_path / f"step_{done}"),
        status=lambda text: None,
    )


def trained(tmp_path, train, *, course="constant", cancel_at=None, **more):
    """The notes of a training, in order, and the figures of its steps.

    It is cancelled at the note `cancel_at`; `more` is for `lent`.
    """
    notes = Notes(cancel_at)
    job = lent(tmp_path, train, notes, **more)
    try:
        summary = asyncio.run(learn(job, Noting(notes), course))
    except asyncio.CancelledError:
        return list(notes), notes.figures
    assert summary.steps == (more.get("limit") or train.steps)
    return list(notes), notes.figures


def test_a_step_is_sampled_by_the_weights_before_it(tmp_path):
    train = Grpo(steps=3, learning_rate=0.5, eval_every=2, save_every=1)
    notes, figures = trained(tmp_path, train, course="linear")
    assert notes == [
        *("evaluate 0 by 0", "collect 1 by 0", "reinforce t1 0.5", "save 1"),
        *("collect 2 by 1", "reinforce t2 0.333333", "evaluate 2 by 2", "save 2"),
        *("collect 3 by 2", "reinforce t3 0.166667", "evaluate 3 by 3", "save 3"),
    ]
    assert figures[1] == {"train/learning_rate": 0.5, "train/rows": 2.0}


def test_what_is_resumed_goes_on_at_the_next_step_and_is_not_warmed_up_again(tmp_path):
    train = Grpo(steps=3, learning_rate=1.0, warmup_steps=2)
    notes, figures = trained(tmp_path, train, course="linear", done=2)
    assert notes == ["collect 3 by 2", "reinforce t3 0.333333", "evaluate 3 by 3", "save 3"]
    assert list(figures) == [3]


def test_a_warm_up_imitates_the_teacher_first(tmp_path):
    train = Grpo(steps=1, warmup_steps=2, warmup_batch_size=3, warmup_learning_rate=2.0)
    notes, _ = trained(tmp_path, train)
    first, second = notes[1:3]
    assert notes[0] == "demonstrate"
    assert sorted(first.split()[1:4]) == sorted(second.split()[1:4]) == ["t0", "t1", "t2"]
    assert (first.split()[4], second.split()[4]) == ("2", "1")  # half a cosine down
    assert notes[3:6] == ["save 0", "evaluate 0 by 0", "collect 1 by 0"]


def test_a_run_that_stopped_after_its_warm_up_needs_no_teacher_again(tmp_path):
    notes, _ = trained(tmp_path, Grpo(steps=1, warmup_steps=2), done=0)
    assert notes[:2] == ["evaluate 0 by 0", "collect 1 by 0"]


def test_a_limit_ends_the_run_with_its_weights_saved_and_no_evaluation(tmp_path):
    notes, figures = trained(tmp_path, Grpo(steps=9, learning_rate=1.0, eval_every=1), limit=2)
    assert notes[-4:] == ["evaluate 1 by 1", "collect 2 by 1", "reinforce t2 1", "save 2"]
    assert sorted(figures) == [1, 2]


def test_a_checkpoint_that_is_begun_is_finished_before_the_run_stops(tmp_path, monkeypatch):
    began, may_end = asyncio.Event(), asyncio.Event()

    async def slow(self, step, folder):
        began.set()
        await may_end.wait()
        (folder / "weights").touch()

    async def stop_while_saving():
        running = asyncio.create_task(learn(job, Noting(Notes(None)), "constant"))
        await began.wait()
        running.cancel()
        await asyncio.sleep(0)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    monkeypatch.setattr(Noting, "save", slow)
    job = lent(tmp_path, Grpo(steps=2, save_every=1))
    asyncio.run(stop_while_saving())
    kept = checkpoints.latest(tmp_path)
    assert kept.step == 1
    assert (kept.folder / "weights").exists()


@pytest.mark.parametrize(
    ("cancel_at", "last"),
    [
        ("collect 1 by 0", "collect 1 by 0"),  # nothing was learned yet
        ("collect 3 by 2", "save 2"),
        ("reinforce t3 1", "reinforce t3 1"),  # the weights may be those of step 3
    ],
)
def test_a_run_that_is_cancelled_saves_the_last_step_that_is_done(tmp_path, cancel_at, last):
    notes, _ = trained(tmp_path, Grpo(steps=9, learning_rate=1.0), cancel_at=cancel_at)
    assert notes[-1] == last


def test_fine_tuning_imitates_and_evaluates(tmp_path):
    notes, _ = trained(tmp_path, Sft(steps=2, batch_size=2, eval_every=1))
    assert [note.split()[0] for note in notes] == [
        *("evaluate", "demonstrate", "imitate", "evaluate", "imitate", "evaluate", "save"),
    ]


def test_a_teachers_groups_are_compared(tmp_path):
    notes, _ = trained(tmp_path, TeacherGrpo(steps=1, learning_rate=1.0))
    assert notes == [
        "evaluate 0 by 0",
        "teach 1",
        "compare t1 1",
        "evaluate 1 by 1",
        "save 1",
    ]


def test_a_teacher_that_never_passes_ends_the_run(tmp_path):
    with pytest.raises(RunError, match="none of the teacher's 3 trajectories passed"):
        trained(tmp_path, Sft(steps=1), passed=False)


@pytest.mark.parametrize(
    ("course", "rates"),
    [
        ("constant", [2.0, 2.0, 2.0, 2.0]),
        ("linear", [2.0, 1.5, 1.0, 0.5]),
        ("cosine", [2.0, 1.0 + 0.5**0.5, 1.0, 1.0 - 0.5**0.5]),
    ],
)
def test_the_learning_rate_takes_its_course(course, rates):
    assert [learning_rate(course, 2.0, step, 4) for step in (1, 2, 3, 4)] == pytest.approx(rates)


def test_every_epoch_takes_each_demonstration_once_in_an_order_of_its_own():
    all_of_them = [shown(number) for number in range(6)]
    steps = [batch(all_of_them, step, 4, seed=1) for step in (1, 2, 3)]
    drawn = [t.task_id for step in steps for t in step]
    names = sorted(t.task_id for t in all_of_them)
    assert sorted(drawn[:6]) == sorted(drawn[6:]) == names
    assert drawn[:6] != drawn[6:]
    assert batch(all_of_them, 2, 4, seed=1) == steps[1]
    assert batch(all_of_them, 1, 4, seed=2) != steps[0]
