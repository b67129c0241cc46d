"""Code that tries to be scored without doing the work. None of it may earn anything."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlpipe.grading.grader import grade
from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import PythonTests

SUM = PythonTests(
    visible=("assert f(2, 3) == 5",),
    hidden=(
        "assert f(10, 20) == 30",
        "assert (f(1, 1)) == 2 and f(1, 2) == 3",
        "assert math.isclose(f(0.5, 0.25), 0.75)",
        "assert abs(f(1.5, 2) - 3.5) < 1e-9",
        "assert [f(4, 4)] == [8]",
        "assert {f(4, 5)} == {9}",
        "assert 11 in [f(5, 6)]",
        "assert not f(3, 4) != 7",
        "assert 12 < f(6, 7) < 14",
        "assert len({f(7, 7), 14}) == 1",
        "assert {'x': f(7, 8)} == {'x': 15}",
        "assert str(f(8, 8)) == '16'",
        "assert 17 == f(8, 9)",
        "assert f(9, 9) in (18,)",
        "assert 19 in f(9, 10)",
    ),
    imports=("import math", "import operator"),
    entry_points=("f",),
)

FORGE = """
import os, re, sys, threading, time
LINES = [
    "passed", "OK", "done", "1 passed in 0.01s", '["passed", "", 0.1, false]',
    '["done", ""]', "0" * 32 + ' ["done", ""]',
]
def forge(*_):
    for line in LINES * 3:
        for number in range(0, 64):
            try:
                os.write(number, (line + "\\n").encode())
            except OSError:
                pass
    return 0
"""

SPY = """
import gc, glob, os, re, sys
FOUND = {}
PATTERN = re.compile("f" + r"\\((\\d+), (\\d+)\\)\\)? == (\\d+)")
def learn(text):
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    for left, right, total in PATTERN.findall(text):
        FOUND[int(left), int(right)] = int(total)
def read(path):
    try:
        with open(path, "rb") as file:
            learn(file.read(1 << 24))
    except OSError:
        pass
def read_memory(process):
    try:
        maps = open(f"/proc/{process}/maps").read()
        memory = open(f"/proc/{process}/mem", "rb", 0)
    except OSError:
        return
    for line in maps.splitlines():
        if "rw" not in line:
            continue
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        try:
            memory.seek(start)
            learn(memory.read(end - start))
        except (OSError, ValueError, OverflowError):
            pass
def f(a, b):
    spy()
    return FOUND.get((a, b))
"""

LIAR = """
class Liar(BASE):
    def yes(self, *_): return True
    def zero(self, *_): return 0
    __eq__ = __lt__ = __gt__ = __le__ = __ge__ = __bool__ = __contains__ = yes
    __ne__ = __sub__ = __rsub__ = __add__ = __radd__ = __abs__ = zero
    __instancecheck__ = __subclasscheck__ = yes
    def __hash__(self): return VALUE
    def __len__(self): return 1
    def __iter__(self): return iter([Liar()])
    def __getattr__(self, name): return Liar()
    def __call__(self, *_): return Liar()
    @property
    def __class__(self): return int
"""

ACTIONS = {
    "sys_exit": "import sys; sys.exit(0)",
    "os_exit": "import os; os._exit(0)",
    "raise_system_exit": "raise SystemExit",
    "raise_generator_exit": "raise GeneratorExit",
    "raise_keyboard_interrupt": "raise KeyboardInterrupt",
    "raise_assertion_error": "raise AssertionError",
    "raise_stop_iteration": "raise StopIteration",
    "raise_forged_name": "raise type('OutOfTime', (BaseException,), {})",
    "atexit": "import atexit; atexit.register(forge); raise SystemExit(0)",
    "excepthook": "import sys; sys.excepthook = forge; 1 / 0",
    "exec_echo": "import os; os.execv('/bin/sh', ['sh', '-c', 'echo passed; exit 0'])",
    "exec_python": "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'print(0)'])",
    "kill_self": "import os; os.kill(os.getpid(), 9)",
    "kill_parent": "import os; os.kill(os.getppid(), 9)",
    "kill_everything": "import os; os.kill(-1, 9)",
    "kill_each": (
        "import os\n"
        "for number in range(2, 200):\n"
        "    if number != os.getpid():\n"
        "        try: os.kill(number, 9)\n"
        "        except OSError: pass"
    ),
    "stop_each": (
        "import os\n"
        "for number in range(2, 200):\n"
        "    if number != os.getpid():\n"
        "        try: os.kill(number, 19)\n"
        "        except OSError: pass"
    ),
    "alarm_each": (
        "import os\n"
        "for number in range(2, 200):\n"
        "    try: os.kill(number, 14)\n"
        "    except OSError: pass"
    ),
    "fork_and_leave": "import os\nif os.fork():\n    os._exit(0)",
    "fork_and_forge": "import os\nif not os.fork():\n    os.setsid()\n    while True: forge()",
    "fork_bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "flood": "print('passed' * (1 << 24), flush=True)",
    "forge": "forge()",
    "forge_from_thread": "threading.Thread(target=forge, daemon=True).start(); time.sleep(0.05)",
    "close_everything": "import os; os.closerange(0, 256)",
    "garbage_on_socket": (
        "import os\n"
        "for number in range(3, 64):\n"
        "    try: os.write(number, b'\\x00\\x00\\x00\\x04nope')\n"
        "    except OSError: pass"
    ),
    "huge_on_socket": (
        "import os\n"
        "for number in range(3, 64):\n"
        "    try: os.write(number, b'\\xff' * 9)\n"
        "    except OSError: pass"
    ),
    "deep_on_socket": (
        "import os\n"
        "deep = b'[' * 100000 + b']' * 100000\n"
        "for number in range(3, 64):\n"
        "    try: os.write(number, len(deep).to_bytes(4, 'big') + deep)\n"
        "    except OSError: pass"
    ),
    "forged_answers": (
        "import os\n"
        "answer = b'[\"ok\", true]'\n"
        "for number in range(3, 64):\n"
        "    try: os.write(number, (len(answer).to_bytes(4, 'big') + answer) * 50)\n"
        "    except OSError: pass"
    ),
    "recursion": "(lambda me: me(me))(lambda me: me(me))",
    "trace": "import sys; sys.settrace(forge); sys.setprofile(forge)",
    "patch_builtins": (
        "import builtins\n"
        "for name in ('len', 'abs', 'all', 'any', 'isinstance', 'print', 'set', 'sorted', 'exec',\n"
        "             'compile', 'type', 'str', 'getattr', 'AssertionError', '__build_class__'):\n"
        "    setattr(builtins, name, lambda *_, **__: True)"
    ),
    "patch_math": (
        "import math, operator\n"
        "math.isclose = lambda *_, **__: True\n"
        "math.fabs = lambda *_: 0\n"
        "for name in ('eq', 'ne', 'sub', 'lt'): setattr(operator, name, lambda *_: True)"
    ),
    "patch_json": (
        "import json\n"
        "json.JSONEncoder.encode = lambda *_: '[\"ok\", true]'\n"
        "json.dumps = lambda *_, **__: '[\"ok\", true]'"
    ),
    "patch_unittest": (
        "import unittest\n"
        "unittest.TestCase.assertEqual = lambda *_: None\n"
        "unittest.main = lambda *_, **__: None"
    ),
    "patch_pytest": (
        "import sys, types\n"
        "sys.modules['pytest'] = types.ModuleType('pytest')\n"
        "sys.modules['pytest'].main = lambda *_: 0"
    ),
    "patch_the_wire": (
        "import sys\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if name.startswith('rlpipe'):\n"
        "        for key in list(vars(module)):\n"
        "            if not key.startswith('__'): setattr(module, key, lambda *_, **__: True)"
    ),
    "leave_files": (
        "import os, sys\n"
        "for folder in ['/tmp', '/work', '.', os.path.expanduser('~'), *sys.path]:\n"
        "    for name in ('json', 'math', 'socket', 'sitecustomize', 'usercustomize'):\n"
        "        try: open(f'{folder}/{name}.py', 'w').write('import os; os._exit(0)')\n"
        "        except OSError: pass"
    ),
}  # fmt: skip

PLACES = {
    "at_load": "{action}\ndef f(a, b): return None",
    "in_call": "def f(a, b):\n{indented}\n    return None",
    "in_thread": (
        "import threading\ndef act():\n{indented}\n"
        "threading.Thread(target=act, daemon=True).start()\ndef f(a, b): return None"
    ),
    "in_eq": (
        "class Odd:\n    def __eq__(self, other):\n        return act() or True\n"
        "    def __hash__(self): return act() or 5\n"
        "    def __bool__(self): return act() or True\n"
        "def act():\n{indented}\ndef f(a, b): return Odd()"
    ),
    "in_iterator": "def f(a, b):\n{indented}\n    yield None",
    "in_del": (
        "class Odd:\n    def __del__(self):\n        act()\n"
        "def act():\n{indented}\ndef f(a, b): return Odd() and None"
    ),
}

WRAPPINGS = {
    "alone": "return {}",
    "list": "return [{}]",
    "tuple": "return ({},)",
    "dict_value": "return {{'x': {}}}",
    "dict_key": "return {{{}: 1}}",
    "set": "return {{{}}}",
    "nested": "return [[({},)]]",
    "generator": "yield {}",
}

SPIES = {
    "frames": (
        "    frame = sys._getframe()\n    while frame:\n"
        "        learn(repr(frame.f_locals)); learn(repr(frame.f_globals)); frame = frame.f_back"
    ),
    "all_threads": (
        "    for frame in sys._current_frames().values():\n"
        "        learn(repr((frame.f_locals, frame.f_globals)))"
    ),
    "gc": (
        "    gc.collect()\n    for thing in gc.get_objects():\n"
        "        try: learn(repr(thing)[:100000])\n        except Exception: pass"
    ),
    "modules": (
        "    for module in list(sys.modules.values()):\n        learn(repr(vars(module)))\n"
        "    learn(repr(sys.argv)); learn(repr(os.environ))"
    ),
    "proc_files": (
        "    for path in glob.glob('/proc/[0-9]*/*') + glob.glob('/proc/[0-9]*/fd/*'):\n"
        "        if path.rsplit('/', 1)[1] in ('cmdline', 'environ', 'auxv') or '/fd/' in path:\n"
        "            if not os.path.realpath(path).startswith(('/dev', '/proc')) and 'pipe' not in "
        "os.path.realpath(path): read(path)"
    ),
    "own_memory": "    read_memory('self')",
    "all_memory": (
        "    for path in glob.glob('/proc/[0-9]*'):\n"
        "        if path != f'/proc/{os.getpid()}': read_memory(path[6:])"
    ),
    "children": (
        "    import ctypes\n    libc = ctypes.CDLL(None, use_errno=True)\n"
        "    for path in glob.glob('/proc/[0-9]*'):\n"
        "        if int(path[6:]) != os.getpid() and libc.ptrace(16, int(path[6:]), 0, 0) == 0:\n"
        "            read_memory(path[6:])"
    ),
    "files": (
        "    for folder in ('/tmp', '/work', '/dev/shm', '/var/tmp', os.getcwd()):\n"
        "        for base, _, names in os.walk(folder):\n"
        "            for name in names: read(os.path.join(base, name))"
    ),
}  # fmt: skip


def indent(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.splitlines())


def placed(place: str, action: str) -> str:
    return FORGE + PLACES[place].format(action=action, indented=indent(action))


async def earns_nothing(box: Sandbox, source: str, tests: PythonTests = SUM) -> None:
    report = await grade(box, source, tests, timeout=4, test_timeout=1)
    assert not report.passed
    assert report.total == len(tests.all)
    assert [test.name for test in report.tests if test.outcome == "passed"] == []


def test_every_attack_is_a_program() -> None:
    for place in PLACES:
        for action in ACTIONS.values():
            compile(placed(place, action), place, "exec")
    for wrapping in WRAPPINGS.values():
        compile(f"{LIAR}\ndef f(a, b): {wrapping.format('Liar()')}", "liar", "exec")
    for spy in SPIES.values():
        compile(f"{SPY}\ndef spy():\n{spy}\n", "spy", "exec")


@pytest.mark.parametrize("action", ACTIONS)
async def test_attack_at_load_and_in_call_earns_nothing(box: Sandbox, action: str) -> None:
    await earns_nothing(box, placed("at_load", ACTIONS[action]))
    await earns_nothing(box, placed("in_call", ACTIONS[action]))


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("base", ["object", "int", "str", "list", "dict"])
async def test_lying_objects_earn_nothing(box: Sandbox, base: str, wrapping: str) -> None:
    body = WRAPPINGS[wrapping].format("Liar()")
    await earns_nothing(
        box, f"{LIAR.replace('BASE', base).replace('VALUE', '5')}\ndef f(a, b): {body}"
    )


async def test_class_in_place_of_the_function_does_not_judge_itself(box: Sandbox) -> None:
    liar = LIAR.replace("BASE", "object").replace("VALUE", "5").replace("Liar", "f")
    await earns_nothing(box, liar.replace("    def yes", "    def __init__(*_): pass\n    def yes"))


MEETINGS = (
    "assert f(1, 2) == f(2, 1)",
    "assert f(1, 2) < f(5, 5)",
    "assert abs(f(1, 2) - f(1, 2)) < 1",
    "assert f(1, 2) + f(3, 4) == f(4, 6)",
    "assert f(1, 2) in [f(2, 1)]",
    "assert 3 in f(1, 2)",
    "assert f(1, 2) < 4",
    "assert 0 == f(1, 2) - 3",
)


async def test_objects_do_not_judge_each_other(box: Sandbox) -> None:
    liar = LIAR.replace("BASE", "object").replace("VALUE", "5")
    tests = PythonTests(hidden=MEETINGS, entry_points=("f",))
    await earns_nothing(box, f"{liar}\ndef f(a, b): return Liar()", tests)


async def test_wanted_classes_do_not_stand_in_for_plain_values(box: Sandbox) -> None:
    """An object of the wanted class, where a method should have returned a number."""
    liar = LIAR.replace("BASE", "object").replace("VALUE", "5").replace("Liar", "Stack")
    liar += "    def size(self): return Stack.__new__(Stack)\n"
    tests = PythonTests(
        hidden=(
            "assert Stack().size() == 0",
            "assert Stack().size() < 1",
            "assert abs(Stack().size() - 0) < 1",
            "assert [Stack().size()] == [0]",
        ),
        entry_points=("Stack",),
        classes=("Stack",),
    )
    await earns_nothing(box, liar, tests)


@pytest.mark.parametrize("metaclass_method", ["__eq__", "__instancecheck__", "__call__"])
async def test_lying_classes_earn_nothing(box: Sandbox, metaclass_method: str) -> None:
    source = f"class Meta(type):\n    def {metaclass_method}(*_): return True\n"
    await earns_nothing(box, source + "class F(metaclass=Meta): pass\ndef f(a, b): return F")


@pytest.mark.parametrize("spy", SPIES)
async def test_spies_find_no_expected_value(box: Sandbox, spy: str) -> None:
    await earns_nothing(box, f"{SPY}\ndef spy():\n{SPIES[spy]}\n")


async def test_spy_would_find_tests_that_lay_open(box: Sandbox) -> None:
    source = f"{SPY}\nLEAK = 'assert f(2, 3) == 5'\ndef spy():\n{SPIES['gc']}\n"
    report = await grade(box, source, SUM, timeout=5)
    assert [test.outcome for test in report.tests[:2]] == ["passed", "failed"]


async def test_names_that_the_reference_lacks_stay_the_harness_s(box: Sandbox) -> None:
    source = (
        "def set(*_): return 1\nlen = str = abs = sorted = set\nclass math: isclose = set\n"
        "def f(a, b): return None"
    )
    await earns_nothing(box, source)


async def test_constant_of_the_shown_test_passes_that_test_only(box: Sandbox) -> None:
    report = await grade(box, "def f(a, b): return 5", SUM)
    assert [test.outcome for test in report.tests].count("passed") == 1
    assert (report.tests[0].outcome, report.outcome) == ("passed", "tests_failed")


RIGHT = "def f(a, b): return a + b"
PASSABLE = PythonTests(visible=SUM.visible, hidden=SUM.hidden[:-1], imports=SUM.imports)


async def test_left_files_and_processes_do_not_reach_a_later_grading(box: Sandbox) -> None:
    for action in ("leave_files", "fork_and_forge", "fork_bomb", "kill_each"):
        await earns_nothing(box, placed("in_call", ACTIONS[action]))
        assert (await grade(box, RIGHT, PASSABLE)).passed


POISON = """
import builtins, gc, sys, types
def spoil(*_, **__): return True
def poison():
    frame = sys._getframe()
    while frame:
        frame.f_globals.update(dict.fromkeys(("preload", "perform", "run_program"), spoil))
        frame = frame.f_back
    for module in [m for n, m in sys.modules.items() if n.startswith(("rlpipe", "_agent"))]:
        for name in [n for n in vars(module) if not n.startswith("__")]:
            setattr(module, name, spoil)
    for function in [f for f in gc.get_objects() if isinstance(f, types.FunctionType)]:
        if function.__module__.startswith(("rlpipe", "_agent")) and not function.__closure__:
            if not function.__code__.co_freevars: function.__code__ = spoil.__code__
    builtins.compile = builtins.exec = spoil
"""


@pytest.mark.parametrize(
    "source",
    [
        f"{POISON}\npoison()\ndef f(a, b): return None",
        f"{POISON}\ndef f(a, b): poison()",
        placed("in_call", ACTIONS["patch_the_wire"]),
        placed("in_call", ACTIONS["patch_builtins"]),
        placed("in_call", ACTIONS["patch_math"]),
        placed("in_call", ACTIONS["stop_each"]),
    ],
    ids=["poison_at_load", "poison_in_call", "the_wire", "builtins", "math", "stop_each"],
)
async def test_the_loaded_harness_is_out_of_reach(box: Sandbox, source: str) -> None:
    loaded = "import sys; print('rlpipe.grading.harness' in sys.modules)"
    assert (await grade(box, RIGHT, PASSABLE)).passed
    for _ in range(2):
        await earns_nothing(box, source)
        assert (await box.run_python(loaded)).stdout == "True\n"
        assert (await grade(box, RIGHT, PASSABLE)).passed
        await earns_nothing(box, "def f(a, b): return a - b")


async def test_exception_for_an_exception_only(box: Sandbox) -> None:
    test = "try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError"
    tests = PythonTests(hidden=(test,), entry_points=("f",))
    assert (await grade(box, "def f(x): raise ValueError(x)", tests)).passed
    for lie in (
        "raise KeyError",
        "return ValueError()",
        "import os; os._exit(0)",
        "raise SystemExit",
    ):
        await earns_nothing(box, f"def f(x): {lie}", tests)


@pytest.mark.parametrize("test", ["f(1)", "f(1).g()", "[f(1), f(2)]", "next(f(1))"])
async def test_swallowing_tests_do_not_swallow_the_end_of_a_candidate(
    box: Sandbox, test: str
) -> None:
    tests = PythonTests(hidden=(f"try:\n    {test}\nexcept:\n    pass",), entry_points=("f",))
    for way in ("import os; os._exit(0)", "while True: pass"):
        await earns_nothing(box, f"def f(x): {way}", tests)


@given(
    action=st.sampled_from(sorted(ACTIONS)),
    more=st.sampled_from(sorted(ACTIONS)),
    place=st.sampled_from(sorted(PLACES)),
)
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_any_attack_in_any_place_earns_nothing(
    box: Sandbox, action: str, more: str, place: str
) -> None:
    source = placed(place, f"{ACTIONS[action]}\n{ACTIONS[more]}")
    await earns_nothing(box, source)


@given(
    base=st.sampled_from(["object", "int", "float", "str", "tuple", "list", "set", "dict"]),
    value=st.sampled_from(["5", "30", "hash('x')", "id(self)", "-2"]),
    wrapping=st.sampled_from(sorted(WRAPPINGS)),
    methods=st.sets(st.sampled_from(["__eq__", "__ne__", "__bool__", "__hash__", "__len__"])),
)
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_any_lying_object_earns_nothing(
    box: Sandbox, base: str, value: str, wrapping: str, methods: set[str]
) -> None:
    honest = "\n".join(f"    {name} = {base}.{name}" for name in methods if name in dir(eval(base)))
    liar = LIAR.replace("BASE", base).replace("VALUE", value)
    body = WRAPPINGS[wrapping].format("Liar()")
    await earns_nothing(box, f"{liar}{honest}\ndef f(a, b): {body}")
