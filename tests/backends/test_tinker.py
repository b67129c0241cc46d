"""What the tinker backend refuses before anything starts, without the SDK."""

import pytest

import rlpipe
from rlpipe.backends._tinker_checkpoint import FILE, SavedWeights
from rlpipe.backends.tinker import Tinker

SAVED = SavedWeights(
    step=4,
    base_model="Qwen/Qwen3-8B",
    lora_rank=16,
    state="tinker://run/weights/step_4",
    sampler="tinker://run/sampler_weights/step_4",
    saved="2026-01-02T03:04:05Z",
)


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine that has a key, and no other way to one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TINKER_API_KEY", "tml-1")
    for name in ("ART_TINKER_API_KEY", "TINKER_CREDENTIAL_CMD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("rlpipe.component._installed", lambda module: True)
    return monkeypatch


def problems(*overrides):
    base = ("backend=tinker", "policy=qwen3_8b")
    experiment = rlpipe.load_experiment(None, *base, *overrides)
    return {finding.key: finding.problem for finding in rlpipe.check(experiment)}


def test_every_setting_has_a_default_that_works():
    assert problems() == {}
    assert problems("train=sft", "teacher=reference") == {}
    assert problems("train=teacher_grpo", "teacher=reference") == {}


@pytest.mark.parametrize("recipe", ["mbpp_trl"])
def test_a_recipe_of_another_backend_runs_here_by_a_word(recipe):
    experiment = rlpipe.load_experiment(recipe, "backend=tinker")
    assert rlpipe.check(experiment) == []


def test_a_missing_key_is_one_line(machine):
    machine.delenv("TINKER_API_KEY")
    (problem,) = problems().items()
    said = "set the environment variable TINKER_API_KEY (or ART_TINKER_API_KEY)"
    assert problem == ("backend.kind", said)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ART_TINKER_API_KEY", "tml-2\n"), ("TINKER_CREDENTIAL_CMD", "pass show tinker")],
)
def test_a_key_may_come_from_elsewhere(machine, name, value):
    machine.delenv("TINKER_API_KEY")
    machine.setenv(name, value)
    assert problems() == {}


def test_a_key_that_the_sdk_has_stored_is_enough(machine, tmp_path):
    machine.delenv("TINKER_API_KEY")
    (tmp_path / ".tinker").mkdir()
    (tmp_path / ".tinker/credentials.json").write_text("{}")
    assert problems() == {}
    assert Tinker().key() is None


def test_the_services_own_variable_wins_and_line_breaks_are_cut(machine):
    machine.setenv("ART_TINKER_API_KEY", "tml-2")
    machine.setenv("TINKER_API_KEY", "tml-1\n")
    assert Tinker().key() == "tml-1"


def test_a_key_of_another_service_is_named(machine):
    machine.setenv("TINKER_API_KEY", "sk-1")
    assert problems() == {"backend.kind": "TINKER_API_KEY must begin with 'tml-'"}


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (["train.loss_fn=dapo"], "train.loss_fn", "has only: cispo, importance_sampling, ppo"),
        (["train.beta=0.1"], "train.beta", "ignores it"),
        (["train.epsilon=0.3"], "train.epsilon", "'importance_sampling' does not clip"),
        (["policy=tiny"], "policy.kind", "choose policy=trainable"),
        (["policy.dtype=float32"], "policy.dtype", "the service chooses it"),
        (["backend.checkpoint_ttl=60"], "backend.checkpoint_ttl", "3600"),
        (["backend.base_url=localhost:8000"], "backend.base_url", "https?://"),
    ],
)
def test_what_it_would_ignore_or_cannot_do_is_refused(overrides, key, words):
    try:
        found = problems(*overrides)
    except rlpipe.ConfigError as error:
        found = {finding.key: finding.problem for finding in error.findings}
    assert words in found[key]
    assert list(found) == [key]


@pytest.mark.parametrize("loss", ["ppo", "cispo"])
def test_a_loss_that_clips_takes_its_range(loss):
    assert problems(f"train.loss_fn={loss}", "train.epsilon=0.3") == {}


def test_the_default_loss_is_the_backends_own():
    train = rlpipe.load_experiment(None).train
    assert train.loss_fn is None
    assert Tinker().loss_fn(train) == "importance_sampling"
    assert rlpipe.load_experiment(None).backend.loss_fn(train) == "dapo"


def test_a_checkpoint_says_where_the_weights_are_and_is_read_again(tmp_path):
    SAVED.write(tmp_path)
    assert SavedWeights.read(tmp_path) == SAVED
    assert '"state": "tinker://run/weights/step_4"' in (tmp_path / FILE).read_text()


def test_a_broken_checkpoint_says_what_is_missing(tmp_path):
    (tmp_path / FILE).write_text('{"step": 4}')
    with pytest.raises(rlpipe.RunError, match="base_model: Field required"):
        SavedWeights.read(tmp_path)
    with pytest.raises(rlpipe.RunError, match=f"there is no {FILE} in"):
        SavedWeights.read(tmp_path / "elsewhere")
