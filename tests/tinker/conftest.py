import os

import pytest

from tests.tinker import task
from tests.tinker.environment import NoEnvironment, environment
from tests.tinker.server import model, serving

KEY = "tml-loopback"


def pytest_collection_modifyitems(items):
    """Everything in this folder needs the server."""
    for item in items:
        if "tests/tinker/" in item.path.as_posix():
            item.add_marker("tinker")


@pytest.fixture(scope="session", autouse=True)
def variables():
    """What a process that talks to the server has in its environment."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TINKER_API_KEY", KEY)
    patch.setenv("HF_HUB_OFFLINE", "1")
    patch.setenv("TINKER_TELEMETRY", "0")
    yield
    patch.undo()


@pytest.fixture(scope="session")
def server_python():
    """Python of the server's environment, which has the oldest SDK that rlpipe takes."""
    try:
        return environment() / "bin" / "python"
    except NoEnvironment as reason:
        if os.environ.get("CI"):
            print(f"no Tinker server: {reason}")
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def tiny_model(server_python):
    return model()


@pytest.fixture(scope="session")
def unmodified_server(server_python, tiny_model, tmp_path_factory):
    """The server as its makers wrote it."""
    folder = tmp_path_factory.mktemp("unmodified")
    with serving(tiny_model, folder, unmodified=True) as url:
        yield url


@pytest.fixture(scope="session")
def launched_server(server_python, tiny_model, tmp_path_factory):
    """The server with what newer SDKs want of it."""
    folder = tmp_path_factory.mktemp("launched")
    with serving(tiny_model, folder, unmodified=False) as url:
        yield url


@pytest.fixture(scope="session")
def tasks(tmp_path_factory):
    return task.write(tmp_path_factory.mktemp("tasks") / "tasks.jsonl", 60)
