"""A tiny Qwen3 model with a habit worth training: it looks into one of four files by chance.

    python -m tests.tinker.model FOLDER

Fine-tuned on the spot on dialogues in which a file is read, or the key is guessed, at random. RL
then has something to improve: the key is always in the file `blue`.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlpipe.chat import IGNORED, supervised_rows
from rlpipe.policies.tiny import MARKUP, Tiny
from rlpipe.tools.read_file import ReadFile
from rlpipe.types import StopReason, Trajectory
from tests.tinker.task import FILES, KEPT_IN, QUESTION

TOOLS = (ReadFile().function("read_file"),)
LOOKS = 0.75
"""Share of the dialogues in which a file is read."""

WEIGHTS = [1 if name == KEPT_IN else 2 for name in FILES]
"""How often each file is: the right one is what the model likes least."""

STEPS = 300
BATCH = 8
RATE = 6e-3


def make(folder: Path, steps: int = STEPS) -> None:
    """Write the model and its tokenizer as transformers loads them."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = _tokenizer()
    model = _model(tokenizer)
    _fine_tune(model, tokenizer, steps)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer() -> Any:
    """The tiny policy's, with the words of these dialogues merged: short prompts run faster."""
    _, general = Tiny(hidden_size=16, layers=1, heads=1).load(0)
    rng = random.Random(1)
    texts = [
        general.apply_chat_template(list(t.messages), tools=list(t.tools), tokenize=False)
        for t in (_any_dialogue(rng) for _ in range(200))
    ]
    tokenizer = general.train_new_from_iterator(texts, 500, show_progress=False)
    tokenizer.chat_template = general.chat_template
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in MARKUP])
    return tokenizer


def _model(tokenizer: Any) -> Any:
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config).float()
    with torch.no_grad():
        # Adapters leave the unembedding alone, so the hidden state must be able to tell every
        # token from every other one: their rows have to lie far apart.
        model.lm_head.weight.normal_(0, 0.3)
        model.model.embed_tokens.weight.normal_(0, 0.3)
    return model


def dialogue(file: str | None, digit: str) -> Trajectory:
    """One conversation: the file is read, or none, and a digit is named."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    if file:
        function = {"name": "read_file", "arguments": json.dumps({"path": file})}
        call = {"id": "call_0", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": "call_0", "content": digit})
    messages.append({"role": "assistant", "content": f"done {digit}"})
    return Trajectory(
        rollout_id="d",
        group_id="d",
        task_id="d",
        messages=tuple(messages),
        tools=TOOLS,
        stop_reason=StopReason.FINAL_ANSWER,
    )


def _any_dialogue(rng: random.Random) -> Trajectory:
    digit = str(rng.randint(0, 9))
    (file,) = rng.choices(FILES, WEIGHTS)
    return dialogue(file if rng.random() < LOOKS else None, digit)


def _fine_tune(model: Any, tokenizer: Any, steps: int) -> None:
    rng = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    for step in range(steps):
        rows = [row for _ in range(BATCH) for row in supervised_rows(tokenizer, _any_dialogue(rng))]
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows])
        labels = torch.tensor([said + [IGNORED] * (width - len(said)) for _, said in rows])
        # The padding stands behind what attends, so no mask is needed.
        loss = model(input_ids=ids, labels=labels).loss
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 20) * (1 - step / steps) + 1e-5
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
