"""The pages in a real browser: what a person sees, and that nothing a model wrote comes alive."""

import re
import threading

import pytest

from rlpipe.report.live import Report
from rlpipe.report.serve import open_server

from . import made

QUESTIONS = [
    "Did it learn?",
    "What did it try?",
    "What failed, and whose fault?",
    "What did it cost?",
]


def test_the_first_screen_answers_the_four_questions(browser, agent_report):
    browser.open(agent_report)
    assert browser.texts(".question") == QUESTIONS
    learned, tried, failed, cost = browser.texts(".headline")
    assert re.fullmatch(r"Yes: held-out pass rate rose from \d+\.\d\s% to \d+\.\d\s%", learned)
    assert tried.startswith("96 rollouts: ")
    assert re.match(r"Machinery: lost [1-9]\d* of 128 rollouts", failed)
    assert cost == "20 min 30 s, 2,048 tokens sampled"
    top = (
        "document.querySelector('[data-answer^=\"What did it cost\"]').getBoundingClientRect().top"
    )
    assert browser.ask(top) < 900
    assert "sandbox/SandboxGone" in browser.text("[data-answer^='What failed']")
    assert browser.until("document.querySelectorAll('[data-answer] canvas').length") == 1


def test_the_earlier_run_is_laid_beside(browser, agent_report):
    browser.open(agent_report)
    assert "Beside it: before, held-out" in browser.text("[data-answer^='Did it learn']")
    assert browser.texts("#spec .difference tbody td") == ["train.learning_rate", "0.001", "0.0002"]


def test_trajectories_are_filtered_and_one_is_read(browser, agent_report):
    browser.open(agent_report)
    assert browser.text(".listing > p") == "128 of 128 trajectories"
    browser.choose("phase", "train")
    browser.choose("step", "2")
    assert browser.text(".listing > p") == "16 of 128 trajectories"
    browser.choose("result", "passed")
    rewards = browser.texts(".rollouts tbody td:nth-child(2)")
    assert rewards
    assert set(rewards) == {"1"}
    browser.choose("q", "mbpp/3")
    assert set(browser.texts(".rollouts tbody td.task")) == {"mbpp/3"}

    browser.click(".rollouts tbody a")
    assert browser.text(".reader header h3") == "mbpp/3"
    browser.until("document.querySelectorAll('.message').length === 7")
    assert "def largest(numbers):" in browser.text(".call pre")
    assert "def" in browser.texts(".call pre .token.keyword")
    assert browser.text(".role-tool h4") == "tool: execute_code"
    assert browser.text(".role-tool pre") == "9"

    browser.click("[role=tab]", "Tests")
    assert browser.texts(".tests .chip") == ["passed"] * 3
    browser.click("[role=tab]", "Tokens")
    browser.until("document.querySelector('.turn > .token-run')")
    assert browser.text(".turn > .token-run") == "def largest(numbers):⏎ return<|im_end|>"
    title = browser.ask("document.querySelector('.turn > .token-run span').title")
    assert re.fullmatch(r"id 0, probability [\d.]+, logprob -?[\d.]+", title)
    browser.click("[role=tab]", "Record")
    assert '"rollout_id": "train-2-3-' in browser.text(".panel pre")

    browser.click(".reader-bar button", "Close")
    browser.until("document.querySelector('.reader').hidden")
    browser.click(".filters button", "Clear")
    assert browser.until("document.querySelector('.listing > p').textContent[0] === '1'")


def test_rewards_filter_and_order(browser, agent_report):
    browser.open(agent_report)
    browser.choose("to", "0.9")
    assert set(browser.texts(".rollouts tbody td:nth-child(2)")) == {"0.667"}
    browser.click(".filters button", "Clear")
    browser.choose("failure", "sandbox/SandboxGone")
    browser.until(
        "document.querySelector('.rollouts tbody td:nth-child(2)').textContent === '\u2013'"
    )
    browser.click(".filters button", "Clear")
    browser.choose("order", "high")
    assert browser.texts(".rollouts tbody td:nth-child(2)")[0] == "1"


def test_an_address_leads_to_one_trajectory(browser, agent_report):
    browser.open(f"{agent_report}#trajectories?phase=eval&open=eval_6%2Feval-6-3-0")
    assert browser.text(".reader header h3") == "held/3"
    browser.driver.find_element("css selector", "body").send_keys("j")
    browser.until("document.querySelector('.reader header h3').textContent === 'held/4'")


def test_a_run_without_training_shows_figures_in_place_of_curves(browser, tmp_path):
    folder = made.create(tmp_path / "run")
    folder.note(mode="collect", status="done")
    made_group = made.group("collect-0-0", 0, 6, 0.5, made.random.Random(2))
    for trajectory in made_group.trajectories:
        folder.add_trajectory("collect", trajectory.model_copy(update={"phase": "collect"}))
    folder.add_metrics(0, {"collect/pass_rate": 0.5, "rollout/count": 6.0})
    browser.open(Report(folder.path).write().as_uri())
    assert browser.texts(".figures dt, .figures dd") == [
        *("collect/pass_rate", "0.5", "rollout/count", "6"),
    ]
    assert "Nothing was trained" in browser.text(".headline")
    assert browser.ask("document.querySelector('#sandboxes').hidden")
    assert browser.texts("canvas") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_every_part_fits_its_window(browser, agent_report, width, scheme):
    browser.window(width, 800, scheme)
    browser.open(agent_report)
    assert not browser.overflows()
    bright = browser.ask("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] > 128")
    assert bright == (scheme == "light")
    browser.click(".rollouts tbody a")
    browser.until("document.querySelectorAll('.message').length > 3")
    assert not browser.overflows()
    box = browser.ask("document.querySelector('.reader').getBoundingClientRect().toJSON()")
    assert box["right"] <= width
    assert box["width"] > 300


def inert(browser):
    assert browser.ask("window.hacked") is None
    assert browser.texts("img, svg, iframe, object, embed, link[rel=stylesheet]") == []
    strangers = "document.querySelectorAll('[onerror], [onload], [onmouseover]').length"
    assert browser.ask(strangers) == 0


def test_hostile_content_stays_text(browser, tmp_path):
    folder = made.hostile_run(tmp_path / "run")
    browser.open(Report(folder.path).write().as_uri())
    inert(browser)
    assert made.HOSTILE[1] in browser.text("h1")
    assert "U+202E" in browser.text("h1")
    browser.click(".more summary")
    browser.click(".rollouts tbody a")
    browser.until("document.querySelectorAll('.message').length === 7")
    assert made.HOSTILE[3] in browser.text(".message .prose")
    shown = browser.text(".conversation")
    assert not set("\u202e\u2066\x00\x07\x1b\u2028\U000e0041") & set(shown)
    assert {"U+202E", "U+0000", "U+001B", "U+D800", "U+E0041"} <= set(
        browser.texts(".conversation .hidden-character")
    )
    for tab in ("Tests", "Tokens", "Record"):
        browser.click("[role=tab]", tab)
        browser.until("document.querySelector('.panel').textContent.includes('window.hacked')")
        inert(browser)


def test_markup_from_strings_is_refused_by_the_page(browser, agent_report):
    browser.open(agent_report)
    tried = (
        "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'made' }"
        " catch (error) { return error.name } })()"
    )
    assert browser.ask(tried) == "TypeError"
    browser.driver.execute_script(
        "const s = document.createElement('script');"
        "s.append('window.hacked = 1'); try { document.body.append(s) } catch (error) {}"
    )
    assert browser.ask("window.hacked") is None
    browser.errors()  # both attempts are told of


def test_ten_thousand_trajectories_are_inflated_on_demand(browser, tmp_path):
    folder = made.agent_run(tmp_path / "run", steps=100, groups=10, size=10, held_out=2)
    report = Report(folder.path).write()
    browser.open(report.as_uri())
    assert browser.text(".listing > p") == "10,004 of 10,004 trajectories"
    assert browser.ask("document.querySelectorAll('.rollouts tbody tr').length") == 50
    assert browser.ask("document.querySelectorAll('*').length") < 3000
    chunks = browser.ask("document.querySelectorAll('[id^=chunk-]').length")
    assert chunks >= 100
    inflated = (
        "window.inflated = []; const before = inflate;"
        "inflate = (name) => { window.inflated.push(name); return before(name) };"
    )
    browser.driver.execute_script(inflated)
    browser.choose("q", "train-57-3-2")
    assert browser.text(".listing > p") == "1 of 10,004 trajectories"
    browser.click(".rollouts tbody a")
    browser.until("document.querySelectorAll('.message').length > 3")
    assert len(browser.ask("window.inflated")) == 1


@pytest.fixture
def served(tmp_path):
    """Two runs of a sweep, served; the second goes on."""
    root = tmp_path / "outputs"
    made.agent_run(root / "sweep" / "0", "train.learning_rate=1e-3", steps=3)
    going = made.agent_run(root / "sweep" / "1", "seed=5", steps=2, done=False)
    server, address = open_server(root, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield address, going
    server.shutdown()
    server.server_close()
    thread.join()


def test_runs_are_listed_and_compared(browser, served):
    browser.open(served[0])
    assert browser.texts(".runs td.run a") == ["0", "1"] or browser.texts(".runs td.run a") == [
        "1",
        "0",
    ]
    heads = browser.texts(".runs th")
    assert {"run", "seed", "train.learning_rate"} <= {head.split(" ")[0] for head in heads}
    assert browser.texts("#beside .chart figcaption")[:2] == [
        "Held-out pass rate",
        "Training reward",
    ]
    browser.until("document.querySelector('[data-chart=parallel]')")
    browser.driver.execute_script(
        "document.querySelector('[data-chart=parallel]').scrollIntoView()"
    )
    browser.until("document.querySelector('[data-chart=parallel] canvas')")
    assert browser.texts("#beside .difference tbody td:first-child") == [
        "seed",
        "train.learning_rate",
    ]
    browser.click("input[type=checkbox]")
    browser.until("document.querySelector('#beside h2').textContent.includes('1 of 2')")
    assert not browser.overflows()


def test_a_run_that_goes_on_is_followed(browser, served):
    address, going = served
    browser.open(f"{address}run/sweep/1/")
    assert browser.text(".masthead .chip") == "running"
    count = browser.text(".listing > p")
    browser.choose("phase", "train")
    made.evaluate(going, 4, 16, 0.5, made.random.Random(1))
    browser.until("document.querySelector('.masthead p').textContent.includes('step 4 of')")
    going.note(status="done", ended="2026-01-02T03:30:00+00:00")
    browser.until("document.querySelector('.masthead .chip').textContent === 'done'")
    assert browser.ask("page.list.rows.count") == int(count.split()[0]) + 16
    assert browser.ask("document.querySelector('[data-filter=phase]').value") == "train"


def test_a_served_trajectory_is_read_from_the_run_folder(browser, served):
    browser.open(f"{served[0]}run/sweep/0/#trajectories?open=step_3%2Ftrain-3-1-2")
    browser.until("document.querySelectorAll('.message').length > 3")
    assert browser.text(".reader header h3") == "mbpp/1"
    browser.click("[role=tab]", "Tokens")
    assert "No tokenizer" in browser.text(".tokens")


def test_a_hostile_run_is_served_as_text(browser, tmp_path):
    made.hostile_run(tmp_path / "outputs" / "a")
    made.hostile_run(tmp_path / "outputs" / "b")
    server, address = open_server(tmp_path / "outputs", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        browser.open(address)
        inert(browser)
        browser.open(f"{address}run/a/")
        browser.click(".rollouts tbody a")
        browser.until("document.querySelectorAll('.message').length === 7")
        inert(browser)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
