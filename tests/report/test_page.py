"""Pages hold all that they need, and nothing that is written into them can become markup."""

import base64
import hashlib
import html
import html.parser
import json
import logging
import re
from types import SimpleNamespace

import pytest

from rlpipe.report import live
from rlpipe.report.live import Report
from rlpipe.report.page import ASSETS, SCRIPTS, STYLES, compress, embedded, render
from rlpipe.report.spec import differences, flatten, run_before
from rlpipe.report.tokens import pieces, tokenizer_file

from . import made
from .made import EVIL, blocks, hostile_run


class Outline(html.parser.HTMLParser):
    """The tags of a page, with the texts of its scripts and styles."""

    def __init__(self, text):
        super().__init__(convert_charrefs=False)
        self.tags = []
        self.texts = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.texts.append("")

    def handle_data(self, data):
        if self.cdata_elem:
            self.texts[-1] += data


def outline(path):
    return Outline(path.read_text("utf-8"))


def test_the_policy_names_every_script_and_style_of_the_page(tmp_path):
    page = outline(Report(made.agent_run(tmp_path / "run", steps=1).path).write())
    (policy,) = [a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a]
    inline = [a for t, a in page.tags if t in ("script", "style")]
    runs = [text for a, text in zip(inline, page.texts, strict=True) if "type" not in a]
    assert len(runs) == len(SCRIPTS["run"]) + len(STYLES)
    for text in runs:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert not {"unsafe-inline", "unsafe-eval", "http:", "https:"} & set(re.split(r"[ ';]", policy))


def test_a_page_loads_nothing(tmp_path):
    page = outline(Report(hostile_run(tmp_path / "run").path).write())
    for tag, attributes in page.tags:
        assert not {"src", "srcset", "action", "data"} & attributes.keys(), tag
        assert attributes.get("href", "data:").startswith("data:")
    assert {tag for tag, _ in page.tags} <= {
        *("html", "head", "meta", "title", "link", "style", "body"),
        *("noscript", "p", "div", "script"),
    }


def test_a_served_page_asks_its_own_server_alone():
    page = "".join(render("runs", EVIL))
    assert "connect-src 'self'" in html.unescape(page)
    assert "<script>window.hacked" not in page


MARKUP = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|\.on\w+ ="


def test_nothing_of_ours_makes_markup_of_a_string():
    for name in {n for names in SCRIPTS.values() for n in names if "vendor" not in n}:
        code = (ASSETS / name).read_text()
        found = re.findall(MARKUP, code)
        assert found == [], name


@pytest.mark.parametrize("name", sorted({n for names in SCRIPTS.values() for n in names}))
def test_no_script_ends_itself(name):
    code = (ASSETS / name).read_text()
    assert "</script" not in code.lower()
    assert "<!--" not in code


def test_libraries_come_with_their_licences(tmp_path):
    text = Report(made.create(tmp_path / "run").path).write().read_text()
    assert text.count("Permission is hereby granted, free of charge") == 2
    assert "Copyright (c) 2012 Lea Verou" in text
    assert re.search(r"Copyright \(c\) \d+ Leon Sorokin", text)


def test_embedded_json_survives_and_closes_nothing():
    tree = {"text": f"{EVIL}\ud800", "number": float("inf"), "list": [float("nan"), 1.5]}
    text = embedded(tree)
    assert text.isascii()
    assert not set("<>&") & set(text)
    back = json.loads(text)
    assert back == {"text": f"{EVIL}\ud800", "number": None, "list": [None, 1.5]}


def test_a_report_holds_every_trajectory(tmp_path):
    folder = made.agent_run(tmp_path / "run", steps=2, groups=40, size=4, held_out=5)
    held = blocks(Report(folder.path).write())
    index = held["index"]
    for name, chunk, place in zip(index["rollout"], index["first"], index["second"], strict=True):
        assert held[f"chunk-{chunk}"][place]["rollout_id"] == name
    assert len(index["rollout"]) == 330
    sizes = [len(rows) for name, rows in held.items() if name.startswith("chunk")]
    assert sorted(sizes) == [5, 5, 32, 32, 128, 128]


def test_a_report_that_is_written_again_takes_what_is_new(tmp_path):
    folder = made.agent_run(tmp_path / "run", steps=1, held_out=4, done=False)
    report = Report(folder.path)
    report.write()
    made.evaluate(folder, 2, 4, 0.5, made.random.Random(1))
    again, afresh = blocks(report.write()), blocks(Report(folder.path).write())
    assert sorted(again["index"]["rollout"]) == sorted(afresh["index"]["rollout"])
    columns = [again["index"][name] for name in ("rollout", "first", "second")]
    for name, chunk, place in zip(*columns, strict=True):
        assert again[f"chunk-{chunk}"][place]["rollout_id"] == name


def test_what_is_too_much_for_one_file_leaves_the_oldest_out(tmp_path, monkeypatch):
    folder = made.agent_run(tmp_path / "run", steps=4, held_out=4)
    whole = Report(folder.path).write().stat().st_size
    monkeypatch.setattr(live, "MOST", 7000)
    path = Report(folder.path).write()
    index = blocks(path)["index"]
    files = [index["file"]["words"][code] for code in index["file"]["codes"]]
    kept = {file for file, chunk in zip(files, index["first"], strict=True) if chunk >= 0}
    assert len(files) == 72
    assert "step_4" in kept
    assert "eval_0" not in kept
    assert path.stat().st_size < whole


def test_a_chunk_ends_before_it_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "CHUNK_BYTES", 10_000)
    folder = made.agent_run(tmp_path / "run", steps=1, held_out=0)
    held = blocks(Report(folder.path).write())
    sizes = [len(rows) for name, rows in held.items() if name.startswith("chunk")]
    assert sum(sizes) == 16
    assert 2 <= max(sizes) <= 5


def test_a_fault_in_the_report_is_logged_and_the_run_goes_on(tmp_path, monkeypatch, caplog):
    folder = made.create(tmp_path / "run")
    report = Report(folder.path)
    monkeypatch.setattr(live, "figures", lambda data, against: 1 / 0)
    with caplog.at_level(logging.ERROR):
        report.keep(now=True)
    (record,) = caplog.records
    assert "the report could not be written" in record.message
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
    assert not (folder.path / "report.html").exists()


def test_a_report_is_not_written_all_the_time(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    written = []
    report = Report(made.create(tmp_path / "run").path)

    def write():
        written.append(clock[0])
        clock[0] += 4.0  # it takes that long

    monkeypatch.setattr(report, "write", write)
    for now in (100.0, 129.0, 130.5, 200.0, 300.0, 334.0, 335.0):
        clock[0] = now
        report.keep()
    assert written == [130.5, 335.0]  # 4 seconds are 2 % of 200
    report.keep(now=True)
    assert written[2:] == [339.0]


def test_a_report_is_whole_or_the_one_before(tmp_path, monkeypatch):
    folder = made.create(tmp_path / "run")
    report, written = Report(folder.path), folder.path / "report.html"
    report.keep(now=True)
    before = written.read_text()

    def broken(*args, **options):
        yield "<!doctype html>"
        raise OSError("no space left on device")

    monkeypatch.setattr(live, "render", broken)
    report.keep(now=True)
    assert written.read_text() == before


def test_specs_differ_by_key_path():
    assert flatten({"a": {"b": 1, "c": []}, "d": {}}) == {"a.b": 1, "a.c": [], "d": {}}
    one = {"name": "x", "train": {"steps": 5, "lr": 1}, "tools": {"bash": {"kind": "bash"}}}
    two = {"name": "y", "train": {"steps": 6, "lr": 1}}
    assert differences({"one": one, "two": two}) == {
        "train.steps": ["5", "6"],
        "tools.bash.kind": ['"bash"', "absent"],
    }
    assert differences({"one": {"a": 1}, "two": {"a": True}}) == {"a": ["1", "true"]}


def test_the_run_before_is_the_one_that_started_last(tmp_path):
    for name, started in (("c", "2026-01-01"), ("a", "2026-01-02"), ("b", "2026-01-03")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(json.dumps({"started": started}))
    assert run_before(tmp_path / "b") == tmp_path / "a"
    assert run_before(tmp_path / "a") == tmp_path / "c"
    assert run_before(tmp_path / "c") is None


def test_tokens_are_spelt_by_the_tokenizer_of_the_checkpoint(tmp_path):
    made.add_tokenizer(tmp_path)
    file = tokenizer_file(tmp_path, {})
    assert file is not None
    assert pieces(file, [1, 5, 7, 99]) == {1: " largest", 5: "\n", 7: "<|im_end|>"}


def test_half_a_character_is_spelt_as_bytes(tmp_path):
    file = tmp_path / "tokenizer.json"
    # The euro sign is e2 82 ac; byte-level BPE spells 82 and ac as U+0124 and the not sign.
    vocabulary = {"\u00e2\u0124": 0, "\u00e2\u0124\u00ac": 1}
    file.write_text(json.dumps({"model": {"vocab": vocabulary}, "decoder": {"type": "ByteLevel"}}))
    assert pieces(file, [0, 1]) == {0: "\\xe2\\x82", 1: "€"}


def test_sentencepiece_has_its_own_spelling(tmp_path):
    file = tmp_path / "tokenizer.json"
    vocabulary = [["<unk>", 0.0], ["\u2581to", -1.0], ["<0x0A>", -2.0]]
    file.write_text(json.dumps({"model": {"type": "Unigram", "vocab": vocabulary}}))
    assert pieces(file, [1, 2]) == {1: " to", 2: "\n"}


@pytest.mark.parametrize("model", [None, 5, "", "Qwen/Qwen2.5"])
def test_without_a_tokenizer_there_is_none(tmp_path, model):
    assert tokenizer_file(tmp_path, {"policy": {"model": model}}) is None


def test_a_model_in_a_folder_has_its_tokenizer_there(tmp_path):
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / "tokenizer.json"
    file.write_text("{}")
    assert tokenizer_file(tmp_path, {"policy": {"model": str(tmp_path / "model")}}) == file
    assert pieces(file, [1]) == {}


def test_compressed_text_is_the_same_each_time():
    assert compress([1, 2]) == compress([1, 2])
