"""`rlpipe +recipe=NAME [group=choice] [section.key=value ...]`

Help answers before Hydra is imported. Exit status: 0 done, 1 the run failed, 2 the spec is wrong,
130 interrupted.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from rlpipe.config.paths import choices, groups
from rlpipe.errors import ConfigError, RlpipeError

USAGE = """\
usage: rlpipe +recipe=NAME [group=choice ...] [section.key=value ...]
       rlpipe list [group]
       rlpipe sandboxes list|count|stop [--run ID] [--tag T] [--provider P]
       rlpipe resume RUN [section.key=value ...] [force=true]
       rlpipe rescore RUN [reward=choice] [section.key=value ...] [--failed] [--replay]
       rlpipe verify [group=choice ...] [section.key=value ...]
       rlpipe view RUN|FOLDER [--port N]

  rlpipe +recipe=quickstart                          run a recipe
  rlpipe +recipe=quickstart dry_run=true             check the spec, say what would run, and stop
  rlpipe +recipe=quickstart --cfg job                show the composed spec
  rlpipe -m +recipe=quickstart seed=0,1,2            one run for every combination
  rlpipe mode=collect policy=openai policy.model=M   rollouts and scores only
  rlpipe list rewards                                what a group has, with every option
  rlpipe sandboxes list                              what runs here have started, and how old it is
  rlpipe resume RUN                                  go on with a run that stopped
  rlpipe rescore RUN reward=tests_fraction           judge a run's stored trajectories anew
  rlpipe verify dataset=mbpp reward=tests_pass       references and cheats through a reward
  rlpipe view outputs                                the runs of a folder in a browser, or one run

choices:
"""


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Do what the command line asks, and exit."""
    args = sys.argv[1:] if args is None else list(args)
    if not args or args[0] in ("--help", "-h"):
        print(USAGE + _choices())
        sys.exit(0)
    try:
        command = COMMANDS.get(args[0])
        status = command(args[1:]) if command else _run(args)
    except ConfigError as error:
        _complain(error)
        sys.exit(2)
    except RlpipeError as error:
        _complain(error)
        sys.exit(1)
    except KeyboardInterrupt:
        print("rlpipe: interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(status)


def _complain(error: RlpipeError) -> None:
    from rlpipe.redaction import redact

    for line in redact(str(error)).splitlines():
        print(f"rlpipe: {line}", file=sys.stderr)


def _choices() -> str:
    shown = [*(group for group in groups() if group != "hydra"), "recipe"]
    return "\n".join(f"  {group:<9} {', '.join(choices(group))}" for group in shown)


def _list(args: list[str]) -> int:
    from rlpipe.catalogue import show

    show(args)
    return 0


def _verify(args: list[str]) -> int:
    from rlpipe.config.compose import load_experiment
    from rlpipe.console import Console
    from rlpipe.verify import verify

    return 0 if verify(load_experiment(None, *args), Console()).sound else 1


def _rescore(args: list[str]) -> int:
    from rlpipe.config.compose import load_again
    from rlpipe.console import Console
    from rlpipe.rescore import rescore
    from rlpipe.store import read_spec

    flags = {arg for arg in args if arg.startswith("-")}
    settings = [arg for arg in args if "=" in arg and arg not in flags]
    folders = [arg for arg in args if arg not in flags and arg not in settings]
    unknown = flags - {"--failed", "--replay"}
    if len(folders) != 1 or unknown:
        what = f"no such flag: {', '.join(sorted(unknown))}" if unknown else "name one run folder"
        raise ConfigError(f"rescore: {what}; rlpipe rescore RUN [reward=...] [--failed] [--replay]")
    run = Path(folders[0])
    experiment = load_again(read_spec(run), settings)
    rescore(
        run, experiment, Console(), failed_only="--failed" in flags, replays="--replay" in flags
    )
    return 0


def _resume(args: list[str]) -> int:
    from rlpipe.config.compose import load_again
    from rlpipe.runner import resume
    from rlpipe.store import read_spec

    settings = [arg for arg in args if "=" in arg and not Path(arg).is_dir()]
    folders = [arg for arg in args if arg not in settings]
    if len(folders) != 1 or folders[0].startswith("-"):
        raise ConfigError("resume: name one run folder; rlpipe resume RUN [section.key=value ...]")
    force = "force=true" in settings
    settings = [arg for arg in settings if not arg.startswith("force=")]
    run = Path(folders[0])
    resume(run, load_again(read_spec(run), settings), force=force)
    return 0


def _sandboxes(args: list[str]) -> int:
    from rlpipe import monitoring

    monitoring.main(args)
    return 0


def _view(args: list[str]) -> int:
    from rlpipe.report.serve import main

    main(args)
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "list": _list,
    "rescore": _rescore,
    "resume": _resume,
    "sandboxes": _sandboxes,
    "verify": _verify,
    "view": _view,
}
"""What is no run; each returns the exit status."""


def _run(args: list[str]) -> int:
    """Hand the command line to Hydra; a sweep ends with its table, whether or not a job failed."""
    from rlpipe.config import app, sweep

    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises instead of printing and exiting
    try:
        app.launch(args)
    finally:
        if sweep.folder is not None and (jobs := sweep.rows(sweep.folder)):
            _print_sweep(sweep.folder, jobs)
    return 0


def _print_sweep(folder: Path, jobs: Sequence[Sequence[str]]) -> None:
    from rlpipe.console import Console

    console = Console()
    console.table(("job", "settings", "status", "result"), jobs)
    console.say(f"sweep folder: {folder}")
