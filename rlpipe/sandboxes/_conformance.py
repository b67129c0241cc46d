"""The suite that every sandbox provider has to pass, offered to plugins as `rlpipe.testing`."""

import asyncio
import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from rlpipe.errors import SandboxFileError, SandboxGone
from rlpipe.sandboxes.base import Sandbox, SandboxSession, SandboxSpec, SandboxStats

SEARCH_MEMORY = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # so that it may read its own memory
moved = bytes((i + 1) % 256 for i in range(256))

def found(wanted):
    with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
        for line in maps:
            area, rights = line.split()[:2]
            start, end = (int(x, 16) for x in area.split('-'))
            if 'rw' in rights:
                memory.seek(start)
                if wanted in memory.read(end - start).translate(moved):
                    return True
    return False

print(found(b'ijeefo.tfdsfu'))
data = sys.stdin.buffer.read()
print(len(data), found(b'ijeefo.tfdsfu'))
"""
"""Looks for `hidden-secret`, which it only ever holds with each byte moved on by one."""


@contextmanager
def raises_file_error(kind: SandboxFileError.Kind) -> Iterator[None]:
    with pytest.raises(SandboxFileError) as caught:
        yield
    assert caught.value.kind == kind


class SandboxConformance:
    """What every sandbox does alike. A subclass gives the fixtures `session` and `sandbox`.

    `spec` is what the sandboxes that a test starts by itself are made of.
    """

    spec = SandboxSpec()
    at_once = 100
    """Sandboxes that one test has side by side."""

    async def test_a_command_is_a_list_of_words(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["printf", "%s|", "a b", "$HOME", "*"])
        assert (result.outcome, result.exit_code) == ("exited", 0)
        assert result.ok
        assert result.stdout == "a b|$HOME|*|"

    async def test_a_string_is_a_bash_command(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec("for i in {1..3}; do echo $i; done; echo oops >&2")
        assert result.stdout == "1\n2\n3\n"
        assert result.stderr == "oops\n"
        assert result.produced_bytes == 11

    async def test_a_command_starts_in_workdir_or_cwd(self, sandbox: Sandbox) -> None:
        await sandbox.exec("mkdir -p 'a folder'")
        assert (await sandbox.exec("pwd")).stdout.strip() == sandbox.spec.workdir
        inner = f"{sandbox.spec.workdir}/a folder"
        assert (await sandbox.exec("pwd", cwd=inner)).stdout.strip() == inner
        assert (await sandbox.exec("pwd", cwd="a folder")).stdout.strip() == inner

    async def test_a_missing_cwd_is_a_result(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec("pwd", cwd="/no/such/folder")
        assert result.outcome == "exited"
        assert result.exit_code not in (0, None)

    async def test_environment_of_one_execution(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec('echo "$GREETING"', env={"GREETING": "grüß=dich $x"})
        assert result.stdout == "grüß=dich $x\n"
        assert (await sandbox.exec('echo "$GREETING"')).stdout == "\n"

    async def test_standard_input(self, sandbox: Sandbox) -> None:
        data = bytes(range(256)) * 2000
        result = await sandbox.exec("sha256sum", stdin=data)
        assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()
        assert (await sandbox.exec("cat /dev/stdin", stdin=b"again")).stdout == "again"
        assert (await sandbox.exec("cat")).stdout == ""

    async def test_unread_standard_input_is_no_error(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec("true", stdin=b"x" * 3_000_000)).ok

    async def test_exit_status(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec("echo partly; exit 3")
        assert (result.outcome, result.exit_code, result.stdout) == ("exited", 3, "partly\n")
        assert not result.ok

    async def test_a_missing_program_is_a_result(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["no-such-program", "x"])
        assert (result.outcome, result.exit_code) == ("exited", 127)
        assert "no-such-program" in result.stderr

    async def test_timeout_keeps_output_and_kills_the_tree(self, sandbox: Sandbox) -> None:
        mark = f"{secrets.randbelow(10**9) + 1000}.5"  # where all see all processes, ours
        tree = f"sleep {mark} & (sleep {mark} & sleep {mark}) & echo partial; echo why >&2; "
        tree += f"sleep {mark}"
        result = await sandbox.exec(tree, timeout=2)
        assert (result.outcome, result.exit_code) == ("timeout", None)
        assert (result.stdout, result.stderr) == ("partial\n", "why\n")
        assert result.duration >= 2
        left = await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert mark not in left.stdout

    async def test_output_is_capped(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec("yes", max_output=1000, timeout=20)
        assert (result.outcome, result.exit_code, result.truncated) == ("output_limit", None, True)
        assert result.stdout == "y\n" * 500
        assert result.produced_bytes > 1000

    async def test_output_is_kept_whole_below_the_cap(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec("head -c 300000 /dev/zero | tr '\\0' x", max_output=300_000)
        assert result.stdout == "x" * 300_000
        assert result.ok
        assert not result.truncated

    async def test_undecodable_output_is_replaced(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec("printf 'a\\377b'")).stdout == "a\ufffdb"

    async def test_python(self, sandbox: Sandbox) -> None:
        result = await sandbox.run_python("print(__name__, 6 * 7, 'grüße')")
        assert result.stdout == "__main__ 42 grüße\n"
        assert result.ok

    async def test_python_traceback(self, sandbox: Sandbox) -> None:
        result = await sandbox.run_python("print('before')\ndef f():\n    1 / 0\nf()")
        assert (result.exit_code, result.stdout) == (1, "before\n")
        assert result.stderr.startswith("Traceback (most recent call last):\n")
        assert "line 3, in f" in result.stderr
        assert result.stderr.count("File ") == 2
        assert result.stderr.endswith("ZeroDivisionError: division by zero\n")

    async def test_python_exit_status(self, sandbox: Sandbox) -> None:
        codes = {"sys.exit()": 0, "sys.exit(7)": 7, "sys.exit('no')": 1, "raise SystemExit(3)": 3}
        codes |= {"sys.exit(256 + 5)": 5, "sys.exit(True)": 1, "import os; os._exit(9)": 9}
        results = [await sandbox.run_python(f"import sys; {code}") for code in codes]
        assert [result.exit_code for result in results] == list(codes.values())
        assert results[2].stderr == "no\n"

    async def test_python_ends_like_a_program(self, sandbox: Sandbox) -> None:
        code = (
            "import atexit, threading, time\n"
            "atexit.register(print, 'last')\n"
            "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n"
            "print('main', end=' ')"
        )
        assert (await sandbox.run_python(code)).stdout == "main thread\nlast\n"

    async def test_python_runs_are_apart(self, sandbox: Sandbox) -> None:
        await sandbox.run_python("import json, builtins; json.x = builtins.x = x = 1")
        code = "import json; print(hasattr(json, 'x'), 'x' in dir(), 'x' in dir(__builtins__))"
        assert (await sandbox.run_python(code)).stdout == "False False False\n"

    async def test_what_is_preloaded_is_as_new_in_every_later_program(
        self, sandbox: Sandbox
    ) -> None:
        before = await sandbox.run_python("pass")  # the next process may be waiting by now
        assert before.ok
        made = "import sys; extra = sys.modules['extra'] = type(sys)('extra'); extra.x = [6 * 7]"
        loaded = await sandbox.preload(made)
        assert await sandbox.preload(made) == loaded
        change = (
            "import extra; print(extra.x); extra.x.append(1); import sys; sys.exit(len(extra.x))"
        )
        results = [await sandbox.run_python(change) for _ in range(3)]
        assert [r.stdout for r in results] == (["[42]\n"] * 3 if loaded else [""] * 3)
        assert [r.exit_code for r in results] == [2 if loaded else 1] * 3

    async def test_what_cannot_be_preloaded_harms_nothing(self, sandbox: Sandbox) -> None:
        for broken in ("1 / 0", "def (", "import no_such_module"):
            assert not await sandbox.preload(broken)
        assert (await sandbox.run_python("print(1)")).stdout == "1\n"

    async def test_python_with_a_nul_byte(self, sandbox: Sandbox) -> None:
        result = await sandbox.run_python("print(1)\0")
        assert result.outcome == "exited"
        assert result.exit_code not in (0, None)
        assert (await sandbox.run_python("print(2)")).stdout == "2\n"

    async def test_python_with_a_lone_surrogate(self, sandbox: Sandbox) -> None:
        result = await sandbox.run_python("print('\ud800')")
        assert (result.outcome, result.exit_code) == ("exited", 1)

    async def test_python_reads_standard_input(self, sandbox: Sandbox) -> None:
        code = "import sys; data = sys.stdin.buffer.read(); print(len(data), data[:3])"
        result = await sandbox.run_python(code, stdin=b"\0\xff\n" * 500_000)
        assert result.stdout == "1500000 b'\\x00\\xff\\n'\n"
        assert (await sandbox.run_python("print(input())", stdin=b"one\ntwo\n")).stdout == "one\n"
        assert "EOFError" in (await sandbox.run_python("input()")).stderr

    async def test_python_s_standard_input_is_in_no_other_memory(self, sandbox: Sandbox) -> None:
        """Neither before the program reads it, nor in a program that runs later."""
        secret = b"hidden-secret" + b"." * 100_000
        found = await sandbox.run_python(SEARCH_MEMORY, stdin=secret)
        assert found.stdout == "False\n100013 True\n"
        for _ in range(2):  # one that may have waited meanwhile, and one that was made since
            assert (await sandbox.run_python(SEARCH_MEMORY)).stdout == "False\n0 False\n"

    async def test_python_timeout_keeps_output(self, sandbox: Sandbox) -> None:
        result = await sandbox.run_python("print('so far')\nwhile True: pass", timeout=2)
        assert (result.outcome, result.stdout) == ("timeout", "so far\n")

    async def test_state_is_kept(self, sandbox: Sandbox) -> None:
        await sandbox.exec("echo kept > state; mkdir -p kept")
        assert (await sandbox.run_python("print(open('state').read())")).stdout == "kept\n\n"
        assert await sandbox.read_file("state") == b"kept\n"

    async def test_files_keep_every_byte(self, sandbox: Sandbox) -> None:
        data = bytes(range(256)) * 10
        await sandbox.write_file("deep/er/bytes", data)
        assert await sandbox.read_file(f"{sandbox.spec.workdir}/deep/er/bytes") == data
        await sandbox.write_file("deep/er/bytes", "grüße")
        assert await sandbox.read_file("deep/er/bytes") == "grüße".encode()
        await sandbox.write_file("empty", b"")
        assert await sandbox.read_file("empty") == b""

    async def test_file_names(self, sandbox: Sandbox) -> None:
        for name in ("with space", "ünïcode/名前", "-dash", "quo'te\"$HOME", "new\nline"):
            await sandbox.write_file(name, name)
            assert await sandbox.read_file(name) == name.encode()

    async def test_large_files(self, sandbox: Sandbox) -> None:
        data = bytes(range(256)) * (40 << 12)
        await sandbox.write_file("large", data)
        assert await sandbox.read_file("large", max_bytes=len(data)) == data
        with raises_file_error("too_large"):
            await sandbox.read_file("large", max_bytes=len(data) - 1)
        await sandbox.exec("rm large")

    async def test_file_errors(self, sandbox: Sandbox) -> None:
        await sandbox.write_file("folder/file", "x")
        for path in ("missing", "folder/file/below", "missing/missing"):
            with raises_file_error("not_found"):
                await sandbox.read_file(path)
        with raises_file_error("is_directory"):
            await sandbox.read_file("folder")
        with raises_file_error("is_directory"):
            await sandbox.write_file("folder", "x")

    async def test_links_lead_nowhere_outside(
        self, sandbox: Sandbox, session: SandboxSession, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        if session.capabilities.isolation == "none":
            pytest.skip("without isolation there is no outside")
        secret = tmp_path_factory.mktemp("outside") / "secret"
        secret.write_text("untouched")
        await sandbox.exec(["ln", "-s", str(secret), "link"])
        with pytest.raises(SandboxFileError) as caught:
            await sandbox.read_file("link")
        assert caught.value.kind in ("not_found", "permission")
        await sandbox.exec(["ln", "-s", str(secret.parent), "folder-link"])
        with suppress(SandboxFileError):
            await sandbox.write_file("folder-link/secret", "overwritten")
        assert secret.read_text() == "untouched"

    async def test_executions_run_side_by_side(self, sandbox: Sandbox) -> None:
        # Each waits for the file of the other, so one after the other would time out.
        wait = "touch {0}; until [ -e {1} ]; do sleep 0.01; done; echo {0}"
        first, second = await asyncio.gather(
            sandbox.exec(wait.format("one", "two"), timeout=20),
            sandbox.exec(wait.format("two", "one"), timeout=20),
        )
        assert (first.stdout, second.stdout) == ("one\n", "two\n")
        many = await asyncio.gather(*(sandbox.run_python(f"print({i})") for i in range(30)))
        assert [result.stdout for result in many] == [f"{i}\n" for i in range(30)]

    async def test_many_at_once(self, session: SandboxSession) -> None:
        tagged = replace(self.spec, tags=("many",))
        starts = asyncio.Semaphore(8)

        async def start(number: int) -> Sandbox:
            async with starts:
                sandbox = await session.start(tagged)
            await sandbox.write_file("number", str(number))
            return sandbox

        sandboxes = await asyncio.gather(*map(start, range(self.at_once)))
        assert len(await session.list(tags=["many"], status="running")) == self.at_once
        results = await asyncio.gather(*(sandbox.exec("cat number") for sandbox in sandboxes))
        assert [result.stdout for result in results] == [str(n) for n in range(self.at_once)]
        await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))
        assert await session.list(tags=["many"], status="running") == []

    async def test_counters(self, session: SandboxSession) -> None:
        async with await session.start(self.spec) as sandbox:
            await sandbox.exec("true")
            await sandbox.exec("false")
            await sandbox.run_python("pass")
            assert sandbox.stats == SandboxStats(3, 2, 1, 0)

    async def test_a_stopped_sandbox_is_gone(self, session: SandboxSession) -> None:
        sandbox = await session.start(self.spec)
        running = asyncio.ensure_future(sandbox.exec("sleep 1005"))
        await sandbox.exec("true")
        await asyncio.gather(sandbox.stop(), sandbox.stop())
        await sandbox.stop()
        for use in (running, sandbox.exec("true"), sandbox.run_python(""), sandbox.read_file("x")):
            with pytest.raises(SandboxGone):
                await use

    async def test_listing(self, session: SandboxSession) -> None:
        tagged = replace(self.spec, tags=("conformance", "first"))
        first = await session.start(tagged)
        second = await session.start(replace(tagged, tags=("conformance",)))
        await second.stop()
        both = await session.list(tags=["conformance"])
        assert {info.id for info in both} >= {first.id}
        assert all("conformance" in info.tags and info.age >= 0 for info in both)
        (only,) = await session.list(tags=["first", "conformance"], status="running")
        assert (only.id, only.status, only.tags) == (first.id, "running", tagged.tags)
        await first.stop()
        assert await session.list(tags=["first"], status="running") == []
