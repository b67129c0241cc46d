"""Starts SkyRL's Tinker-compatible server, a little changed, for newer versions of the SDK.

    python launcher.py --base-model FOLDER --backend jax ... --port N

Takes the options of `python -m skyrl.tinker.api`. Runs in the server's environment, and reaches
into skyrl 0.4.0, so that version is pinned.
"""

import argparse
import sys
from typing import Any

import uvicorn
from skyrl.tinker import api
from skyrl.tinker.config import EngineConfig, add_model, config_to_argv

SAMPLE = "/api/v1/asample"


def engine_command(parent: list[str], config: EngineConfig) -> list[str]:
    """The engine under this interpreter, where the server would ask `uv` for another one."""
    return [sys.executable, "-m", "skyrl.tinker.engine", *config_to_argv(config)]


class SampleFuture(api.FutureResponse):
    """The promise of samples as SDKs from 0.26 want it: with an id for every sequence."""

    sample_sequence_ids: list[str]


def promise_ids() -> None:
    """Let the server's own endpoint answer, and add the ids."""
    (route,) = (r for r in api.app.router.routes if getattr(r, "path", None) == SAMPLE)
    original: Any = route.endpoint
    api.app.router.routes.remove(route)

    @api.app.post(SAMPLE, response_model=SampleFuture)
    async def asample(
        request: api.SampleRequest,
        req: api.Request,
        session: api.AsyncSession = api.Depends(api.get_session),  # noqa: B008
    ) -> SampleFuture:
        promise = await original(request, req, session)
        ids = [f"{promise.request_id}-{number}" for number in range(request.num_samples)]
        return SampleFuture(**promise.model_dump(), sample_sequence_ids=ids)


def main() -> None:
    api._build_uv_run_cmd_engine = engine_command
    promise_ids()
    parser = argparse.ArgumentParser()
    add_model(parser, EngineConfig)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    chosen = vars(parser.parse_args())
    fields = {name: value for name, value in chosen.items() if name in EngineConfig.model_fields}
    api.app.state.engine_config = EngineConfig.model_validate(fields)
    uvicorn.run(api.app, host=chosen["host"], port=chosen["port"], log_level="warning")


if __name__ == "__main__":
    main()
