import json

import pytest

from rlpipe import chat
from rlpipe.types import StopReason, Trajectory, Turn

pytest.importorskip("transformers", reason="needs the trl extra")

from rlpipe.policies.tiny import _tokenizer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "execute_code",
            "description": "Run code.",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}},
        },
    }
]
ASK = {"role": "user", "content": "Write Python that prints 4."}


@pytest.fixture(scope="module")
def tokenizer():
    return _tokenizer(400)


def called(code, number=0):
    function = {"name": "execute_code", "arguments": json.dumps({"code": code})}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def test_the_tokenizer_keeps_tags_and_single_digits(tokenizer):
    text = "<answer>print(17 + 25)</answer> <tool_call> é\x00"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert tokenizer.convert_ids_to_tokens(ids).count("1") == 1


def test_history_is_extended_and_never_encoded_again(tokenizer):
    first = chat.prompt_ids(tokenizer, [ASK], TOOLS, [])
    # Token ids that no encoding of the text would give.
    said = tuple(tokenizer.encode(c, add_special_tokens=False)[0] for c in "print")
    turn = Turn(
        message_index=1,
        prompt_ids=tuple(first),
        completion_ids=(*said, tokenizer.eos_token_id),
        logprobs=(0.0,) * 6,
    )
    answer = {"role": "tool", "tool_call_id": "call_0", "content": "4"}
    second = chat.prompt_ids(tokenizer, [ASK, called("2+2"), answer], TOOLS, [turn])
    history = [*first, *said, tokenizer.eos_token_id]
    assert second[: len(history)] == history
    given = tokenizer.decode(second[len(history) :])
    assert given.startswith("\n<|im_start|>user\n<tool_response>\n4\n</tool_response>")
    assert given.endswith("<|im_start|>assistant\n")


def test_extended_ids_equal_a_fresh_rendering_where_the_text_is_canonical(tokenizer):
    first = chat.prompt_ids(tokenizer, [ASK], TOOLS, [])
    whole = [ASK, called("2+2"), {"role": "tool", "tool_call_id": "call_0", "content": "4"}]
    fresh = chat.prompt_ids(tokenizer, whole, TOOLS, [])
    said = '<tool_call>\n{"name": "execute_code", "arguments": {"code": "2+2"}}\n</tool_call>'
    ids = (*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id)
    turn = Turn(message_index=1, prompt_ids=tuple(first), completion_ids=ids)
    assert chat.prompt_ids(tokenizer, whole, TOOLS, [turn]) == fresh


def test_a_template_that_fails_is_named(tokenizer):
    class Raising:
        eos_token = "</s>"

        def apply_chat_template(self, *args, **kwargs):
            raise TypeError("no tools here")

    with pytest.raises(ValueError, match="template failed: TypeError: no tools here"):
        chat.prompt_ids(Raising(), [ASK], TOOLS, [])


def test_tool_calls_are_read_from_text():
    message = chat.parse_message(
        'Let me see.\n<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>\n'
        '<tool_call>{"name": "b", "arguments": {}}</tool_call>'
    )
    assert message["content"] == "Let me see."
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [{"name": "a", "arguments": '{"x": 1}'}, {"name": "b", "arguments": "{}"}]
    assert [call["id"] for call in message["tool_calls"]] == ["call_0", "call_1"]


@pytest.mark.parametrize(
    ("block", "name", "arguments"),
    [
        (
            '{"name": "run", "arguments": {"code": "1}',
            "run",
            '{"name": "run", "arguments": {"code": "1}',
        ),
        ("nonsense", "", "nonsense"),
        ('{"name": "run"}', "run", '{"name": "run"}'),
        ("[1]", "", "[1]"),
        ('{"name": "run", "arguments": "{\\"code\\": 1}"}', "run", '{"code": 1}'),
    ],
)
@pytest.mark.parametrize("end", ["</tool_call>", ""])
def test_a_malformed_call_keeps_its_text(block, name, arguments, end):
    (call,) = chat.parse_message(f"<tool_call>\n{block}\n{end}")["tool_calls"]
    assert call["function"] == {"name": name, "arguments": arguments}


def test_plain_text_is_a_message_without_calls():
    assert chat.parse_message("hello") == {"role": "assistant", "content": "hello"}


def test_supervised_rows_carry_loss_on_the_assistant_alone(tokenizer):
    messages = (
        ASK,
        called("2+2"),
        {"role": "tool", "tool_call_id": "call_0", "content": "4"},
        {"role": "assistant", "content": "It is 4."},
    )
    trajectory = Trajectory(
        rollout_id="r",
        group_id="g",
        task_id="t",
        stop_reason=StopReason.FINAL_ANSWER,
        messages=messages,
        tools=tuple(TOOLS),
    )
    ((input_ids, labels),) = chat.supervised_rows(tokenizer, trajectory)
    assert len(input_ids) == len(labels)
    learned = tokenizer.decode([i for i in labels if i != chat.IGNORED])
    assert learned == (
        '<tool_call>\n{"name": "execute_code", "arguments": {"code": "2+2"}}\n</tool_call>'
        "<|im_end|>It is 4.<|im_end|>"
    )
    assert all(
        label in (chat.IGNORED, token) for token, label in zip(input_ids, labels, strict=True)
    )
    given = tokenizer.decode(
        [i for i, k in zip(input_ids, labels, strict=True) if k == chat.IGNORED]
    )
    assert "prints 4." in given
    assert "<tool_response>\n4" in given


@pytest.mark.parametrize("name", ["qwen3", "qwen3_instruct_2507", "qwen2_5", "qwen3_6"])
def test_tool_answers_extend_history_under_templates_that_rewrite_it(tokenizer, name):
    from importlib.resources import files

    template = (files("trl") / "chat_templates" / f"{name}.jinja").read_text()
    first = chat.prompt_ids(tokenizer, [ASK], TOOLS, [])
    answer = {"role": "tool", "tool_call_id": "call_0", "content": "4"}
    turn = Turn(
        message_index=1, prompt_ids=tuple(first), completion_ids=(7, tokenizer.eos_token_id)
    )
    before = tokenizer.chat_template
    tokenizer.chat_template = template
    try:
        ids = chat.prompt_ids(tokenizer, [ASK, called("2+2"), answer], TOOLS, [turn])
    finally:
        tokenizer.chat_template = before
    history = [*first, 7, tokenizer.eos_token_id]
    assert ids[: len(history)] == history
    given = tokenizer.decode(ids[len(history) :])
    assert "<tool_response>\n4\n</tool_response>" in given
    assert "<|im_start|>assistant\n" in given
    assert "=assistant=" not in given


def thoughtful(**fields):
    messages = (
        ASK,
        called("2+2") | {"reasoning_content": "I had better run it."},
        {"role": "tool", "tool_call_id": "call_0", "content": "4"},
        {"role": "assistant", "content": "It is 4.", "reasoning_content": "Fine."},
    )
    return Trajectory(
        rollout_id="r",
        group_id="g",
        task_id="t",
        stop_reason=StopReason.FINAL_ANSWER,
        tools=tuple(TOOLS),
        **{"messages": messages, **fields},
    )


def learned_of(tokenizer, rows):
    return [tokenizer.decode([i for i in labels if i != chat.IGNORED]) for _, labels in rows]


@pytest.fixture
def templated(tokenizer):
    from importlib.resources import files

    before = tokenizer.chat_template

    def use(name):
        tokenizer.chat_template = (files("trl") / "chat_templates" / f"{name}.jinja").read_text()
        return tokenizer

    yield use
    tokenizer.chat_template = before


@pytest.mark.parametrize("name", ["qwen3", "qwen3_instruct_2507", "qwen2_5", "qwen3_6"])
def test_reasoning_is_neither_learned_nor_shown(templated, name):
    tokenizer = templated(name)
    rows = chat.supervised_rows(tokenizer, thoughtful())
    assert "It is 4.<|im_end|>" in "".join(learned_of(tokenizer, rows))
    for ids, _ in rows:
        assert "better run" not in tokenizer.decode(ids)
        assert "Fine" not in tokenizer.decode(ids)


def test_reasoning_that_is_asked_for_is_learned(templated):
    tokenizer = templated("qwen3")
    (said,) = learned_of(tokenizer, chat.supervised_rows(tokenizer, thoughtful(), reasoning=True))
    assert said.startswith("<think>\nI had better run it.\n</think>")
    assert "<think>\nFine.\n</think>\n\nIt is 4.<|im_end|>" in said


def test_reasoning_that_a_template_drops_is_not_silently_lost(templated):
    with pytest.raises(ValueError, match="no place for reasoning"):
        chat.supervised_rows(templated("qwen2_5"), thoughtful(), reasoning=True)


def test_what_the_task_itself_shows_is_not_learned(tokenizer):
    shown = (ASK, {"role": "assistant", "content": "An example."})
    said = (ASK, {"role": "assistant", "content": "My own."})
    turn = Turn(message_index=3)
    rows = chat.supervised_rows(tokenizer, thoughtful(messages=shown + said, turns=(turn,)))
    assert learned_of(tokenizer, rows) == ["My own.<|im_end|>"]
    assert "An example." in tokenizer.decode(rows[0][0])
