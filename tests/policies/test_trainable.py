"""The model in training: what can be told about it before anything is loaded."""

import shutil

import pytest
from pydantic import ValidationError

from rlpipe.errors import RunError
from rlpipe.policies.tiny import Tiny
from rlpipe.policies.trainable import Trainable


def keys(**options):
    return [finding.key for finding in Trainable(**options).check()]


def test_it_is_the_one_in_training():
    assert Trainable.in_training


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "gpt2"])
def test_a_name_on_the_hub(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert keys(model=model) == []


@pytest.mark.parametrize("model", ["./nope", "../nope", "/nope", "~/nope", "a/b/c", "models/nope"])
def test_a_folder_that_is_not_there(model, tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    assert keys(model=model) == ["model"]


@pytest.mark.parametrize("model", ["./models/mine", "models/mine", "~/models/mine"])
def test_a_folder_that_is_there(model, tmp_path, monkeypatch):
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert keys(model=model) == []


def test_a_chat_template(tmp_path):
    path = tmp_path / "chat.jinja"
    assert keys(model="gpt2", chat_template=str(path)) == ["chat_template"]
    path.write_text("{{ messages }}")
    assert keys(model="gpt2", chat_template=str(path)) == []


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model's folder, as training leaves it."""
    pytest.importorskip("trl")
    folder = tmp_path_factory.mktemp("model")
    for part in Tiny(hidden_size=16, layers=1, heads=1, intermediate_size=16).load(0):
        part.save_pretrained(folder)
    return folder


def test_loading(saved, tmp_path):
    template = tmp_path / "chat.jinja"
    template.write_text("mine")
    policy = Trainable(
        model=str(saved), dtype="bfloat16", chat_template=str(template), max_length=64
    )
    model, tokenizer = policy.load(0)
    assert str(model.dtype) == "torch.bfloat16"
    assert tokenizer.chat_template == "mine"
    assert tokenizer.model_max_length == 64
    assert tokenizer.padding_side == "left"


def test_a_model_without_chat_template(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "bare")
    (tmp_path / "bare" / "chat_template.jinja").unlink()
    with pytest.raises(RunError, match="has no chat template"):
        Trainable(model=str(tmp_path / "bare")).load(0)


def test_a_folder_without_a_model(saved, tmp_path):
    with pytest.raises(RunError, match="cannot be loaded"):
        Trainable(model=str(tmp_path)).load(0)


@pytest.mark.parametrize("options", [{"dtype": "int8"}, {"max_length": 0}, {"model": ""}])
def test_options_out_of_range(options):
    with pytest.raises(ValidationError):
        Trainable(**{"model": "gpt2", **options})
