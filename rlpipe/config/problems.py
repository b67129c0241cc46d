"""What pydantic refused, said in the user's words: one finding for every key that is wrong."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from rlpipe.component import kinds, lookup
from rlpipe.config.schema import PACKAGES, Experiment
from rlpipe.errors import Finding, did_you_mean

ELSEWHERE = {
    "num_generations": "train.group_size",
    "trajectories_per_problem": "train.group_size",
    "trajectories_per_group": "train.group_size",
    "rollouts_per_example": "train.group_size",
    "groups_per_step": "train.groups_per_batch",
    "batch_size": "train.groups_per_batch",
    "num_steps": "train.steps",
    "max_steps": "train.steps",
    "rollout.max_steps": "rollout.max_turns",
    "num_train_steps": "train.steps",
    "num_train_epochs": "train.steps",
    "eval_steps": "train.eval_every",
    "save_steps": "train.save_every",
    "num_generations_per_prompt": "train.group_size",
    "per_device_train_batch_size": "train.groups_per_batch",
    "lr": "train.learning_rate",
    "kl_coef": "train.beta",
    "kl_penalty_coef": "train.beta",
    "clip_range": "train.epsilon",
    "loss_type": "train.loss_fn",
    "lora_r": "train.lora_rank",
    "max_completion_length": "rollout.max_tokens",
    "max_new_tokens": "rollout.max_tokens",
    "max_response_length": "rollout.max_tokens",
    "max_tool_calling_iterations": "rollout.max_tool_calls",
    "max_concurrent": "rollout.concurrency",
    "max_tool_output": "tools.<name>.max_output",
    "timeout_seconds": "tools.<name>.timeout",
    "sandbox.timeout_seconds": "sandbox.exec_timeout",
    "rollout.timeout_seconds": "rollout.timeout",
    "reward.timeout_seconds": "reward.timeout",
    "num_problems": "dataset.limit",
    "system_prompt": "dataset.system",
    "container_image": "sandbox.image",
    "max_lifetime_seconds": "sandbox.lifetime",
    "model_name_or_path": "policy.model",
    "base_model": "policy.model",
    "inference_model": "teacher.model",
    ".model": "teacher.model, or policy.model for the one in training",
    ".base_url": "teacher.base_url",
    ".learning_rate": "train.learning_rate",
    ".project": "name",
    ".run_name": "hydra.run.dir",
    "report_to": "tracker",
}
"""Names that other tools use, and what they are called here. One with a section is meant in that
section alone, and one with a dot before it outside of all."""

Origin = Callable[[str], str]
"""Tells where the value of a key came from; empty where that is unknown."""


@dataclass(frozen=True, slots=True)
class _Problem:
    """One complaint, at a key that the user can find in the tree."""

    path: tuple[str, ...]
    item: ErrorDetails
    branch: bool
    """Whether it is about one alternative of a union; pydantic names those in its paths."""

    @property
    def key(self) -> str:
        return ".".join(self.path)


def findings_of(
    items: Sequence[ErrorDetails], tree: Mapping[str, Any], origin: Origin
) -> list[Finding]:
    """One finding for every wrong key, in the order of the tree."""
    problems = _once([_located(item, tree) for item in items])
    merged: dict[str, Finding] = {}
    for problem in problems:
        finding = _finding(problem, tree, origin)
        before = merged.get(finding.key)
        merged[finding.key] = _both(before, finding) if before else finding
    return list(merged.values())


def _located(item: ErrorDetails, tree: Mapping[str, Any]) -> _Problem:
    """Follow a path of pydantic's through the tree, and leave out what is not in there."""
    path: list[str] = []
    node: Any = tree
    absent = item["loc"][-1] if item["type"] == "missing" else None
    for part in item["loc"]:
        if isinstance(node, Mapping) and str(part) in node:
            node = node[str(part)]
        elif isinstance(node, Sequence) and not isinstance(node, str) and isinstance(part, int):
            node = node[part]
        elif part != absent:
            continue
        path.append(str(part))
    return _Problem(tuple(path), item, branch=len(path) < len(item["loc"]))


def _once(problems: Sequence[_Problem]) -> list[_Problem]:
    """Leave out what follows from another problem.

    Without a kind none of a component's options is known. And where an alternative of a union was
    meant, as a problem inside it shows, it does not matter that the value is no other one.
    """
    kindless = [problem.path[:-1] for problem in problems if _lacks_kind(problem)]
    inner = [problem.path for problem in problems if problem.branch]

    def follows(problem: _Problem) -> bool:
        if any(problem.path[: len(owner)] == owner for owner in kindless):
            return not _lacks_kind(problem)
        depth = len(problem.path)
        return problem.branch and any(len(p) > depth and p[:depth] == problem.path for p in inner)

    return [problem for problem in problems if not follows(problem)]


def _lacks_kind(problem: _Problem) -> bool:
    *owner, name = problem.path
    wrong = problem.item["type"] in ("missing", "string_type")
    return wrong and name == "kind" and len(owner) > 0 and len(owner) == _depth(owner)


def _both(first: Finding, second: Finding) -> Finding:
    """Two alternatives of which neither fits are one problem."""
    if second.problem in first.problem:
        return first
    return Finding(first.key, f"{first.problem}; or: {second.problem}", first.origin)


def _finding(problem: _Problem, tree: Mapping[str, Any], origin: Origin) -> Finding:
    key, item = problem.key, problem.item
    owner = ".".join(problem.path[:-1])
    if item["type"] == "extra_forbidden":
        return Finding(key, _unknown(problem, tree), origin(key))
    if item["type"] == "missing":
        if _lacks_kind(problem):
            return Finding(owner, _unchosen(owner), origin(owner))
        return Finding(key, f"required; set it in a recipe or as {key}=...", origin(owner))
    if _lacks_kind(problem):
        known = kinds(PACKAGES[problem.path[0]])
        said = f"takes one of {', '.join(known)} (got {item['input']!r})"
        return Finding(key, said, origin(key))
    message = item["msg"].removeprefix("Value error, ")
    if isinstance(item["input"], Mapping | Sequence) and not isinstance(item["input"], str):
        return Finding(key, message, origin(key))
    return Finding(key, f"{message} (got {item['input']!r})", origin(key))


def _unknown(problem: _Problem, tree: Mapping[str, Any]) -> str:
    """The sentence for a key that nothing takes, with the nearest right name."""
    *parents, word = problem.path
    owner = "no such option"
    component = _component(problem.path, tree)
    if component is not None:
        owner += f" of {parents[0]} {component['kind']!r}"
    known = _options(parents, component)
    if ours := renamed(word, parents[0] if parents else ""):
        return f"{owner}; here it is called {ours}"
    settable = ", ".join(sorted(known - {"kind"}))
    if component is not None and not settable:
        return f"{owner}; it has none"
    return owner + (did_you_mean(word, known) or (f" (it has: {settable})" if settable else ""))


def renamed(word: str, section: str = "") -> str | None:
    """What a name that other tools use is called here."""
    return ELSEWHERE.get(f"{section}.{word}") or ELSEWHERE.get(word)


def _unchosen(owner: str) -> str:
    """The sentence for options of a component that no file was chosen for."""
    group, _, name = owner.partition(".")
    choice = f"{group}=[...,{name}]" if name else f"{group}=..."
    return f"options are set, but it is not chosen; choose it with {choice}"


def _component(path: Sequence[str], tree: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The component that a key lies in, if its kind is known."""
    depth = _depth(path)
    node: Any = tree
    for part in path[:depth]:
        node = node.get(part) if isinstance(node, Mapping) else None
    if depth == 0 or len(path) <= depth or not isinstance(node, Mapping):
        return None
    return node if node.get("kind") in kinds(PACKAGES[path[0]]) else None


def _depth(path: Sequence[str]) -> int:
    """How many parts of a key name the component: `train` one, `tools.bash` two."""
    if path[0] not in PACKAGES:
        return 0
    return 2 if path[0] in ("tools", "tracker") else 1


def _options(parents: Sequence[str], component: Mapping[str, Any] | None) -> set[str]:
    """What may stand in a section, which lies at any depth of a component or of the spec."""
    models: list[type[BaseModel]] = [Experiment]
    rest = list(parents)
    if component is not None:
        models = [lookup(PACKAGES[parents[0]], component["kind"])]
        rest = rest[_depth(parents) :]
    elif parents and parents[0] in PACKAGES:
        return set()
    for name in (part for part in rest if not part.isdigit()):
        fields = [model.model_fields[name] for model in models if name in model.model_fields]
        if fields:  # else it is a key of a mapping, whose values these models are of
            models = [found for field in fields for found in _models(field.annotation)]
    return {name for model in models for name in model.model_fields}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)
