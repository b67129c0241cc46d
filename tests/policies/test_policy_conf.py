"""The files in conf/policy and conf/teacher show every option of their kind, with its default."""

from pathlib import Path

import pytest
import yaml

from rlpipe.component import lookup

CONF = Path(__file__).parents[2] / "conf"
FILES = [
    *(CONF / "policy" / f"{name}.yaml" for name in ("openai", "qwen3_8b", "trainable")),
    *(CONF / "teacher" / f"{name}.yaml" for name in ("compatible", "openai")),
    *(
        CONF / group / f"{name}.yaml"
        for group in ("policy", "teacher")
        for name in ("reference", "scripted")
    ),
]
CHANGED = {
    "policy/openai": {"model": "???"},
    "policy/qwen3_8b": {"model": "Qwen/Qwen3-8B"},
    "policy/trainable": {"model": "???"},
    "teacher/compatible": {"model": "???", "base_url": "???"},
    "teacher/openai": {
        "model": "gpt-5.1-codex-mini",
        "api": "responses",
        "send_temperature": False,
        "max_tokens_field": "max_completion_tokens",
    },
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_option_is_shown_with_its_default(path):
    shown = yaml.safe_load(path.read_text())
    changed = CHANGED.get(f"{path.parent.name}/{path.stem}", {})
    kind = lookup("policies", shown["kind"])
    assert next(iter(shown)) == "kind"
    assert shown.keys() == kind.model_fields.keys()
    kind.model_validate({**shown, **({"base_url": None} if shown.get("base_url") == "???" else {})})
    defaults = kind.model_validate({"model": "m"} if "model" in shown else {}).model_dump(
        mode="json"
    )
    assert shown == {**defaults, **changed}
