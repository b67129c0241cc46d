"""Losses of a Tinker service: which one is asked for, and what it wants of a row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinker import types  # noqa: TID253

from rlpipe.backends._examples import Example
from rlpipe.backends._tinker_actor import settled
from rlpipe.backends._tinker_failures import failing
from rlpipe.train.base import Train
from rlpipe.train.grpo import Grpo
from rlpipe.train.sft import Sft

if TYPE_CHECKING:  # tinker.py imports this module only for use
    from rlpipe.backends.tinker import Tinker

CLIPPED = ("ppo", "cispo")


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss as the service names it, with its options."""

    name: str
    config: Mapping[str, float] | None = None


IMITATION = Loss("cross_entropy")
AT_RATIO_ONE = Loss("importance_sampling")


def chosen(backend: "Tinker", train: Train) -> Loss:
    """The loss of these settings."""
    if isinstance(train, Sft):
        return IMITATION
    if not isinstance(train, Grpo):
        return AT_RATIO_ONE
    name = backend.loss_fn(train)
    if name not in CLIPPED:
        return Loss(name)
    low, high = max(0.0, 1 - train.epsilon), 1 + train.epsilon
    return Loss(name, {"clip_low_threshold": low, "clip_high_threshold": high})


def datum(row: Example, loss: Loss) -> Any:
    """A row in the SDK's form: losses that compare with the sampler want its log-probabilities."""
    inputs: dict[str, Any] = {"target_tokens": row.targets}
    if loss == IMITATION:
        inputs["weights"] = row.weights
    else:
        inputs |= {"logprobs": list(row.logprobs), "advantages": row.weights}
    return types.Datum(model_input=types.ModelInput.from_ints(row.inputs), loss_fn_inputs=inputs)


async def try_out(client: Any, loss: Loss) -> None:
    """Ask for the loss of two tokens, which changes nothing.

    Raises:
        RunError: the service refuses it.
    """
    row = Example((0, 0), (True,), (0.0,), 1.0)
    with failing(f"the service refuses train.loss_fn={loss.name}"):
        await settled(client.forward([datum(row, loss)], loss.name, loss.config))
