"""A checkpoint at a Tinker service, as the run's folder remembers it."""

from pathlib import Path

from pydantic import ValidationError

from rlpipe.errors import RunError
from rlpipe.types import Data

FILE = "tinker.json"


class SavedWeights(Data):
    """Where the weights of a checkpoint are."""

    step: int
    """Optimizer steps of the run that the weights have seen."""

    base_model: str
    lora_rank: int
    state: str
    """`tinker://` path of weights and optimizer: training goes on from it."""

    sampler: str
    """`tinker://` path of the weights as the service samples from them."""

    saved: str
    """Time, in ISO 8601."""

    expires: str | None = None
    """When the service deletes it; null for never."""

    def write(self, folder: Path) -> None:
        (folder / FILE).write_text(self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "SavedWeights":
        """What a folder such as `checkpoints/step_20` remembers.

        Raises:
            RunError: there is none, or it cannot be read.
        """
        try:
            return cls.model_validate_json((folder / FILE).read_bytes())
        except OSError as error:
            raise RunError(f"there is no {FILE} in {str(folder)!r}") from error
        except ValidationError as error:
            what = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise RunError(f"{folder / FILE} is no checkpoint ({what})") from error
