"""A trainer of TRL or transformers in a thread of its own, step by step beside the run's loop.

A checkpoint of it holds the weights, the tokenizer, and what the trainer needs to go on as if it
had never stopped: optimizer, schedule, position and random states. Only imported when a run trains.
"""

import asyncio
import copy
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from transformers import PrinterCallback, ProgressCallback, TrainerCallback  # noqa: TID253

from rlpipe.backends.base import Job
from rlpipe.checkpoints import Checkpoint
from rlpipe.errors import RunError
from rlpipe.policies.base import Actor

Result = TypeVar("Result")

STATE = "trainer_state.json"


class Steps(TrainerCallback):  # type: ignore[misc]
    """Tells the run of every step, evaluates and saves when it is time; and runs the trainer."""

    def __init__(self, job: Job, actor: Actor, model: Any, tokenizer: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._job = job
        self._actor = actor
        self._model = model
        self._tokenizer = tokenizer
        self._trainer: Any = None
        self._waiting: Any = None
        self._stopped = False
        self._saved = job.resume.step if job.resume else 0
        self.idle = False
        """Whether no group of this step can teach anything."""

        self.more: dict[str, float] = {}
        """Figures of this step that the trainer does not log."""

    async def run(self, trainer: Any) -> None:
        """Train to the end; where the run is cancelled, save what was learned until then."""
        self._trainer = trainer
        thread = asyncio.ensure_future(asyncio.to_thread(run_trainer, trainer, self._job.resume))
        try:
            await asyncio.shield(thread)
        except asyncio.CancelledError:
            self._stopped = True
            if self._waiting:
                self._waiting.cancel()
            await asyncio.wait([thread])  # which ends at its next question, or with its step
            if not thread.cancelled():
                thread.exception()
            if trainer.state.global_step > self._saved:
                self._save(trainer.state.global_step)
            raise

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait, in the trainer's thread, for work on the run's event loop.

        Raises:
            RunError: the run is being stopped.
        """
        if self._stopped:
            work.close()
            raise RunError("the run is being stopped")
        self._waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        result: Result = self._waiting.result()
        return result

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, *, model: Any, **_: Any
    ) -> None:
        if self.idle:
            # With gradients of zero, momentum and weight decay would still move the weights.
            for parameter in model.parameters():
                parameter.grad = None

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any
    ) -> None:
        if "loss" not in logs:
            return  # the summary of the whole training
        step, train = state.global_step, self._job.train
        self._actor.version = step
        figures = _figures(logs) | self.more | {"train/skipped": float(self.idle)}
        finishing = asyncio.run_coroutine_threadsafe(self._finish(step, figures), self._loop)
        over_limit = finishing.result()
        if over_limit:
            control.should_training_stop = True
        last = step == train.steps
        if last or (not over_limit and train.eval_every and step % train.eval_every == 0):
            self.wait(self._job.evaluate(self._actor, step))
        if last or over_limit or (train.save_every and step % train.save_every == 0):
            self._save(step)

    async def _finish(self, step: int, figures: Mapping[str, float]) -> bool:
        return self._job.finish_step(step, figures)

    def _save(self, step: int) -> None:
        with self._job.checkpoint(step) as folder:
            save(self._model, self._tokenizer, folder)
            self._trainer._save_optimizer_and_scheduler(str(folder))
            self._trainer._save_rng_state(str(folder))
            self._trainer.state.save_to_json(str(folder / STATE))
        self._saved = step


def run_trainer(trainer: Any, resume: Checkpoint | None = None) -> None:
    """Train; the weights of a checkpoint to go on from are in the model already. Blocks."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    if resume is None or not (resume.folder / STATE).is_file():
        trainer.train()
        return
    trainer._load_from_checkpoint = lambda *_, **__: None
    trainer.train(resume_from_checkpoint=str(resume.folder))


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write weights and tokenizer as transformers loads them; adapters merged, and alone too."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # one bar for every checkpoint would cover our own lines
    if hasattr(model, "merge_and_unload"):
        model.save_pretrained(folder / "adapter")
        model = copy.deepcopy(model).merge_and_unload()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def restore(model: Any, folder: Path) -> None:
    """Give a model, or its adapter, the weights that `save` wrote."""
    if hasattr(model, "merge_and_unload"):
        from peft import load_peft_weights, set_peft_model_state_dict

        set_peft_model_state_dict(model, load_peft_weights(str(folder / "adapter")))
        return
    saved = type(model).from_pretrained(folder, dtype="auto")
    model.load_state_dict(saved.state_dict())


_SHOWN = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "entropy": "train/entropy",
    "kl": "train/kl",
    "clip_ratio/region_mean": "train/clip_ratio",
}


def _figures(logs: Mapping[str, Any]) -> dict[str, float]:
    return {ours: float(logs[theirs]) for theirs, ours in _SHOWN.items() if theirs in logs}
