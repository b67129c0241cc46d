"""CoreWeave: the conformance suite through the SDK and a stand-in service, and every fault."""

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from rlpipe.errors import (
    SandboxAuthError,
    SandboxConfigError,
    SandboxFileError,
    SandboxGone,
    SandboxUnavailable,
)
from rlpipe.sandboxes.coreweave import CoreWeave
from rlpipe.testing import SandboxConformance

pytest.importorskip("cwsandbox", reason="needs: pip install 'rlpipe[coreweave]'")

from tests.sandboxes.coreweave_server import provider_of

pytestmark = pytest.mark.usefixtures("coreweave_key")


@pytest.fixture
async def session(service):
    async with provider_of(service).open() as session:
        yield session


SPEC = CoreWeave(image="python:3.11").spec()


@pytest.fixture
async def box(session):
    async with await session.start(SPEC) as box:
        yield box


class TestConformance(SandboxConformance):
    spec = SPEC

    @pytest.fixture
    async def session(self, session):
        return session

    @pytest.fixture
    async def sandbox(self, box):
        return box


def test_the_checked_in_options_are_the_defaults():
    import yaml

    file = Path(__file__).parents[2] / "conf/sandbox/coreweave.yaml"
    options = yaml.safe_load(file.read_text())
    assert CoreWeave(**options) == CoreWeave(image="python:3.11")
    assert list(options) == list(CoreWeave.model_fields)


def test_options_are_checked_without_a_request(monkeypatch):
    allow = ("example.org", "*.example.org", "10.0.0.0/8", "fd00::/8")
    assert CoreWeave(image="python:3.11", allow=allow).check() == []
    monkeypatch.delenv("CWSANDBOX_API_KEY")
    provider = CoreWeave(
        allow=("https://example.org",),
        network="public",
        gpu_type="A100",
        cpus=1,
        requested_cpus=2,
        requested_memory_mb=1024,
    )
    found = [(finding.key, finding.problem) for finding in provider.check()]
    assert [key for key, _ in found] == [
        "image",
        "auth",
        "allow",
        "allow",
        "gpu_type",
        "requested_memory_mb",
        "requested_cpus",
    ]
    assert "CWSANDBOX_API_KEY" in found[1][1]
    monkeypatch.setattr("rlpipe.sandboxes.coreweave.find_spec", lambda name: None)
    (missing,) = CoreWeave(image="x", auth="wandb").check()
    assert "rlpipe[wandb]" in missing.problem
    monkeypatch.setattr("rlpipe.sandboxes.coreweave.find_spec", lambda name: name)
    assert CoreWeave(image="x", auth="wandb").check() == []


def test_without_the_sdk_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr("rlpipe.component._installed", lambda name: False)
    (finding,) = CoreWeave(image="x").check()
    assert "pip install 'rlpipe[coreweave]'" in finding.problem


async def test_the_service_is_told_every_option(service):
    provider = provider_of(
        service,
        tags=("training-run:7", "env:dev"),
        env={"A": "b"},
        cpus=2,
        memory_mb=1024,
        requested_cpus=0.5,
        lifetime=90.5,
        gpus=1,
        gpu_type="A100",
        allow=("example.org", "10.0.0.0/8"),
        secrets=[{"store": "wandb", "name": "HF_TOKEN"}],
        runner_ids=("runner-1",),
        annotations={"note": "x"},
    )
    async with provider.open() as session, await session.start(provider.spec()):
        (machine,) = service.live
    spec, (container,) = machine.spec, machine.spec.containers
    assert list(spec.tags)[:-1] == ["training-run:7", "env:dev"]
    assert (spec.max_lifetime_seconds, list(spec.runner_ids)) == (91, ["runner-1"])
    assert spec.annotations == {"note": "x"}
    assert container.image == "python:3.11"
    assert container.environment_variables["A"] == "b"
    (store,) = container.secret_stores
    assert "HF_TOKEN" in str(store)
    needs = container.resource_requirements
    assert (needs.limits.cpu, needs.limits.memory) == ("2", "1024Mi")
    assert (needs.requests.cpu, needs.requests.memory) == ("0.5", "1024Mi")
    assert "A100" in str(container)
    host, block = spec.network.egress
    assert (host.https_hostname, block.cidr.cidr) == ("example.org", "10.0.0.0/8")
    assert spec.network.deny_ingress


@pytest.mark.parametrize(("network", "closed"), [("none", True), ("public", False)])
async def test_without_a_list_the_network_is_closed_or_open(service, network, closed):
    provider = provider_of(service, network=network)
    async with provider.open() as session, await session.start(provider.spec()):
        (machine,) = service.live
    assert machine.spec.network.deny_egress is closed
    assert [rule.any for rule in machine.spec.network.egress] == ([] if closed else [True])


async def test_signals_and_the_address_stay_ours(service, monkeypatch):
    monkeypatch.setenv("CWSANDBOX_BASE_URL", "http://127.0.0.1:1")
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    async with provider_of(service).open() as session:
        await session.start(SPEC)
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        assert len(await session.list(status="running")) == 1


async def test_a_spec_without_an_image(session):
    with pytest.raises(SandboxConfigError, match="image"):
        await session.start(replace(SPEC, image=None))


async def test_the_key_is_refused(service, monkeypatch):
    monkeypatch.setenv("CWSANDBOX_API_KEY", "another")
    async with provider_of(service).open() as session:
        with pytest.raises(SandboxAuthError):
            await session.start(SPEC)


@pytest.mark.parametrize(
    ("fault", "kind", "retryable"),
    [
        ("unavailable", SandboxUnavailable, True),
        ("exhausted", SandboxUnavailable, True),
        ("cut", SandboxUnavailable, True),
        ("STREAM_TRUNCATED", SandboxUnavailable, True),
        ("silent", SandboxUnavailable, True),
        ("refused", SandboxAuthError, False),
        ("missing", SandboxGone, False),
        ("gone", SandboxGone, False),
        ("killed", SandboxGone, False),
    ],
)
async def test_what_befalls_an_execution_is_an_error_and_it_is_not_repeated(
    service, box, fault, kind, retryable
):
    service.fail("StreamExec", fault)
    with pytest.raises(kind) as caught:
        await box.exec("echo some output >> file; sleep 0.2")
    assert type(caught.value) is kind
    assert (caught.value.retryable, caught.value.sandbox_id) == (retryable, box.id)
    hinted = fault in ("unavailable", "exhausted", "cut")
    assert caught.value.retry_after == (0.05 if hinted else None)
    assert (box.stats.exec_count, box.stats.exec_failures) == (1, 1)
    assert service.calls.count("StreamExec") == 1


async def test_a_call_without_an_answer_is_no_timeout_of_the_command(service, box, monkeypatch):
    monkeypatch.setattr("rlpipe.sandboxes._coreweave.execution.START_SECONDS", 0.3)
    service.fail("StreamExec", "hang")
    with pytest.raises(SandboxUnavailable, match="never began") as caught:
        await box.exec("true", timeout=0.1)
    assert caught.value.retryable


async def test_waiting_for_the_service_does_not_count_as_time(service, box):
    service.gates["StreamExec"] = asyncio.Event()
    running = asyncio.ensure_future(box.exec("echo done", timeout=1))
    asyncio.get_running_loop().call_later(1.5, service.gates["StreamExec"].set)
    assert (await running).stdout == "done\n"


async def test_output_that_comes_too_fast_is_a_result(service, box):
    service.fail("StreamExec", "STREAM_BACKPRESSURE")
    result = await box.exec("echo much")
    assert (result.outcome, result.truncated) == ("output_limit", True)


async def test_a_command_that_is_killed_is_a_result(box):
    result = await box.exec("echo before; kill -9 $$")
    assert (result.outcome, result.exit_code, result.stdout) == ("killed", None, "before\n")


async def test_output_beyond_the_limit_is_dropped_and_below_a_flood_goes_on(box):
    result = await box.exec("echo first; head -c 5000 /dev/zero; exit 3", max_output=100)
    assert (result.outcome, result.exit_code, result.truncated) == ("exited", 3, True)
    assert (len(result.stdout), result.produced_bytes) == (100, 5006)


async def test_a_cancelled_execution_is_killed(box):
    running = asyncio.ensure_future(box.exec("echo > begun; sleep 1003.7"))
    await box.exec("until [ -e begun ]; do sleep 0.01; done")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gone = "while grep -qs '[1]003.7' /proc/[0-9]*/cmdline; do sleep 0.01; done"
    assert (await box.exec(gone, timeout=20)).ok


@pytest.mark.parametrize("words", [["echo", "x" * 200_000], ["echo", "a\0b"]])
async def test_words_that_no_program_takes_are_a_result(box, words):
    result = await box.exec(words)
    assert (result.outcome, result.exit_code) == ("exited", 126)
    assert not (await box.exec("echo \ud800 | grep -q x")).ok


async def test_a_program_of_several_megabytes_reads_its_input(box):
    code = f"text = '{'x' * 5_000_000}'\nprint(len(text), input(), sorted(globals()))"
    result = await box.run_python(code, stdin=b"line\n")
    plain = await box.run_python("text = 1\nprint(sorted(globals()))")
    assert result.stdout == f"5000000 line {plain.stdout}"
    failing = await box.run_python(f"def f():\n    1 / 0\nf() # {'x' * 200_000}")
    assert failing.stderr.count("File ") == 2


async def test_files_without_an_end(box):
    await box.exec("mkfifo pipe")
    with pytest.raises(SandboxFileError):
        await box.read_file("pipe")
    with pytest.raises(SandboxFileError) as caught:
        await box.read_file("/dev/zero", max_bytes=1000)
    assert caught.value.kind == "too_large"


async def test_names_that_no_file_has(box):
    for name in ("a\0b", "\ud800"):
        with pytest.raises(SandboxFileError):
            await box.read_file(name)
        with pytest.raises(SandboxFileError):
            await box.write_file(name, "x")


async def test_a_file_that_cannot_be_written(box):
    with pytest.raises(SandboxFileError) as caught:
        await box.write_file("/usr/file", "x")
    assert caught.value.kind == "permission"


@pytest.mark.parametrize(("method", "size"), [("WriteFile", 10), ("StreamExec", 33 << 20)])
async def test_a_file_that_the_service_loses_is_no_affair_of_the_agent(service, box, method, size):
    service.fail(method, "exhausted")
    with pytest.raises(SandboxUnavailable) as caught:
        await box.write_file("file", b"x" * size)
    assert caught.value.retry_after == 0.05


async def test_a_part_of_a_file_is_not_taken_for_all_of_it(service, box, monkeypatch):
    await box.write_file("file", b"x" * 1000)
    cut = box._machine.exec

    def head_only(words, **options):
        return cut([word.replace("head -c", "head -c 10 #") for word in words], **options)

    monkeypatch.setattr(box._machine, "exec", head_only)
    with pytest.raises(SandboxUnavailable, match="only a part"):
        await box.read_file("file")


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr("rlpipe.sandboxes._coreweave.sandbox.PAUSES", (0.0, 0.0))


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("faults", [["unavailable", "lost_reply"], ["exhausted"], ["lost_reply"]])
async def test_a_start_is_tried_again_and_happens_once(service, faults):
    service.fail("CreateSandbox", *faults)
    async with provider_of(service).open() as session:
        box = await session.start(SPEC)
        assert (await box.exec("true")).ok
        assert len(service.machines) == 1
    assert service.live == []


@pytest.mark.usefixtures("no_pauses")
async def test_a_start_that_fails_leaves_nothing(service):
    async with provider_of(service, create_retry_budget=0).open() as session:
        service.fail("CreateSandbox", *["exhausted"] * 3)
        with pytest.raises(SandboxUnavailable) as caught:
            await session.start(SPEC)
        assert (caught.value.retry_after, service.live) == (0.05, [])
        service.fail("GetSandbox", "refused")
        with pytest.raises(SandboxAuthError):
            await session.start(SPEC)
        assert (len(service.machines), service.live) == (1, [])


@pytest.mark.usefixtures("no_pauses")
async def test_what_was_created_without_our_knowing_ends_with_the_session(service):
    async with provider_of(service).open() as session:
        service.fail("CreateSandbox", *["lost_reply"] * 3)
        with pytest.raises(SandboxUnavailable):
            await session.start(SPEC)
        assert len(service.live) == 1
    assert service.live == []


async def test_a_start_that_is_cancelled_leaves_nothing(service):
    service.gates["CreateSandbox"] = asyncio.Event()
    async with provider_of(service).open() as session:
        start = asyncio.ensure_future(session.start(SPEC))
        while "CreateSandbox" not in service.calls:
            await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        service.gates["CreateSandbox"].set()
    assert len(service.machines) == 1
    assert service.live == []
    assert service.calls.count("DeleteSandbox") == 1


@pytest.mark.usefixtures("no_pauses")
async def test_a_stop_is_tried_again_and_never_raises(service):
    async with provider_of(service).open() as session:
        first, second = [await session.start(SPEC) for _ in range(2)]
        service.fail("DeleteSandbox", "unavailable", "exhausted")
        await first.stop()
        assert len(service.live) == 1
        service.fail("DeleteSandbox", "refused")
        await second.stop()
        assert len(service.live) == 1
    assert service.live == []


async def test_a_sandbox_ends_with_its_lifetime(session):
    box = await session.start(replace(SPEC, lifetime=0.5))
    with pytest.raises(SandboxGone):
        await box.exec("sleep 1001", timeout=60)
    (info,) = await session.list()
    assert info.status == "stopped"


async def test_a_listing_of_several_pages(service, session, monkeypatch):
    monkeypatch.setattr("tests.sandboxes.coreweave_server.PAGE", 2)
    tagged = replace(SPEC, tags=("pages",))
    started = await asyncio.gather(*(session.start(tagged) for _ in range(5)))
    infos = await session.list(tags=["pages"], status="running")
    assert {info.id for info in infos} == {box.id for box in started}
    assert await session.list(tags=["pages", "others"]) == []
    service.fail("ListSandboxes", "unavailable")
    with pytest.raises(SandboxUnavailable):
        await session.list()


@pytest.mark.usefixtures("no_pauses")
def test_the_online_check_starts_a_sandbox():
    unreachable = CoreWeave(image="x", base_url="http://127.0.0.1:1", request_timeout=1)
    (finding,) = unreachable.check_online()
    assert "no sandbox could be started" in finding.problem
