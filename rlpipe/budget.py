"""What a run may cost at most, from its spec and the prices of its models."""

from collections.abc import Iterator

from rlpipe.config.schema import Experiment
from rlpipe.fit import Plan, models
from rlpipe.spending import MILLION, Price, Role


def lines(experiment: Experiment, plan: Plan) -> Iterator[str]:
    """For the dry run; nothing where no model has a price.

    Upper bounds without retries: every answer as long as it may be, and every prompt as long as the
    whole conversation may be, none of it cached. A prompt whose length nothing bounds is left out,
    and the line says so. Of a judge only the answers are bounded.
    """
    if experiment.prices:
        for role, policy, answers in models(experiment):
            price, rollouts = experiment.prices.get(policy.name), _rollouts(plan, role)
            if price is None:
                said = "no price, counts as free"
            elif rollouts is None:
                said = "grows with the data set"
            else:
                said = _bound(experiment, role, rollouts, answers, price)
            yield f"{f'cost, {role}':<15} {said} ({policy.name})"
    reached = [f"{name}={value:g}" for name, value in experiment.limits if value is not None]
    if reached:
        yield f"{'ends early at':<15} {', '.join(reached)}"


def _bound(experiment: Experiment, role: Role, rollouts: int, answers: int, price: Price) -> str:
    rollout = experiment.rollout
    whole = None if role == "judge" else getattr(rollout, "max_trajectory_tokens", None)
    written = rollouts * answers * price.output / MILLION
    if whole is None:
        hint = "" if role == "judge" else "; rollout.max_trajectory_tokens would bound those"
        return f"at most {written:,.2f} without prompts{hint}"
    read = rollouts * rollout.max_model_calls() * whole * price.input / MILLION
    return f"at most {written + read:,.2f}, of which {read:,.2f} for prompts"


def _rollouts(plan: Plan, role: Role) -> int | None:
    """Those that the role takes part in; a judge may judge all."""
    if plan.rollouts is None or role == "judge" or not plan.steps:
        return plan.rollouts
    return plan.demonstrations if role == "teacher" else plan.rollouts - plan.demonstrations
