"""The typed experiment: what a composed YAML must turn into."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, field_validator

from rlpipe.backends.base import Backend
from rlpipe.component import Section, Seed, chosen
from rlpipe.datasets.base import Dataset
from rlpipe.policies.base import Policy
from rlpipe.rewards.base import Reward
from rlpipe.rollouts.base import Rollout
from rlpipe.sandboxes.base import SandboxProvider
from rlpipe.spending import Limits, Price
from rlpipe.tools.base import Tool
from rlpipe.trackers.base import Tracker
from rlpipe.train.base import Train

PACKAGES = {
    "dataset": "datasets",
    "policy": "policies",
    "teacher": "policies",
    "tools": "tools",
    "sandbox": "sandboxes",
    "rollout": "rollouts",
    "reward": "rewards",
    "train": "train",
    "backend": "backends",
    "tracker": "trackers",
}
"""Which package a section's components come from."""


class Evaluate(Section):
    """How held-out tasks are evaluated: before and after training, and every `train.eval_every`."""

    greedy: bool = True
    """One greedy rollout of every held-out task: the pass rate `val/pass_rate`."""

    samples: int = Field(0, ge=0)
    """Sampled rollouts of every held-out task, for `val/pass@1` up to `val/pass@<samples>`."""

    temperature: float = Field(1.0, gt=0)
    """Of the sampled rollouts."""

    who: Literal["policy", "teacher"] = "policy"
    """Whom `mode=eval` evaluates; training evaluates its policy."""


class Collect(Section):
    """What `mode=collect` rolls out."""

    tasks: Literal["all", "train", "held_out"] = "all"
    group_size: int = Field(1, ge=1)
    """Rollouts of one task."""

    who: Literal["policy", "teacher"] = "policy"
    """Who solves the tasks."""

    each: bool = False
    """Print a line for every rollout as it ends, and all of them in order at the end."""


class Shown(Section):
    """What is printed while a run trains, besides the line of every step."""

    reward_calls: bool = False
    """Print a line for each step's rewards: how many answers were run, passed, or held no code."""


class Experiment(Section):
    """One experiment: everything that a run is made of."""

    name: str = Field(pattern=r"^[\w.+-]+$")
    seed: Seed = 0
    mode: Literal["train", "collect", "eval"] = "train"
    dry_run: bool | Literal["online"] = False
    resume: Literal["never", "auto"] = "never"
    """`auto` goes on with the run that `hydra.run.dir` holds, if there is one: for jobs that a
    cluster stops and starts again."""

    output_root: str = "outputs"
    objective: str = "val/pass_rate"
    """The metric whose last value a sweeper is given to optimise."""

    dataset: Annotated[SerializeAsAny[Dataset], chosen("datasets")]
    policy: Annotated[SerializeAsAny[Policy], chosen("policies")]
    teacher: Annotated[SerializeAsAny[Policy], chosen("policies")] | None = None
    tools: dict[str, Annotated[SerializeAsAny[Tool], chosen("tools")]] = Field({})
    sandbox: Annotated[SerializeAsAny[SandboxProvider], chosen("sandboxes")]
    rollout: Annotated[SerializeAsAny[Rollout], chosen("rollouts")]
    reward: Annotated[SerializeAsAny[Reward], chosen("rewards")]
    train: Annotated[SerializeAsAny[Train], chosen("train")]
    backend: Annotated[SerializeAsAny[Backend], chosen("backends")]
    tracker: dict[str, Annotated[SerializeAsAny[Tracker], chosen("trackers")]] = Field({})
    prices: dict[str, Price] = Field({})
    """What a model's tokens cost, by the model's name, as teacher, judge or policy alike."""

    limits: Limits = Limits()
    evaluate: Evaluate = Evaluate()
    collect: Collect = Collect()
    console: Shown = Shown()

    @field_validator("teacher", mode="before")
    @classmethod
    def _none_is_an_empty_choice(cls, value: Any) -> Any:
        """`teacher=none` chooses an empty file, since a choice is always a mapping."""
        return None if value == {} else value

    def components(self) -> dict[str, Any]:
        """Every component by its key path, such as `tools.bash`."""
        named = {key: getattr(self, key) for key in PACKAGES if key not in ("tools", "tracker")}
        named |= {f"tools.{name}": tool for name, tool in self.tools.items()}
        named |= {f"tracker.{name}": tracker for name, tracker in self.tracker.items()}
        return {key: part for key, part in named.items() if part is not None}
