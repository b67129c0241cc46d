import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.rewards._extraction import extract_code

RIGHT = "def f():\n    return 1"
PYTHON = f"```python\n{RIGHT}\n```"


def test_thought_prose_code_and_summary() -> None:
    text = (
        "<think>```python\ndef f(): return 0\n```</think>\nSo this is it:\n\n"
        f"{PYTHON}\n\nIn short:\n\n```\nf returns 1\n```\n"
    )
    assert extract_code(text) == RIGHT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(f"a\n{PYTHON}\nb", RIGHT, id="one"),
        pytest.param(f"```py\nx = 1\n```\n{PYTHON}", RIGHT, id="last_of_two"),
        pytest.param(f"{PYTHON}\n```text\nx = 1\n```", RIGHT, id="other_language_after"),
        pytest.param(f"{PYTHON}\n```sh\nls\n```\n```\nx\n```", RIGHT, id="tagged_and_untagged"),
        pytest.param(f"```\n{RIGHT}\n```", RIGHT, id="untagged"),
        pytest.param(f"```\n{RIGHT}\n```\n```\nf returns 1\n```", RIGHT, id="untagged_prose_after"),
        pytest.param(f"```\n{RIGHT}\n```\n```\n\n```", RIGHT, id="untagged_empty_after"),
        pytest.param("```\nf returns 1\n```", None, id="untagged_prose_only"),
        pytest.param("```json\n{}\n```", None, id="other_language_only"),
        pytest.param("```python\n\n```", None, id="empty_block"),
        pytest.param(f"{PYTHON}\n```python\n```", None, id="last_block_is_empty"),
        pytest.param(f"```python\n{RIGHT}\n", RIGHT, id="unclosed"),
        pytest.param(f"```python\n{RIGHT}", RIGHT, id="unclosed_without_newline"),
        pytest.param(PYTHON.replace("\n", "\r\n"), RIGHT, id="crlf"),
        pytest.param(f"~~~python\n{RIGHT}\n~~~", RIGHT, id="tildes"),
        pytest.param(f"~~~~ py\n{RIGHT}\n~~~\n~~~~", f"{RIGHT}\n~~~", id="more_tildes"),
        pytest.param(f"````python\n{RIGHT}\n````", RIGHT, id="four_backticks"),
        pytest.param(
            "````python\nd = '''\n```python\n0\n```\n'''\n````",
            "d = '''\n```python\n0\n```\n'''",
            id="nested",
        ),
        pytest.param(f"````markdown\n{PYTHON}\n````", None, id="inside_another_block"),
        pytest.param(f"```Python title='a.py'\n{RIGHT}\n```", RIGHT, id="words_after_language"),
        pytest.param(f"``` {{.python}}\n{RIGHT}\n```", RIGHT, id="attribute_list"),
        pytest.param(f"```python3\n{RIGHT}\n```", RIGHT, id="python3"),
        pytest.param(
            "1. so:\n   ```python\n   def f():\n       return 1\n   ```", RIGHT, id="indented"
        ),
        pytest.param("use ```x``` here", None, id="inline"),
        pytest.param("x = 1", None, id="bare_code"),
        pytest.param("", None, id="nothing"),
        pytest.param(f"<think>hm\n{PYTHON}", None, id="unclosed_thought"),
        pytest.param(f"```py\n0\n```\n</think>\n{PYTHON}", RIGHT, id="thought_opened_in_prompt"),
        pytest.param("```py\n0\n```\n</think>\nno code", None, id="only_in_such_a_thought"),
        pytest.param(f"<think>a<think>b</think>\n{PYTHON}</think>", None, id="nested_thoughts"),
        pytest.param(f"<THINK>{PYTHON}</THINK>", None, id="tags_in_capitals"),
        pytest.param(f"{PYTHON}<think>\n```py\n0\n```\n</think>", RIGHT, id="thought_after"),
        pytest.param(f"{PYTHON}\n<answer>x = 2</answer>", "x = 2", id="answer_before_fence"),
        pytest.param("<answer>1</answer><answer>2</answer>", "2", id="last_answer"),
        pytest.param(f"<answer>\n{PYTHON}\n</answer>", RIGHT, id="fence_in_answer"),
        pytest.param("<answer>```\n42 is it\n```</answer>", "42 is it", id="prose_fence_in_answer"),
        pytest.param("<answer>\n  a = 1\n  b = 2\n</answer>", "a = 1\nb = 2", id="indented_answer"),
        pytest.param(f"{PYTHON}\n<answer> \n</answer>", None, id="empty_answer"),
        pytest.param(f"<answer>\n{PYTHON}", RIGHT, id="unclosed_answer_has_a_fence"),
        pytest.param(f"<think><answer>0</answer></think>{PYTHON}", RIGHT, id="answer_in_thought"),
        pytest.param("</answer><answer>", None, id="tags_in_the_wrong_order"),
    ],
)  # fmt: skip
def test_auto(text: str, expected: str | None) -> None:
    assert extract_code(text) == expected


def test_kinds_take_one_place_only() -> None:
    text = f"<answer>x = 2</answer>\n{PYTHON}"
    assert extract_code(text, "answer") == "x = 2"
    assert extract_code(text, "fence") == RIGHT
    assert extract_code(PYTHON, "answer") is None
    assert extract_code("<answer>x = 2</answer>", "fence") is None


PIECES = st.sampled_from(
    ["<think>", "</think>", "<answer>", "</answer>", "```", "````", "~~~", "```python\n", "\n",
     "\r\n", "x = 1", "\\d", "\0", "(" * 300, " " * 4, "\u2028", "é"]
)  # fmt: skip


@given(st.lists(PIECES | st.text()).map("".join), st.sampled_from(["auto", "answer", "fence"]))
def test_no_text_raises_and_what_comes_was_in_it(text: str, kind: str) -> None:
    code = extract_code(text, kind)  # type: ignore[arg-type]
    assert code is None or code.strip()
    unwrapped = text.replace("\r\n", "\n")
    assert code is None or all(line in unwrapped for line in code.split("\n"))


@given(st.text(alphabet="abc ()=:\n\t'\"#`~", min_size=1))
def test_code_comes_back_from_a_longer_fence(code: str) -> None:
    text = f"so\n{'`' * 40}python\n{code}\n{'`' * 40}\ndone"
    assert extract_code(text) == (code.strip("\n").rstrip() or None)
