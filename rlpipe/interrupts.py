"""Interrupts: the first lets a run clean up, the second does not wait for that."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

EXIT_STATUS = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(main: Coroutine[Any, Any, T], give_up: Callable[[], None]) -> T:
    """`asyncio.run`, which the first SIGINT or SIGTERM cancels.

    At a second one `give_up` says what is left behind, and the process exits at once.

    Raises:
        KeyboardInterrupt: the coroutine was cancelled so.
    """
    if _in_a_loop():
        return _in_a_thread(main, give_up)
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(main)  # signals are the main thread's
    interrupts = _Interrupts(give_up)
    before = {number: signal.signal(number, interrupts.take) for number in SIGNALS}
    try:
        return asyncio.run(interrupts.watch(main))
    except asyncio.CancelledError:
        if interrupts.count:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_a_thread(main: Coroutine[Any, Any, T], give_up: Callable[[], None]) -> T:
    """Run it beside a loop that is running already, which is a notebook's."""
    interrupts, ended = _Interrupts(give_up), Future[T]()

    def work() -> None:
        try:
            ended.set_result(asyncio.run(interrupts.watch(main)))
        except BaseException as error:
            ended.set_exception(error)

    try:
        threading.Thread(target=work, name="rlpipe", daemon=True).start()
        return ended.result()
    except KeyboardInterrupt:
        interrupts.begin()
    try:
        wait([ended])
    except KeyboardInterrupt:
        give_up()
    raise KeyboardInterrupt


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Interrupts:
    def __init__(self, give_up: Callable[[], None]) -> None:
        self.count = 0
        self._give_up = give_up
        self._cancel: Callable[[], object] = lambda: None

    async def watch(self, main: Coroutine[Any, Any, T]) -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        # The loop may be asleep, and a signal's handler alone does not wake it.
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        if self.count:
            task.cancel()
        try:
            return await main
        finally:
            self._cancel = lambda: None

    def begin(self) -> None:
        self.count += 1
        self._cancel()

    def take(self, number: int, frame: FrameType | None) -> None:
        if self.count:
            self._give_up()
            os._exit(EXIT_STATUS)
        self.begin()
