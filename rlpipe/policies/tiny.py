"""A model of half a million parameters and its tokenizer, both made on the spot."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from rlpipe.policies.base import Policy

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
)
MARKUP = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<answer>",
    "</answer>",
)
"""Added as plain tokens: special ones would vanish when a text is decoded."""


class Tiny(Policy):
    """A Qwen3-architecture model with random weights, for runs without download or GPU."""

    in_training: ClassVar[bool] = True
    extra: ClassVar[str | None] = "trl"
    needs: ClassVar[tuple[str, ...]] = ("torch", "transformers", "trl")

    kind: Literal["tiny"] = "tiny"
    hidden_size: int = Field(128, ge=16)
    layers: int = Field(2, ge=1)
    heads: int = Field(4, ge=1, validate_default=True)
    intermediate_size: int = Field(384, ge=16)
    vocabulary: int = Field(400, ge=300)
    """Tokens at most; the first 256 are the bytes."""

    context: int = Field(4096, ge=64)
    """Positions."""

    @field_validator("heads")
    @classmethod
    def _splits_the_hidden_size(cls, heads: int, info: ValidationInfo) -> int:
        """Rotary positions turn the numbers of a head in pairs, so a head's size is even."""
        size = info.data.get("hidden_size")  # absent where it is wrong itself
        if size is not None and size % (2 * heads):
            raise ValueError(f"hidden_size={size} is no multiple of twice the heads")
        return heads

    def load(self, seed: int) -> tuple[Any, Any]:
        """Make the model and its tokenizer; the same seed gives the same weights."""
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        tokenizer = _tokenizer(self.vocabulary)
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            head_dim=self.hidden_size // self.heads,
            max_position_embeddings=self.context,
            tie_word_embeddings=True,
            # Three times the usual spread, and a short rotary base for short conversations:
            # so small a model then learns to copy numbers within a few hundred steps.
            initializer_range=0.06,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        return Qwen3ForCausalLM(config), tokenizer


def _tokenizer(vocabulary: int) -> Any:
    """A byte-level BPE with single digits, trained on words that code tasks are made of."""
    from importlib.resources import files

    from tokenizers import (
        AddedToken,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_corpus(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
    )
    template = files("trl") / "chat_templates" / "qwen3_instruct_2507.jinja"
    tokenizer.chat_template = template.read_text()
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in MARKUP])
    return tokenizer


def _corpus() -> Iterator[str]:
    phrases = ("the sum of", "the product of", "the difference of", "the larger of")
    for phrase in phrases:
        yield f"system\nuser\nWrite Python that prints {phrase} 17 and 25.\nassistant\n"
    for code in ("17 + 25", "17 * 25", "17 - 25", "max(17, 25)", "min(17, 25)"):
        yield f"print({code})"
