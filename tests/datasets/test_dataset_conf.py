"""The files in conf/dataset show every option of their data set, with its default."""

from pathlib import Path

import pytest
import yaml

from rlpipe.component import lookup

FOLDER = Path(__file__).parents[2] / "conf" / "dataset"
NOT_THE_DEFAULT = {"mbpp_sanitized": {"subset": "sanitized"}, "jsonl": {"path": "???"}}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_option_is_shown_with_its_default(path):
    shown = yaml.safe_load(path.read_text())
    changed = NOT_THE_DEFAULT.get(path.stem, {})
    component = lookup("datasets", shown["kind"]).model_validate({**shown, **changed})
    assert next(iter(shown)) == "kind"
    assert set(shown) == set(type(component).model_fields)
    for name, field in type(component).model_fields.items():
        if name in changed:
            assert shown[name] == changed[name]
        else:
            assert getattr(component, name) == field.default, name
