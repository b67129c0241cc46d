"""A real browser, where there is one."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from rlpipe.report.live import Report

from . import made
from .browser import Browser, start


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One headless Chromium for all tests of a process."""
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        pytest.skip("there is no chromium with a chromedriver")
    driver = start(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Browser]:
    """A wide, light window without anything of the test before; no error may be left in it."""
    opened = Browser(chromium)
    opened.reset()
    yield opened
    assert opened.errors() == []


@pytest.fixture(scope="session")
def agent_report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the report of a run with tools, beside an earlier run."""
    root = tmp_path_factory.mktemp("agent")
    before = made.agent_run(root / "before", "train.learning_rate=1e-3", steps=2)
    before.note(started="2026-01-01T00:00:00+00:00")
    folder = made.agent_run(root / "run")
    made.add_tokenizer(folder.path)
    return Report(folder.path).write().as_uri()
