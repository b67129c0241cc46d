import asyncio

import pytest

from rlpipe.advantages import advantages
from rlpipe.collect import Collector
from rlpipe.errors import ProviderError, RunError, SandboxGone
from rlpipe.metrics import summarise
from rlpipe.policies.base import Actor
from rlpipe.rewards.base import Reward
from rlpipe.rewards.expected_output import ExpectedOutput
from rlpipe.rollouts.agent import Agent
from rlpipe.sandboxes._pool import SandboxPool
from rlpipe.sandboxes.local import Local
from rlpipe.types import Score, StopReason, Task, Turn

FOUR = Task(id="four", messages=({"role": "user", "content": "Print 4."},), expected_output="4")


class Answers(Actor):
    """Answers the n-th request with the n-th of the given texts, errors or coroutines."""

    name = "answers"

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    async def act(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if asyncio.iscoroutine(answer):
            answer = await answer
        return {"role": "assistant", "content": answer}, Turn()


RIGHT, WRONG = "<answer>print(4)</answer>", "<answer>print(5)</answer>"


@pytest.fixture
async def session():
    async with Local().open() as session:
        yield session


@pytest.fixture
async def pool(session):
    async with SandboxPool(session, Local().spec(), warm=0, max_live=32, max_starting=4) as pool:
        yield pool


class Pauses:
    """Stands for asyncio.sleep; remembers how long it was asked to wait."""

    def __init__(self):
        self.seconds = []

    async def __call__(self, seconds):
        self.seconds.append(seconds)


def collector(pool, *, reward=None, pauses=None, **rollout):
    attempts = []
    made = Collector(
        Agent(**rollout),
        {},
        reward or ExpectedOutput(),
        pool,
        seed=0,
        on_attempt=attempts.append,
        pause=pauses or Pauses(),
    )
    return made, attempts


async def test_an_infrastructure_failure_is_masked_and_the_numbers_are_exact(pool):
    collect, attempts = collector(pool)
    actor = Answers(RIGHT, WRONG, SandboxGone("the node died"), RIGHT)
    (group,) = await collect.collect(actor, [FOUR], phase="train", step=1, group_size=4)

    assert group.rewards == [1.0, 0.0, None, 1.0]
    (values,) = advantages([group.rewards])
    assert values == [pytest.approx(1 / 3), pytest.approx(-2 / 3), None, pytest.approx(1 / 3)]
    figures = summarise([group])
    assert figures["train/reward"] == pytest.approx(2 / 3)
    assert figures["rollout/infra_failure_rate"] == 0.25
    assert figures["failures/sandbox/SandboxGone"] == 1
    assert figures["groups/trainable"] == 1.0
    failed = group.trajectories[2]
    assert (failed.failure.boundary, failed.failure.type) == ("sandbox", "SandboxGone")
    assert failed.stop_reason == StopReason.FAILED
    assert [t.rollout_id for t in attempts if t.failure] == [failed.rollout_id]


async def test_a_straggler_is_cut_off_and_the_others_are_scored(pool, session):
    collect, _ = collector(pool, timeout=2.0)
    forever = asyncio.Event()

    async def sleeping():
        await forever.wait()

    actor = Answers(*[RIGHT] * 3, sleeping(), *[RIGHT] * 4)
    async with asyncio.timeout(30):
        (group,) = await collect.collect(actor, [FOUR], phase="train", step=1, group_size=8)
    assert [t.valid for t in group.trajectories].count(True) == 7
    late = group.trajectories[3]
    assert late.stop_reason == StopReason.TIMEOUT
    assert (late.failure.boundary, late.failure.type) == ("rollout", "timeout")
    assert late.messages == FOUR.messages
    async with asyncio.timeout(5):
        while await session.list(status="running"):
            await asyncio.sleep(0.01)


async def test_a_retryable_failure_is_tried_again_within_the_budget(pool):
    pauses = Pauses()
    collect, attempts = collector(pool, pauses=pauses, max_attempts=3)
    busy = ProviderError("busy", retryable=True, retry_after=7.0)
    (group,) = await collect.collect(
        Answers(busy, busy, RIGHT), [FOUR], phase="train", step=1, group_size=1
    )
    (trajectory,) = group.trajectories
    assert (trajectory.attempt, trajectory.reward) == (3, 1.0)
    assert [t.attempt for t in attempts] == [1, 2, 3]
    assert pauses.seconds == [7.0, 7.0]


async def test_the_budget_of_attempts_ends_in_a_masked_rollout(pool):
    pauses = Pauses()
    collect, attempts = collector(pool, pauses=pauses, max_attempts=2)
    busy = ProviderError("busy", retryable=True)
    (group,) = await collect.collect(
        Answers(RIGHT, busy, busy), [FOUR], phase="train", step=1, group_size=2
    )
    assert group.rewards == [1.0, None]
    assert len(attempts) == 3
    assert 0.5 <= pauses.seconds[0] <= 1.0


async def test_an_unknown_error_keeps_its_traceback_and_touches_no_other_rollout(pool):
    class Buggy(Reward):
        async def score(self, task, trajectory, sandbox):
            if "5" in trajectory.answer:
                raise ZeroDivisionError("a bug")
            return Score(value=1.0)

    collect, _ = collector(pool, reward=Buggy(kind="buggy"))
    (group,) = await collect.collect(
        Answers(RIGHT, WRONG), [FOUR], phase="train", step=1, group_size=2
    )
    good, bad = group.trajectories
    assert good.reward == 1.0
    assert bad.reward is None
    assert (bad.failure.boundary, bad.failure.type) == ("grader", "ZeroDivisionError")
    assert "a bug" in bad.failure.traceback
    assert not bad.failure.retryable


async def test_an_actor_that_breaks_is_told_from_the_rollout_that_asks_it(pool):
    collect, _ = collector(pool)
    (group,) = await collect.collect(
        Answers(RIGHT, ZeroDivisionError("a bug")), [FOUR], phase="train", group_size=2
    )
    failure = group.trajectories[1].failure
    assert (failure.boundary, failure.type) == ("provider", "ZeroDivisionError")
    assert "a bug" in failure.message
    assert "a bug" in failure.traceback


async def test_a_pause_longer_than_a_rollout_may_take_masks_it(pool):
    pauses = Pauses()
    collect, attempts = collector(pool, pauses=pauses, timeout=60.0)
    busy = ProviderError("busy", retryable=True, retry_after=86_400.0)
    (group,) = await collect.collect(
        Answers(busy, RIGHT), [FOUR], phase="train", step=1, group_size=2
    )
    assert [group.rewards, pauses.seconds, len(attempts)] == [[None, 1.0], [], 2]
    assert "86400 s" in group.trajectories[0].failure.message


async def test_a_pausing_rollout_holds_no_slot(pool):
    other_ended = asyncio.Event()

    async def until_the_other_ended(seconds):
        await other_ended.wait()

    collect, _ = collector(pool, pauses=until_the_other_ended, concurrency=1)
    collect.on_attempt = lambda trajectory: trajectory.failure or other_ended.set()
    busy = ProviderError("busy", retryable=True)
    async with asyncio.timeout(30):
        (group,) = await collect.collect(
            Answers(busy, RIGHT, RIGHT), [FOUR], phase="train", group_size=2
        )
    assert group.rewards == [1.0, 1.0]


async def test_a_step_without_one_valid_rollout_ends_the_run_and_says_why(pool):
    collect, _ = collector(pool)
    gone = [SandboxGone("the node died")] * 2
    with pytest.raises(RunError, match=r"all 2 rollouts of train step 3 failed.*SandboxGone x2"):
        await collect.collect(Answers(*gone), [FOUR], phase="train", step=3, group_size=2)


async def test_siblings_have_distinct_seeds_that_repeat(pool):
    seeds = []
    for _ in range(2):
        collect, _ = collector(pool)
        actor = Answers(*[RIGHT] * 6)
        await collect.collect(actor, [FOUR, FOUR], phase="train", step=2, group_size=3)
        seeds.append([request.seed for request in actor.requests])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 6


async def test_groups_come_in_the_order_of_their_tasks_whichever_ends_first(pool):
    first_may_end = asyncio.Event()

    async def slow():
        await first_may_end.wait()
        return RIGHT

    five = FOUR.model_copy(update={"id": "five", "expected_output": "5"})
    ended = []

    def ends(trajectory):
        ended.append(trajectory.task_id)
        first_may_end.set()

    collect, _ = collector(pool)
    collect.on_attempt = ends
    groups = await collect.collect(Answers(slow(), WRONG), [FOUR, five], phase="train")
    assert [group.task_id for group in groups] == ["four", "five"]
    assert ended == ["five", "four"]
    assert [group.rewards for group in groups] == [[1.0], [1.0]]


async def test_no_more_rollouts_run_at_once_than_allowed(pool):
    running, most = 0, 0

    async def counted():
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return RIGHT

    collect, _ = collector(pool, concurrency=2)
    await collect.collect(
        Answers(*[counted() for _ in range(6)]), [FOUR], phase="train", group_size=6
    )
    assert most <= 2


async def test_the_task_files_are_there_for_the_reward(pool):
    class Reads(Reward):
        async def score(self, task, trajectory, sandbox):
            return Score(value=float(await sandbox.read_file("data/n.txt")))

    task = FOUR.model_copy(update={"files": {"data/n.txt": "42"}})
    collect, _ = collector(pool, reward=Reads(kind="reads"))
    (group,) = await collect.collect(Answers(RIGHT), [task], phase="train")
    assert group.rewards == [42.0]
