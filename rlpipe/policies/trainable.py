"""The model in training: which one it is, and how a backend in this process loads it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlpipe import hub
from rlpipe.errors import Finding, RunError
from rlpipe.policies.base import Policy


class Trainable(Policy):
    """The model in training, which the backend serves."""

    kind: Literal["trainable"] = "trainable"
    in_training: ClassVar[bool] = True

    model: str = Field(min_length=1)
    """Its name on the Hugging Face hub, or a local folder."""

    revision: str | None = None
    """Commit, tag or branch on the hub; null is the newest."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the weights; `auto` is the one that they are stored in."""

    chat_template: str | None = None
    """Path of a Jinja file that replaces the model's own chat template."""

    max_length: int | None = Field(None, ge=1)
    """Tokens of a conversation; null is what the model was made for."""

    def check(self) -> list[Finding]:
        findings = super().check()
        if _is_path(self.model) and not Path(self.model).expanduser().is_dir():
            findings.append(Finding("model", f"there is no folder {self.model!r}"))
        if self.chat_template and not Path(self.chat_template).expanduser().is_file():
            problem = f"there is no file {self.chat_template!r}"
            findings.append(Finding("chat_template", problem))
        return findings

    def check_online(self) -> list[Finding]:
        if _is_path(self.model):
            return []
        said = hub.problem("model", self.model, self.revision)
        return [Finding("model", said)] if said else []

    def load(self, seed: int) -> tuple[Any, Any]:
        """Load the weights and the tokenizer, from the hub unless they are here.

        Raises:
            RunError: they cannot be had, or there is no chat template.
        """
        from transformers import AutoModelForCausalLM

        tokenizer = self.load_tokenizer()
        with self._loading("the model"):
            model = AutoModelForCausalLM.from_pretrained(
                self._source(), revision=self.revision, dtype=self.dtype
            )
        return model, tokenizer

    def load_tokenizer(self) -> Any:
        """Load the tokenizer alone.

        Raises:
            RunError: it cannot be had, or there is no chat template.
        """
        from transformers import AutoTokenizer

        with self._loading("the tokenizer of"):
            tokenizer = AutoTokenizer.from_pretrained(self._source(), revision=self.revision)
        self._fit(tokenizer)
        return tokenizer

    def _source(self) -> str:
        return str(Path(self.model).expanduser()) if _is_path(self.model) else self.model

    @contextmanager
    def _loading(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, ImportError) as error:
            raise RunError(f"{what} {self.model!r} cannot be loaded: {error}") from error

    def _fit(self, tokenizer: Any) -> None:
        """Set up a tokenizer for batches of conversations."""
        if self.chat_template:
            tokenizer.chat_template = Path(self.chat_template).expanduser().read_text("utf-8")
        if not tokenizer.chat_template:
            raise RunError(f"the model {self.model!r} has no chat template; set chat_template")
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        if self.max_length:
            tokenizer.model_max_length = self.max_length
        tokenizer.padding_side = "left"  # An answer is generated right after its prompt.


def _is_path(model: str) -> bool:
    """Whether a model is meant as a folder: `owner/name` is a hub name unless `owner` is here."""
    if model.startswith((".", "/", "~")) or model.count(os.sep) > 1:
        return True
    return os.sep in model and Path(model).parent.is_dir()
