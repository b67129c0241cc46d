"""The learner on a client that only takes notes."""

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

pytest.importorskip("tinker", reason="needs the tinker extra")
pytest.importorskip("trl", reason="takes the tiny policy's tokenizer")

import tinker

from rlpipe.backends._examples import taught
from rlpipe.backends._tinker import TinkerLearner
from rlpipe.backends._tinker_checkpoint import SavedWeights
from rlpipe.backends._tinker_losses import chosen, datum
from rlpipe.backends._tinker_service import Service
from rlpipe.backends.tinker import Tinker
from rlpipe.chat import supervised_rows
from rlpipe.errors import RunError
from rlpipe.policies.tiny import Tiny
from rlpipe.policies.trainable import Trainable
from rlpipe.train.grpo import Grpo
from rlpipe.train.sft import Sft
from rlpipe.train.teacher_grpo import TeacherGrpo
from rlpipe.types import Failure, Score, StopReason, Trajectory, TrajectoryGroup, Turn

_, TOKENIZER = Tiny(hidden_size=16, layers=1, heads=1).load(0)


class Client:
    """Answers nothing until all that is asked has been asked, and every target with -2."""

    def __init__(self, *expected, error=None):
        self.expected = list(expected)
        self.error = error
        self.asked = []
        self.waiting = []

    def _ask(self, name, answer):
        self.asked.append(name)
        future = Future()
        self.waiting.append((future, answer))
        if self.asked == self.expected:
            for waiting, value in self.waiting:
                failed = isinstance(value, Exception)
                (waiting.set_exception if failed else waiting.set_result)(value)
        return future

    def _outputs(self, data):
        self.data = data
        lengths = [len(row.model_input.to_ints()) for row in data]
        said = [tinker.TensorData(data=[-2.0] * n, dtype="float32", shape=[n]) for n in lengths]
        return SimpleNamespace(loss_fn_outputs=[{"logprobs": values} for values in said])

    def forward(self, data, loss, config=None):
        future = Future()
        future.set_result(self._outputs(data))
        self.forwarded = (data, loss)
        return future

    def forward_backward(self, data, loss, config=None):
        self.loss = (loss, config)
        return self._ask("forward_backward", self.error or self._outputs(data))

    def optim_step(self, adam):
        self.adam = adam
        return self._ask("optim_step", SimpleNamespace(metrics={"skyrl.ai/grad_norm": 0.25}))

    def save_weights_and_get_sampling_client(self):
        return asyncio.wrap_future(self._ask("sampler", "the sampler"), loop=self.loop)

    def save_state(self, name, ttl_seconds):
        return self._saved("weights", name, ttl_seconds)

    def save_weights_for_sampler(self, name, ttl_seconds):
        return self._saved("sampler_weights", name, ttl_seconds)

    def _saved(self, kind, name, ttl_seconds):
        self.ttl = ttl_seconds
        return self._ask(kind, SimpleNamespace(path=f"tinker://run/{kind}/{name}"))


def learner(client, train, **options):
    backend = Tinker(**options)
    job = SimpleNamespace(train=train, status=lambda text: None)
    service = Service(backend, Trainable(model="m"), None, TOKENIZER, "Qwen/Qwen3-8B", 4096)
    return TinkerLearner(backend, job, service, client, 8)


async def asked(client, work):
    client.loop = asyncio.get_running_loop()
    return await asyncio.wait_for(work, 5)


def turn(prompt, completion):
    return Turn(prompt_ids=prompt, completion_ids=completion, logprobs=(-1.5,) * len(completion))


def member(index, reward, *turns, messages=()):
    lost = Failure(boundary="sandbox", type="SandboxGone", message="")
    return Trajectory(
        rollout_id=f"g-{index}",
        group_id="g",
        task_id="t",
        turns=turns,
        messages=messages,
        stop_reason=StopReason.FINAL_ANSWER,
        score=None if reward is None else Score(value=reward, passed=reward > 0),
        failure=lost if reward is None else None,
    )


def group(*members):
    return TrajectoryGroup(group_id="g", task_id="t", trajectories=members)


STEP = ("forward_backward", "optim_step", "sampler")


async def test_a_step_sends_everything_before_it_waits_and_trains_on_our_advantages():
    client = Client(*STEP)
    rewritten = (turn((1, 2), (3, 4)), turn((1, 9), (5,)))
    groups = [
        group(
            member(0, 1.0, *rewritten),
            member(1, 0.0, turn((1, 2), (6,)), turn((1, 2, 6, 7), (8,))),
            member(2, None),
            member(3, 0.0, turn((1, 2), (6,))),
        )
    ]
    train = Grpo(scale_rewards="none")
    figures = await asked(client, learner(client, train, weight_decay=0.1).reinforce(groups, 0.5))
    assert client.loss == ("importance_sampling", None)
    assert (client.adam.learning_rate, client.adam.weight_decay) == (0.5, 0.1)
    sent = [
        (
            d.model_input.to_ints(),
            *(d.loss_fn_inputs[name].tolist() for name in ("target_tokens", "logprobs")),
            [round(value, 4) for value in d.loss_fn_inputs["advantages"].tolist()],
        )
        for d in client.data
    ]
    assert sent == [
        ([1, 2, 3], [2, 3, 4], [0, -1.5, -1.5], [0, 0.6667, 0.6667]),
        ([1, 9], [9, 5], [0, -1.5], [0, 0.6667]),
        ([1, 2, 6, 7], [2, 6, 7, 8], [0, -1.5, 0, -1.5], [0, -0.3333, 0, -0.3333]),
        ([1, 2], [2, 6], [0, -1.5], [0, -0.3333]),
    ]
    assert figures["train/rows"] == 4
    assert figures["train/split_rollouts"] == 1
    assert figures["train/tokens"] == 6
    assert figures["tokens/trained"] == 3 + 2 + 4 + 2  # given ones are charged for too
    assert figures["train/logprob_diff"] == pytest.approx(0.5)
    assert figures["train/grad_norm"] == 0.25
    assert figures["train/skipped"] == 0


async def test_the_sampler_of_a_step_serves_the_next_one():
    client = Client(*STEP)
    made = learner(client, Grpo())
    groups = [group(member(0, 1.0, turn((1,), (2,))), member(1, 0.0, turn((1,), (3,))))]
    await asked(client, made.reinforce(groups, 0.5))
    actor = await made.actor(1)
    assert (actor._sampler, actor.version) == ("the sampler", 1)
    assert tuple(client.asked) == STEP


async def test_equal_rewards_send_nothing():
    client = Client()
    groups = [group(member(0, 1.0, turn((1,), (2,))), member(1, 1.0, turn((1,), (3,))))]
    figures = await learner(client, Grpo()).reinforce(groups, 0.5)
    assert figures == {"train/rows": 0.0, "train/split_rollouts": 0.0, "train/skipped": 1.0}
    assert client.asked == []


async def test_rollouts_of_another_model_are_refused():
    bare = Turn(prompt_ids=(1,), completion_ids=(2,))
    groups = [group(member(0, 1.0, bare), member(1, 0.0, bare))]
    with pytest.raises(RunError, match="needs the log-probabilities"):
        await learner(Client(), Grpo()).reinforce(groups, 0.5)


async def test_a_service_that_fails_ends_the_run_and_is_named():
    lost = tinker.RequestFailedError(
        "worker died", request_id="r", category=tinker.types.RequestErrorCategory("server")
    )
    client = Client(*STEP, error=lost)
    groups = [group(member(0, 1.0, turn((1,), (2,))), member(1, 0.0, turn((1,), (3,))))]
    with pytest.raises(RunError, match="training step failed: RequestFailedError: worker died"):
        await asked(client, learner(client, Grpo()).reinforce(groups, 0.5))


ASK = {"role": "user", "content": "Where?"}
GOOD = member(0, 1.0, messages=(ASK, {"role": "assistant", "content": "blue"}))
BAD = member(1, 0.0, messages=(ASK, {"role": "assistant", "content": "red"}))


async def test_imitation_weighs_what_the_teacher_said():
    client = Client("forward_backward", "optim_step")
    figures = await asked(client, learner(client, Sft()).imitate([GOOD], 0.5, reasoning=False))
    ((ids, labels),) = supervised_rows(TOKENIZER, GOOD)
    (sent,) = client.data
    assert client.loss == ("cross_entropy", None)
    assert sent.model_input.to_ints() == ids[:-1]
    assert sent.loss_fn_inputs["weights"].tolist() == [float(label != -100) for label in labels[1:]]
    assert figures["train/loss"] == 2.0


async def test_a_teachers_groups_are_learned_at_a_ratio_of_one():
    client = Client("forward_backward", "optim_step")
    train = TeacherGrpo(scale_rewards="none")
    figures = await asked(client, learner(client, train).compare([group(GOOD, BAD)], 0.5))
    assert client.forwarded[1] == "cross_entropy"
    assert client.loss == ("importance_sampling", None)
    for sent, weight in zip(client.data, (0.5, -0.5), strict=True):
        assert set(sent.loss_fn_inputs["logprobs"].tolist()) == {-2.0}
        assert set(sent.loss_fn_inputs["advantages"].tolist()) == {0.0, weight}
    assert figures["train/logprob_better"] == figures["train/logprob_worse"] == -2.0


@pytest.mark.parametrize(("ttl", "seconds", "expires"), [(None, None, False), (7200.5, 7200, True)])
async def test_a_checkpoint_has_a_name_and_a_lifetime(tmp_path, ttl, seconds, expires):
    client = Client("weights", "sampler_weights")
    await asked(client, learner(client, Grpo(), checkpoint_ttl=ttl).save(3, tmp_path))
    saved = SavedWeights.read(tmp_path)
    assert (saved.step, saved.lora_rank, saved.base_model) == (3, 8, "Qwen/Qwen3-8B")
    assert saved.state == "tinker://run/weights/step_3"
    assert saved.sampler == "tinker://run/sampler_weights/step_3"
    assert client.ttl == seconds
    assert (saved.expires is not None) == expires
    assert saved.expires is None or saved.expires > saved.saved


@pytest.mark.parametrize(
    ("train", "name", "config"),
    [
        (Grpo(), "importance_sampling", None),
        (Grpo(loss_fn="ppo"), "ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
        (
            Grpo(loss_fn="cispo", epsilon=2.0),
            "cispo",
            {"clip_low_threshold": 0.0, "clip_high_threshold": 3.0},
        ),
        (Sft(), "cross_entropy", None),
        (TeacherGrpo(), "importance_sampling", None),
    ],
)
def test_settings_choose_the_services_loss(train, name, config):
    loss = chosen(Tinker(), train)
    assert (loss.name, loss.config) == (name, config)


def test_losses_want_different_things_of_a_row():
    row = taught([1, 2], [-100, 2])
    assert set(datum(row, chosen(Tinker(), Sft())).loss_fn_inputs) == {"target_tokens", "weights"}
    wanted = {"target_tokens", "logprobs", "advantages"}
    assert set(datum(row, chosen(Tinker(), Grpo())).loss_fn_inputs) == wanted
