"""MLflow: a tracking server, or a database of one's own."""

import json
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from rlpipe.trackers.base import Ending, Row, TrackedRun, Tracker, Tracking

LONGEST_PARAM = 6000
"""Characters that MLflow takes in a parameter's value."""

MOST_PARAMS = 100
MOST_METRICS = 1000
"""That it takes in one request."""

STATUSES = {"done": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class Mlflow(Tracker):
    """MLflow, on a tracking server or in a database.

    MLflow takes no `@` in a metric's name: `val/pass@1` is `val/pass_at_1` there.
    """

    extra: ClassVar[str | None] = "mlflow"
    needs: ClassVar[tuple[str, ...]] = ("mlflow",)

    kind: Literal["mlflow"] = "mlflow"
    tracking_uri: str | None = None
    """Such as `http://localhost:5000` or `sqlite:///mlflow.db`; null takes MLFLOW_TRACKING_URI, or
    else MLflow's default. A database needs the packages sqlalchemy and alembic."""

    experiment: str = "rlpipe"
    name: str | None = None
    """What the run is called there; null takes the experiment's name and the run's id."""

    def open(self, run: TrackedRun) -> Tracking:
        from mlflow import MlflowClient

        for library in ("mlflow", "alembic"):  # a new database is announced line by line
            logging.getLogger(library).setLevel(logging.WARNING)
        client = MlflowClient(tracking_uri=self.tracking_uri)
        id = run.recall(self.kind)
        if id:
            client.update_run(id, status="RUNNING")
        else:
            id = self._create(client, run)
            run.keep(self.kind, id)
        return _Run(client, id)

    def _create(self, client: Any, run: TrackedRun) -> str:
        from mlflow.entities import Param

        tags = {"rlpipe.run": run.id, "rlpipe.folder": str(run.folder)}
        if run.group:
            tags["rlpipe.sweep"] = run.group
        place = _experiment_id(client, self.experiment)
        created = client.create_run(place, run_name=self.name or f"{run.name} {run.id}", tags=tags)
        id = str(created.info.run_id)
        params = [Param(named(key), text[:LONGEST_PARAM]) for key, text in flat(run.config)]
        for first in range(0, len(params), MOST_PARAMS):
            client.log_batch(id, params=params[first : first + MOST_PARAMS])
        client.log_dict(id, dict(run.config), "config.json")
        return id


def _experiment_id(client: Any, name: str) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException:  # another run of the sweep was faster
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return str(found.experiment_id)


def named(name: str) -> str:
    """A name that MLflow takes."""
    return re.sub(r"[^\w./ :-]", "_", name.replace("@", "_at_"))


def flat(tree: Mapping[str, Any], owner: str = "") -> Iterator[tuple[str, str]]:
    """Every leaf of a spec with its full key."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{owner}{key}.")
        else:
            yield f"{owner}{key}", value if isinstance(value, str) else json.dumps(value)


class _Run(Tracking):
    def __init__(self, client: Any, id: str) -> None:
        self.where = f"{client.tracking_uri} (run {id})"
        self._client = client
        self._id = id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        rows = [Metric(named(name), value, now, step) for name, value in metrics.items()]
        for first in range(0, len(rows), MOST_METRICS):
            self._client.log_batch(self._id, metrics=rows[first : first + MOST_METRICS])

    def show(self, step: int, phase: str, rows: Sequence[Row]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        self._client.log_text(self._id, text, f"trajectories/{phase}_{step}.jsonl")

    def close(self, ending: Ending) -> None:
        facts = {"status": ending.status, "exit_code": str(ending.exit_code)}
        if ending.message:
            facts["ended"] = ending.message
        for name, value in facts.items():
            self._client.set_tag(self._id, f"rlpipe.{name}", value)
        self._client.set_terminated(self._id, status=STATUSES[ending.status])
