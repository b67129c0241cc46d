"""Containers: what the engine is told, and what is made of its answers; none is needed."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from rlpipe.errors import (
    SandboxConfigError,
    SandboxStartError,
    SandboxUnavailable,
)
from rlpipe.sandboxes._agent.system import Settings, variables
from rlpipe.sandboxes._container import ContainerPlan, tag_label
from rlpipe.sandboxes._engine import Engine, find_engine
from rlpipe.sandboxes.base import SandboxSpec
from rlpipe.sandboxes.docker import Docker

SPEC = Docker(image="python:3.12-slim").spec()
MEMORY = (512 + 2 * 64 + 16 + 64) << 20  # programs', two folders', shared, and the agent's own


def arguments(engine="docker", **options):
    spec = options.pop("spec", SPEC)
    plan = ContainerPlan(name="rlpipe-1", spec=spec, user=20_000, session="s", **options)
    return plan.run(Engine(engine))


def test_a_container_is_closed_and_bounded_by_default():
    line = " ".join(arguments())
    for part in (
        "--network none",
        "--read-only ",
        "--cap-drop all",
        "--security-opt no-new-privileges",
        f"--memory {MEMORY}b --memory-swap {MEMORY}b",
        "--pids-limit 67",
        f"--tmpfs /work:rw,exec,nosuid,nodev,mode=1777,size={64 << 20}",
        f"--tmpfs /tmp:rw,exec,nosuid,nodev,mode=1777,size={64 << 20}",
        "--rm ",
        "--pull never",
        "--log-driver none",
    ):
        assert part in line
    assert "--cpus" not in line
    assert "--runtime" not in line


def test_only_what_is_asked_for_is_opened():
    wide = replace(SPEC, network="public", cpus=1.5)
    line = " ".join(arguments(spec=wide, read_only=False, runtime="runsc"))
    assert "--network" not in line
    assert "--read-only" not in line
    assert "--cpus 1.5" in line
    assert "--runtime runsc" in line


def test_podman_is_told_what_docker_does_by_itself():
    assert {"--http-proxy=false", "--read-only-tmpfs=false"} <= set(arguments("podman"))
    assert not {"--http-proxy=false", "--read-only-tmpfs=false"} & set(arguments("docker"))


def test_secrets_of_the_spec_are_no_arguments():
    assert not [
        word for word in arguments(spec=replace(SPEC, env={"A": "sesame"})) if "sesame" in word
    ]


def test_programs_get_the_image_s_variables_and_ours_and_the_spec_s():
    plan = ContainerPlan(
        name="x",
        spec=replace(SPEC, env={"B": "spec", "HOME": "/mine"}),
        user=1,
        session="s",
        image_environment={"PATH": "/opt/conda/bin", "A": "image", "B": "image"},
    )
    found = plan.environment()
    assert (found["PATH"], found["A"], found["B"]) == ("/opt/conda/bin", "image", "spec")
    assert found["HOME"] == "/mine"


def test_the_agent_understands_what_it_is_told():
    plan = ContainerPlan(name="x", spec=replace(SPEC, env={"A": "b"}), user=20_000, session="s")
    told = Settings(plan.settings())
    assert (told.user, told.memory, told.disk, told.home) == (20_000, 512 << 20, 64 << 20, b"/work")
    assert (told.alone, told.packages, told.readable) == (True, b"", [])
    assert variables(told.environment)[b"A"] == b"b"


@pytest.mark.parametrize(
    ("tag", "label"),
    [
        ("run:2026-01-01/12-00", "rlpipe.tag.run:2026-01-01/12-00"),
        ("a=b,c d", "rlpipe.tag.a%3Db%2Cc%20d"),
        ("grün", "rlpipe.tag.gr%C3%BCn"),
    ],
)
def test_tags_become_labels_that_engines_can_filter_by(tag, label):
    assert tag_label(tag) == label
    assert f"{label}=" in arguments(spec=replace(SPEC, tags=("x", tag)))


def test_the_checked_in_options_are_the_defaults():
    import yaml  # the suite also runs where it is absent

    path = "conf/sandbox/docker.yaml"
    file = next(parent / path for parent in Path(__file__).parents if (parent / path).exists())
    options = yaml.safe_load(file.read_text())
    assert Docker(**options) == Docker()
    assert list(options) == list(Docker.model_fields)


# Engines that are missing, silent or refuse: programs of their names in a folder.


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Puts shell scripts on an otherwise empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(name, text):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    return put


def test_options_are_checked_without_calling_the_engine(programs):
    found = {finding.key: finding.problem for finding in Docker().check()}
    assert set(found) == {"image", "kind"}
    assert "install Docker" in found["kind"]
    programs("podman", "exit 99")
    assert Docker(image="x").check() == []
    (finding,) = Docker(image="x", engine="docker").check()
    assert (finding.key, "'docker'" in finding.problem) == ("engine", True)


async def test_without_an_engine_one_sentence_says_what_to_install(programs):
    async with Docker(image="x").open() as session:
        with pytest.raises(SandboxConfigError, match="install Docker"):
            await session.start(SPEC)
        with pytest.raises(SandboxConfigError, match="an image"):
            await session.start(SandboxSpec())


SILENT = "echo 'Cannot connect to the Docker daemon at unix:///x.' >&2; exit 1"


async def test_a_daemon_that_does_not_run(programs):
    programs("docker", SILENT)
    async with Docker(image="x").open() as session:
        with pytest.raises(SandboxUnavailable, match="docker does not answer: Cannot connect"):
            await session.start(SPEC)


async def test_the_engine_that_answers_is_taken(programs):
    programs("docker", SILENT)
    programs("podman", "echo 4.3.1")
    assert (await find_engine("auto")).name == "podman"
    with pytest.raises(SandboxUnavailable):
        await find_engine("docker")


REFUSING = """
case "$1 $2" in
    "version "*) exit 0;;
    "image inspect") {image};;
    "pull "*) echo 'Error: pull access denied for nosuch' >&2; exit 1;;
    "run "*) echo 'docker: Error: something
second line, the reason
time="2026-01-01" level=error msg="error waiting for container: context canceled"' >&2; exit 125;;
esac
"""


async def test_an_image_that_cannot_be_pulled(programs):
    programs("docker", REFUSING.format(image="echo 'Error: No such image: x' >&2; exit 1"))
    async with Docker(image="x").open() as session:
        with pytest.raises(
            SandboxStartError, match=r"no image 'nosuch' here.*: pull access denied"
        ) as caught:
            await session.start(replace(SPEC, image="nosuch"))
    assert not caught.value.retryable


async def test_a_container_that_does_not_start(programs):
    programs("docker", REFUSING.format(image="""echo '[{"Config": {}}]'"""))
    async with Docker(image="x").open() as session:
        with pytest.raises(SandboxStartError, match=r"^a container does not start: second line"):
            await session.start(SPEC)


TROUBLED = """
case "$1 $2" in
    "version "*) exit 0;;
    "image inspect") echo '[{{"Config": {{}}}}]';;
    "container inspect") echo true;;
    "stats "*) echo {processes};;
    "run "*) echo plain; exec /bin/cat >/dev/null;;
    "exec "*) echo 'Error: database is locked' >&2; exit 125;;
    "ps "*) exit 0;;
esac
"""


async def test_an_engine_in_trouble_is_no_doing_of_a_program(programs):
    programs("podman", TROUBLED.format(processes=3))
    async with Docker(image="x", engine="podman").open() as session:
        box = await session.start(SPEC)
        for use in (box.exec("true"), box.run_python(""), box.read_file("x")):
            with pytest.raises(SandboxUnavailable, match="database is locked") as caught:
                await use
            assert (caught.value.retryable, caught.value.sandbox_id) == (True, box.id)
        assert (box.stats.exec_count, box.stats.exec_failures) == (2, 2)


async def test_a_sandbox_that_programs_have_filled_is_their_doing(programs):
    programs("podman", TROUBLED.format(processes=66))
    async with Docker(image="x", engine="podman").open() as session:
        box = await session.start(SPEC)
        result = await box.exec("true")
        assert (result.outcome, result.exit_code) == ("exited", 126)


async def test_a_lack_on_this_machine_is_no_doing_of_a_program(programs, monkeypatch):
    programs("podman", TROUBLED.format(processes=3))
    async with Docker(image="x", engine="podman").open() as session:
        box = await session.start(SPEC)

        async def fail(*words, **options):
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr("asyncio.create_subprocess_exec", fail)
            for use in (box.exec("true"), box.read_file("x"), box.write_file("x", "")):
                with pytest.raises(SandboxUnavailable, match="Too many open files") as caught:
                    await use
                assert caught.value.retryable


KEEPING = """
case "$1 $2" in
    "version "*) exit 0;;
    "ps "*) echo 1;;
    "container inspect") echo '[{{"Name": "/rlpipe-1", "State": {{"Status": "running"}},
        "Config": {{"Labels": {{"rlpipe.begun": "0", "rlpipe.tags": "[\\"run:a\\"]"}}}}}}]';;
    "rm "*) echo 'Error response from daemon: {answer}' >&2; exit 1;;
esac
"""


async def test_a_container_that_stays_is_not_taken_for_removed(programs):
    programs("docker", KEEPING.format(answer="device or resource busy"))
    async with Docker(image="x").open() as session:
        for act in (session.remove("rlpipe-1"), session.sweep(["run:a"])):
            with pytest.raises(SandboxUnavailable, match="resource busy"):
                await act
    programs("docker", KEEPING.format(answer="No such container: rlpipe-1"))
    async with Docker(image="x").open() as session:
        assert await session.sweep(["run:a"]) == 1
        assert await session.sweep(["run:b"]) == 0
