"""What a spec may say, and what is said about one that is wrong."""

import re
from pathlib import Path

import pytest

from rlpipe.component import kinds, lookup
from rlpipe.config.compose import load_experiment
from rlpipe.config.overrides import flags_first
from rlpipe.config.paths import CONF, RECIPES
from rlpipe.config.schema import PACKAGES, Experiment
from rlpipe.errors import ConfigError
from rlpipe.fit import check

RECIPE_NAMES = sorted(file.stem for file in RECIPES.glob("*.yaml"))


def _write_recipe(folder, monkeypatch, text, name="mine"):
    (folder / "recipes").mkdir(exist_ok=True)
    (folder / "recipes" / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(folder)


def findings(*overrides, recipe="quickstart"):
    with pytest.raises(ConfigError) as caught:
        load_experiment(recipe, *overrides)
    return {finding.key: finding for finding in caught.value.findings}


def test_a_typo_is_named_with_its_path_its_origin_and_the_right_name():
    (finding,) = findings("train.leraning_rate=1e-5").values()
    assert str(finding) == (
        "train.leraning_rate: no such option of train 'grpo'; did you mean 'learning_rate'?"
        " [command line]"
    )


def test_every_problem_is_told_at_once():
    found = findings("train.steps=x", "rollout.max_turn=3", "tools.bsh.timeout=1", "mode=fly")
    assert set(found) == {"train.steps", "rollout.max_turn", "tools.bsh", "mode"}
    assert "valid integer" in found["train.steps"].problem
    assert "(got 'x')" in found["train.steps"].problem


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_an_unknown_key_is_refused_however_it_is_spelt(sign):
    assert "reward.partial" in findings(f"{sign}reward.partial=1")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("train.num_generations", "train.group_size"),
        ("train.lr", "train.learning_rate"),
        ("rollout.max_completion_length", "rollout.max_tokens"),
        ("train.num_steps", "train.steps"),
        ("dataset.num_problems", "dataset.limit"),
        ("num_problems", "dataset.limit"),
        ("num_steps", "train.steps"),
        ("trajectories_per_problem", "train.group_size"),
        ("base_model", "policy.model"),
        ("model", "teacher.model"),
        ("base_url", "teacher.base_url"),
        ("learning_rate", "train.learning_rate"),
        ("project", "name"),
        ("run_name", "hydra.run.dir"),
        ("report_to", "tracker"),
        ("train.max_steps", "train.steps"),
        ("rollout.max_steps", "rollout.max_turns"),
        ("rollout.max_tool_output", "tools.<name>.max_output"),
        ("rollout.timeout_seconds", "rollout.timeout"),
        ("sandbox.container_image", "sandbox.image"),
        ("dataset.system_prompt", "dataset.system"),
    ],
)
def test_a_name_that_other_tools_use_is_refused_with_ours(theirs, ours):
    (finding,) = findings(f"{theirs}=4").values()
    assert f"here it is called {ours}" in finding.problem


def test_every_name_of_ours_that_is_offered_is_one():
    from rlpipe.config.problems import ELSEWHERE

    tree = load_experiment("mbpp_art", "dataset=jsonl", "dataset.path=x").model_dump()
    for said in set(ELSEWHERE.values()) - {"hydra.run.dir"}:
        for key in said.replace("<name>", "execute_code").split(", or "):
            node = tree
            for part in key.split(" ")[0].split("."):
                assert part in node, said
                node = node[part]


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--num-problems", "called dataset.limit"),
        ("--num-problems=10", "called dataset.limit"),
        ("--num-steps", "called train.steps"),
        ("--trajectories-per-problem", "called train.group_size"),
        ("--base-model", "called policy.model"),
        ("--model", "called teacher.model"),
        ("--base-url", "called teacher.base_url"),
        ("--project", "called name"),
        ("--run-name", "called hydra.run.dir"),
        ("--learning-rate", "called train.learning_rate"),
        ("--backend", "called backend"),
        ("--dry-run", "called dry_run"),
        ("--nonsense", "unrecognized arguments: --nonsense"),
    ],
)
def test_a_flag_of_a_script_is_refused_with_its_key(flag, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        flags_first(["+recipe=mbpp_art", flag, "10"])


README = Path(__file__).parents[2] / "README.md"


def test_the_readmes_table_of_flags_says_what_the_refusals_say():
    rows = re.findall(r"^\| `(--[a-z-]+)` \| `([\w.]+)=", README.read_text(), re.MULTILINE)
    assert len(rows) == 11
    for flag, key in rows:
        with pytest.raises(ConfigError, match=rf"{flag}: .* called {re.escape(key)}\b"):
            flags_first([flag, "x"])


def test_a_name_of_ours_in_the_wrong_section_is_told_what_the_section_has():
    (finding,) = findings("train.concurrency=4").values()
    assert finding.problem.startswith("no such option of train 'grpo'")


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("train.group_size=1", "train.group_size"),
        ("train.learning_rate=0", "train.learning_rate"),
        ("train.learning_rate=.nan", "train.learning_rate"),
        ("sandbox.tags=prod", "sandbox.tags"),
        ("name=a/b", "name"),
        ("seed=-1", "seed"),
        ("seed=99999999999999999999999", "seed"),
        ("train.seed=-3", "train.seed"),
        ("train.seed=4294967296", "train.seed"),
        ("policy.heads=200", "policy.heads"),
        ("policy.hidden_size=130", "policy.heads"),
        ("reward.kind=test_pass", "reward"),
    ],
)
def test_a_bad_value_is_refused_at_its_key(override, key):
    assert key in findings(override)


def test_a_tool_that_has_its_own_default_timeout_keeps_the_bound():
    assert "tools.bash.timeout" in findings("tools=[bash]", "tools.bash.timeout=-5")


def test_an_unknown_kind_names_the_near_one():
    assert "did you mean 'tests_pass'" in findings("reward.kind=test_pass")["reward"].problem


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.steps=${nope}", "${nope} does not resolve: Interpolation key 'nope' not found"),
        ("train.steps=${oc.env:RLPIPE_NOPE}", "Environment variable 'RLPIPE_NOPE' not found"),
        ("train.steps=${train.steps}", "does not resolve"),
        ("train.kind=${nope}", "does not resolve"),
        ("name=${nope}", "does not resolve"),
    ],
)
def test_a_reference_that_does_not_resolve_is_told_with_its_key_and_origin(override, said):
    found = findings(override, "seed=${neither}", "rollout.max_turn=3")
    key = override.split("=")[0]
    assert set(found) == {key, "seed", "rollout.max_turn"}
    assert said in found[key].problem
    assert found[key].origin == "command line"


def test_a_reference_that_does_not_resolve_is_told_of_a_recipe_too(tmp_path, monkeypatch):
    _write_recipe(tmp_path, monkeypatch, "train:\n  steps: ${nope}\n")
    (finding,) = findings(recipe="mine").values()
    assert (finding.key, finding.origin) == ("train.steps", "recipes/mine.yaml")


def test_a_spec_may_refer_to_what_hydra_knows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_experiment("quickstart", "output_root=${hydra:runtime.cwd}/o").output_root == (
        f"{tmp_path}/o"
    )


@pytest.mark.parametrize(
    ("override", "key", "known"),
    [
        ("train.kind=null", "train.kind", "grpo"),
        ("backend.kind=5", "backend.kind", "trl"),
        ("tools.bash.kind=null", "tools.bash.kind", "execute_code"),
    ],
)
def test_a_kind_that_is_no_name_is_one_problem(override, key, known):
    found = findings("tools=[bash]", override)
    assert set(found) == {key}
    assert known in found[key].problem


@pytest.mark.parametrize(
    ("overrides", "key", "said"),
    [
        (["dry_run=maybe"], "dry_run", "'online'"),
        (
            ["policy=scripted", "policy.turns=[{tool_cals: []}]"],
            "policy.turns.0.tool_cals",
            "'tool_calls'",
        ),
        (["policy=scripted", "policy.turns=[5]"], "policy.turns.0", "valid string"),
        (["evaluate.sample=3"], "evaluate.sample", "'samples'"),
    ],
)
def test_a_value_of_several_types_is_one_problem_at_its_own_key(overrides, key, said):
    found = findings(*overrides)
    assert set(found) == {key}
    assert said in found[key].problem


def test_a_missing_value_is_required():
    found = findings("dataset=jsonl")
    assert found["dataset.path"].problem.startswith("required; set it in a recipe or as")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("+recipe=quickstrat", "recipe: no choice 'quickstrat'"),
        ("backend=trk", "backend: no choice 'trk'"),
        ("tools=[bsh]", "tools: no choice 'bsh'"),
    ],
)
def test_an_unknown_choice_names_the_near_one(override, said):
    with pytest.raises(ConfigError, match=said) as caught:
        load_experiment(None, override)
    assert "did you mean" in str(caught.value)


@pytest.mark.parametrize(
    ("group", "value"),
    [
        ("train", "null"),
        ("train", "5"),
        ("train", "true"),
        ("tools", "null"),
        ("tools", "[bash,5]"),
        ("teacher", "1.5"),
        ("recipe", "5"),
    ],
)
def test_a_choice_that_is_no_name_is_one_problem(group, value):
    with pytest.raises(ConfigError) as caught:
        load_experiment(None, f"{group}={value}", "sandbox=5")
    found = {finding.key: finding for finding in caught.value.findings}
    assert set(found) == {group, "sandbox"}
    assert f"takes the name of a choice, not {value} (known: " in found[group].problem


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train: {steps: 3\nseed: 1\n", "recipes/mine.yaml, line 2: "),
        ("seed: 1\nseed: 2\n", "recipes/mine.yaml, line 2: found duplicate key seed"),
        ("train: {steps: '${'}\n", "recipes/mine.yaml"),
        ("defaults: [mine]\n", "recipes/mine.yaml: recipes extend each other in a circle"),
        ("defaults: [other]\n", "mine -> other -> mine"),
        ("defaults: 5\n", "defaults: takes a list"),
        ("defaults: [5, {override /train: 5}]\n", "(got 5) [recipes/mine.yaml]"),
        ("defaults: [{train: grpo, policy: tiny}]\n", "defaults: an entry is"),
        ("- seed\n", "recipes/mine.yaml: it is a list"),
        ("", "recipes/mine.yaml: it is empty"),
        ("5\n", "recipes/mine.yaml: it holds no options"),
    ],
)
def test_a_broken_recipe_is_told_with_its_file(tmp_path, monkeypatch, text, said):
    _write_recipe(tmp_path, monkeypatch, "defaults: [mine]\n", name="other")
    _write_recipe(tmp_path, monkeypatch, text)
    with pytest.raises(ConfigError) as caught:
        load_experiment("mine")
    assert said in str(caught.value)


def test_a_recipe_in_another_encoding_is_told_with_its_line(tmp_path, monkeypatch):
    _write_recipe(tmp_path, monkeypatch, "")
    (tmp_path / "recipes" / "mine.yaml").write_bytes(b"seed: 1\nname: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"recipes/mine\.yaml, line 2: it is not in UTF-8"):
        load_experiment("mine")


def test_unknown_choices_are_told_beside_all_else():
    found = findings(
        "+recipe=quickstart", "backend=trk", "tools=[bash,pyton]", "train.stepz=1", "backend.lr=2"
    )
    assert list(found) == ["backend", "tools", "train.stepz"]
    assert "did you mean 'trl'" in found["backend"].problem
    assert "no choice 'pyton'" in found["tools"].problem
    assert "did you mean 'steps'" in found["train.stepz"].problem


def test_parts_that_are_incomplete_are_told_beside_what_the_schema_refuses():
    found = findings("seed=x", "train.stepz=1", "sandbox.network=public", "reward.answr=1")
    assert list(found) == ["seed", "reward.answr", "train.stepz", "sandbox.network"]
    assert found["sandbox.network"].origin == "command line"
    assert set(findings("train.steps=0", "train.group_size=1")) == {
        "train.steps",
        "train.group_size",
    }


@pytest.mark.parametrize(
    ("tool", "option", "said"),
    [
        ("submit_solution", "max_output=100", "; it has none"),
        ("write_file", "keep=head", "; it has none"),
        ("read_file", "timeout=5", " (it has: keep, max_output)"),
    ],
)
def test_a_tool_has_only_options_that_it_acts_on(tool, option, said):
    (finding,) = findings(f"tools=[{tool}]", f"tools.{tool}.{option}").values()
    assert finding.problem == f"no such option of tools {tool!r}{said}"


def test_a_folder_is_no_recipe(tmp_path, monkeypatch):
    _write_recipe(tmp_path, monkeypatch, "seed: 1\n")
    (tmp_path / "recipes" / "mime.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"no choice 'mime' \(known: agent_files, mbpp_art, "):
        load_experiment("mime")


def test_a_recipe_needs_no_plus():
    assert load_experiment(None, "recipe=quickstart").name == "quickstart"


def test_an_origin_is_the_recipe_or_the_file_that_says_it(tmp_path, monkeypatch):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text(
        "defaults: [quickstart, _self_]\ntrain:\n  stepz: 3\n"
    )
    monkeypatch.chdir(tmp_path)
    (finding,) = findings(recipe="mine").values()
    assert (finding.key, finding.origin) == ("train.stepz", "recipes/mine.yaml")


def test_a_recipe_extends_another_and_is_found_in_the_users_folder(tmp_path, monkeypatch):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text(
        "defaults: [quickstart, _self_]\ntrain:\n  steps: 3\n"
    )
    monkeypatch.chdir(tmp_path)
    mine, base = load_experiment("mine"), load_experiment("quickstart")
    assert (mine.name, mine.train.steps) == ("mine", 3)
    assert mine.dataset == base.dataset


def test_a_tool_set_is_chosen_by_name_and_each_tool_has_a_path():
    tools = load_experiment(
        "quickstart", "tools=[bash,submit_solution]", "tools.bash.timeout=5"
    ).tools
    assert set(tools) == {"bash", "submit_solution"}
    assert tools["bash"].timeout == 5


def test_an_experiment_survives_a_round_trip():
    first = load_experiment("quickstart", "tools=[bash]")
    assert Experiment.model_validate(first.model_dump()) == first


@pytest.mark.parametrize("recipe", RECIPE_NAMES)
@pytest.mark.parametrize("backend", sorted(file.stem for file in (CONF / "backend").glob("*.yaml")))
def test_every_recipe_is_valid_on_every_backend(recipe, backend, monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-1")
    monkeypatch.setattr("rlpipe.component._installed", lambda module: True)
    # A model that is made on the spot is only where it was made.
    here = backend == "trl" or load_experiment(recipe).policy.kind != "tiny"
    policy = [] if here else ["policy=qwen3_8b"]
    for overrides in (
        [f"+recipe={recipe}", f"backend={backend}", *policy],
        [f"backend={backend}", f"+recipe={recipe}", *policy],
    ):
        experiment = load_experiment(None, *overrides)
        assert experiment.backend.kind == lookup("backends", backend).model_fields["kind"].default
        assert [found for found in check(experiment) if not found.lacking] == []


@pytest.mark.parametrize("recipe", RECIPE_NAMES)
def test_no_recipe_writes_under_backend(recipe):
    from omegaconf import OmegaConf

    assert "backend" not in OmegaConf.load(RECIPES / f"{recipe}.yaml")


def _files():
    for group, package in PACKAGES.items():
        for file in sorted((CONF / group).glob("*.yaml")):
            if (group, file.stem) != ("teacher", "none"):
                yield pytest.param(group, package, file, id=f"{group}/{file.stem}")


@pytest.mark.parametrize(("group", "package", "file"), list(_files()))
def test_a_choice_shows_every_option_and_nothing_else(group, package, file):
    """Hydra overrides what a file shows, so a file shows everything."""
    from omegaconf import OmegaConf

    shown = OmegaConf.to_container(OmegaConf.load(file))
    if group in ("tools", "tracker"):
        (shown,) = shown.values()
    component = lookup(package, shown["kind"])
    assert set(shown) == set(component.model_fields)


def test_every_kind_has_a_choice():
    for group, package in PACKAGES.items():
        if group == "teacher":
            continue
        assert set(kinds(package)) <= {file.stem for file in (CONF / group).glob("*.yaml")}
