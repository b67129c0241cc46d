import pytest

pytest.importorskip("torch", reason="needs the trl extra")

import torch

from rlpipe import chat
from rlpipe.backends._batching import Prompt
from rlpipe.backends._generation import GeneratingActor, generate
from rlpipe.errors import ContextOverflow, TrajectoryTooLong
from rlpipe.policies.base import Request, Sampling
from rlpipe.policies.tiny import Tiny
from rlpipe.types import Task

TASK = Task(id="t", messages=({"role": "user", "content": "Write Python that prints 4."},))


@pytest.fixture(scope="module")
def tiny():
    return Tiny(hidden_size=32, layers=2, heads=2, intermediate_size=64, context=512).load(seed=0)


def prompt(tokenizer, text, **changes):
    settings = {"seed": 1, "temperature": 1.0, "top_p": 1.0, "max_tokens": 12} | changes
    return Prompt(tuple(tokenizer.encode(text)), **settings)


def sample(tiny, *prompts):
    model, tokenizer = tiny
    return generate(model, tokenizer.pad_token_id, frozenset({tokenizer.eos_token_id}), prompts)


def test_a_row_depends_on_its_seed_and_not_on_its_batch(tiny):
    tokenizer = tiny[1]
    mine = prompt(tokenizer, "print(", seed=5)
    others = [prompt(tokenizer, "a much longer prompt than the other", seed=i) for i in range(3)]
    alone, together = sample(tiny, mine)[0], sample(tiny, *others, mine)[-1]
    assert alone.ids == together.ids
    assert alone.logprobs == pytest.approx(together.logprobs, abs=1e-4)
    assert sample(tiny, prompt(tokenizer, "print(", seed=6))[0].ids != alone.ids


def test_log_probabilities_are_those_of_a_plain_forward_pass(tiny):
    model, tokenizer = tiny
    asked = prompt(tokenizer, "print(", temperature=0.7)
    (drawn,) = sample(tiny, asked)
    with torch.no_grad():
        logits = model(torch.tensor([asked.ids + drawn.ids])).logits[0, len(asked.ids) - 1 : -1]
    expected = (logits / 0.7).log_softmax(-1).gather(1, torch.tensor(drawn.ids)[:, None]).squeeze(1)
    assert list(drawn.logprobs) == pytest.approx(expected.tolist(), abs=1e-4)


def test_temperature_zero_takes_the_likeliest_token(tiny):
    model, tokenizer = tiny
    asked = prompt(tokenizer, "print(", temperature=0.0, max_tokens=1)
    with torch.no_grad():
        best = model(torch.tensor([asked.ids])).logits[0, -1].argmax().item()
    assert sample(tiny, asked)[0].ids == (best,)


def test_draws_follow_the_distribution(tiny):
    model, tokenizer = tiny
    ids = tuple(tokenizer.encode("print("))
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1]
    expected = (logits * 8).softmax(-1)  # sharpened, so that few tokens carry the weight
    rows = [Prompt(ids, seed, 1 / 8, 1.0, 1) for seed in range(1500)]
    drawn = torch.tensor([s.ids[0] for s in sample(tiny, *rows)])
    counts = torch.bincount(drawn, minlength=len(expected)) / len(rows)
    assert (counts - expected).abs().max().item() < 0.05


def test_top_p_keeps_the_nucleus_alone(tiny):
    model, tokenizer = tiny
    ids = tuple(tokenizer.encode("print("))
    with torch.no_grad():
        probs = model(torch.tensor([ids])).logits[0, -1].softmax(-1)
    ranked, order = probs.sort(descending=True)
    size = int((ranked.cumsum(0) < 0.1).sum()) + 1
    nucleus = set(order[:size].tolist())
    rows = [Prompt(ids, seed, 1.0, 0.1, 1) for seed in range(200)]
    assert {s.ids[0] for s in sample(tiny, *rows)} <= nucleus


def test_each_row_is_cut_at_its_own_limit(tiny):
    tokenizer = tiny[1]
    short, long = sample(
        tiny,
        prompt(tokenizer, "print(", seed=3, max_tokens=2),
        prompt(tokenizer, "print(", seed=3, max_tokens=9),
    )
    assert (len(short.ids), short.finished) == (2, False)
    assert short.ids == long.ids[:2]


def test_the_authors_penalties_do_not_change_the_policy(tiny):
    model, tokenizer = tiny
    asked = prompt(tokenizer, "print(print(print(", max_tokens=12)
    (plain,) = sample(tiny, asked)
    model.generation_config.repetition_penalty = 5.0
    model.generation_config.no_repeat_ngram_size = 1
    try:
        assert sample(tiny, asked) == [plain]
        assert model.generation_config.repetition_penalty == 5.0
    finally:
        model.generation_config.repetition_penalty = None
        model.generation_config.no_repeat_ngram_size = None


def test_the_model_is_left_in_the_mode_it_was_in(tiny):
    model, tokenizer = tiny
    for training in (True, False):
        model.train(training)
        sample(tiny, prompt(tokenizer, "x", max_tokens=1))
        assert model.training is training


async def test_the_actor_answers_with_a_message_and_its_tokens(tiny):
    model, tokenizer = tiny
    actor = GeneratingActor(model, tokenizer, "tiny", wait=1.0, most=8)
    actor.version = 3
    with actor.attend():
        message, turn = await actor.act(
            Request(TASK, TASK.messages, (), Sampling(max_tokens=5), seed=1)
        )
    assert message["role"] == "assistant"
    assert list(turn.prompt_ids) == chat.prompt_ids(tokenizer, TASK.messages, (), [])
    assert len(turn.completion_ids) == len(turn.logprobs) == turn.usage.completion_tokens
    assert turn.policy_version == 3
    assert turn.finish_reason == ("length" if len(turn.completion_ids) == 5 else "stop")


async def test_prompt_and_answer_together_are_bounded(tiny):
    model, tokenizer = tiny
    actor = GeneratingActor(model, tokenizer, "tiny", wait=1.0, most=8)
    used = len(chat.prompt_ids(tokenizer, TASK.messages, (), []))

    async def ask(total):
        sampling = Sampling(max_tokens=50, max_total_tokens=total)
        return await actor.act(Request(TASK, TASK.messages, (), sampling, seed=1))

    _, turn = await ask(used + 3)
    assert (len(turn.completion_ids), turn.finish_reason) == (3, "trajectory_length")
    with pytest.raises(TrajectoryTooLong):
        await ask(used)


async def test_a_prompt_that_does_not_fit_is_a_context_overflow(tiny):
    actor = GeneratingActor(*tiny, "tiny", wait=1.0, most=8)
    messages = ({"role": "user", "content": "x" * 2000},)
    with pytest.raises(ContextOverflow, match="takes 512"):
        await actor.act(Request(TASK, messages, (), Sampling(), seed=1))
