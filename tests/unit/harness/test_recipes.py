from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnomon.harness.adapters.catalogue import ADAPTERS
from gnomon.harness.adapters.gnomon import GnomonAdapter
from gnomon.harness.adapters.protocol import Setting
from gnomon.harness.adapters.render import render_flags
from gnomon.harness.cancel import CancelToken, Cause
from gnomon.harness.errors import RecipeRefused, RunCancelled
from gnomon.harness.nouns import ServerAddress
from gnomon.harness.recipes.flags import Flag
from gnomon.harness.recipes.load import check_recipe, plannable
from gnomon.harness.recipes.plan import check_plan
from gnomon.harness.recipes.point import Point
from gnomon.harness.recipes.serving import KvSpec
from gnomon.harness.recipes.strict_yaml import read_yaml

ROOT = Path(__file__).parents[3]


def refused(path: Path, text: str | dict[str, Any]) -> RecipeRefused:
    source = path / "recipe.yaml"
    source.write_text(text if isinstance(text, str) else yaml.safe_dump(text))
    with pytest.raises(RecipeRefused) as caught:
        check_recipe(source)
    return caught.value


def changed(recipe: dict[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    out = copy.deepcopy(recipe)
    node: Any = out
    *parents, last = dotted.split(".")
    for key in parents:
        node = node[int(key)] if key.isdigit() else node[key]
    node[last] = value
    return out


TABLE = [
    ("nam", "x", "nam", "unknown key 'nam'", "Did you mean 'name'?"),
    ("limits.max_num_seq", {"value": 1, "why": "a reason here"}, "limits.max_num_seq",
     "unknown key", "Did you mean 'max_num_seqs'?"),
    ("kv.layout.value", "mxfp3", "kv.layout.value",
     "unknown layout 'mxfp3'", "Did you mean 'mxfp4'?"),
    ("kv.layout", "mxfp4", "kv.layout", "has no reason",
     "value: mxfp4 and why:"),
    ("engine.flags.seed", {"value": 0}, "engine.flags.seed.why", "needs a reason", "Say"),
    ("limits.max_num_seqs.value", 0, "limits.max_num_seqs.value", "0 is not accepted",
     "Correct it"),
    ("engine.name", "vlm", "engine.name", "unknown value 'vlm'", "Choose one of: gnomon"),
    ("scope", "smok", "scope", "unknown value 'smok'", "Did you mean 'smoke'?"),
    ("concurrency", [0], "concurrency[0]", "0 is not accepted", "greater than"),
    ("scenario.traces.sesions", 2, "scenario.traces.sesions", "unknown key", "'sessions'"),
    ("concurrency", ["2"], "concurrency[0]", "'2' is not accepted", "valid integer"),
    ("scenario.traces.turns", True, "scenario.traces.turns", "True is not", "valid integer"),
    ("engine.flags.seed.value", True, "engine.flags.seed.value", "True is not", "valid integer"),
    ("kv.prefix_caching.value", "yes",
     "kv.prefix_caching.value", "'yes' is not accepted", "valid boolean"),
    ("deadlines.ready_s", "9", "deadlines.ready_s", "'9' is not accepted", "valid number"),
    ("evals.0.threads", 1.0, "evals[0].threads", "1.0 is not accepted", "valid integer"),
    ("evals.0.api", "chatt", "evals[0].api", "unknown value 'chatt'", "'chat'"),
    ("evals.1.api", "chat", "evals[1]", "is already evals[0]", "Remove one"),
    ("name", "Not A Name", "name", "not accepted", ""),
    ("limits.max_model_len.value", 512, "limits.max_model_len.value",
     "cannot hold the scenario's longest request", "Raise it to 2688"),
    ("scope", "full", "scope", "stand for no real load", "Use smoke or diagnostic"),
    ("deadlines.plan", 5, "deadlines.plan", "unknown key 'plan'", "'plan_s'"),
]  # fmt: skip


@pytest.mark.parametrize(("dotted", "value", "path", "message", "remedy"), TABLE)
def test_a_broken_recipe_is_refused_with_what_to_change(
    dotted: str,
    value: Any,
    path: str,
    message: str,
    remedy: str,
    quickstart: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ADAPTERS, "gnomon", scripted_planner('{"ok": true, "plan": {}}'))
    problems = refused(tmp_path, changed(quickstart, dotted, value)).problems
    assert [problem.path for problem in problems] == [path]
    assert message in problems[0].message
    assert remedy in f"{problems[0].message} {problems[0].remedy}"


def test_every_problem_of_schema_and_plan_is_reported_at_once(
    quickstart: dict[str, Any], tmp_path: Path
) -> None:
    """With the real planner: an unknown key, an unknown layout, and memory that cannot do."""
    recipe = changed(quickstart, "engine.flags.kv_cache_memory_bytes.value", 1000)
    recipe = changed(recipe, "kv.index_layout.value", "int3")
    recipe = changed(recipe, "replays", {})
    recipe = changed(recipe, "kv.block_size", {"value": 64, "why": "smaller pages"})
    error = refused(tmp_path, recipe)
    paths = [problem.path for problem in error.problems]
    assert "replays" in paths
    assert "kv.index_layout.value" in paths
    assert "kv.block_size.value" in paths
    assert any("cache blocks" in problem.message for problem in error.problems)
    assert all(problem.remedy for problem in error.problems)
    assert all(str(problem) in str(error) for problem in error.problems)


def test_the_quickstart_recipe_is_accepted_with_a_plan() -> None:
    checked = check_recipe(ROOT / "recipes" / "quickstart.yaml")
    assert checked.plan.ok
    assert checked.plan.plan["num_blocks"] > 0
    assert checked.plan.model_dir is not None
    assert (checked.plan.model_dir / "tokenizer.json").is_file()


def test_a_duplicate_key_is_refused_and_names_both_lines(tmp_path: Path) -> None:
    error = refused(tmp_path, "name: a\nscope: smoke\nname: b\n")
    duplicate = error.problems[0]
    assert (duplicate.path, "line 1" in duplicate.message) == ("line 3", True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: [", "not readable as YAML"),
        ("- a\n- b\n", "not a mapping"),
        ("", "not a mapping"),
        ("name: !!python/object:os.system x\n", "not readable as YAML"),
        ("name: a\n\0", "'\\x00' is not allowed"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(text: str, words: str, tmp_path: Path) -> None:
    assert any(words in problem.message for problem in refused(tmp_path, text).problems)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeRefused, match="No such file"):
        check_recipe(tmp_path / "none.yaml")


def test_nested_duplicates_are_all_found() -> None:
    _, problems = read_yaml("a:\n  x: 1\n  x: 2\nb:\n  y: 1\n  y: 2\n  y: 3\n")
    assert [problem.path for problem in problems] == ["line 3", "line 6", "line 7"]


def test_an_unreadable_flag_causes_no_refusal_by_the_planner(quickstart: dict[str, Any]) -> None:
    quickstart["kv"]["layout"]["value"] = "int3"
    quickstart["limits"]["max_model_len"]["value"] = "long"
    planned = plannable(quickstart)
    assert planned["kv_cache_dtype"] == "mxfp4"  # the smallest: what it cannot hold, nothing can
    assert "max_model_len" not in planned
    assert planned["kv_cache_memory_bytes"] > 1 << 40


# The adapter.


def test_the_server_command_is_rendered_flag_by_flag(point: Point) -> None:
    command = GnomonAdapter().serve(point, ServerAddress("127.0.0.1", 4321, "nano"))
    assert " ".join(command.argv[1:]) == (
        "-m gnomon serve nano --host 127.0.0.1 --port 4321 --served-model-name nano "
        "--kv-cache-dtype mxfp4 --index-cache-dtype mxfp4 --max-model-len 8192 --max-num-seqs 8 "
        "--max-num-batched-tokens 1024 --kv-cache-memory-bytes 134217728 "
        "--enable-prefix-caching --seed 0"
    )


def test_a_flag_that_is_off_is_said_to_be_off() -> None:
    flags = {"enable_prefix_caching": False, "max_num_seqs": 4}
    assert render_flags(flags) == ["--no-enable-prefix-caching", "--max-num-seqs", "4"]


def test_what_is_asked_and_what_follows_from_it_is_attested(point: Point) -> None:
    kv = KvSpec(layout=Flag(value="auto", why="the default"))
    settings = GnomonAdapter().settings(
        point.model_copy(update={"kv": kv}), {"num_blocks": 7, "block_bytes": 99}
    )
    asked = {setting.name: setting.asked for setting in settings}
    assert asked["kv_cache_dtype"] == asked["index_cache_dtype"] == "bf16"
    assert asked["num_blocks"] == 7
    assert Setting("speculation", "none", "facts.speculation") in settings


# The planner's answers.


class ScriptedPlanner(GnomonAdapter):
    code = ""

    def plan(self, model: str, flags: Any) -> Any:
        command = super().plan(model, flags)
        return type(command)((command.argv[0], "-c", self.code), {})


def scripted_planner(answer: str, code: int = 0, sleep: float = 0.0) -> ScriptedPlanner:
    kind = type("Planner", (ScriptedPlanner,), {})
    kind.code = f"import time; time.sleep({sleep}); print({answer!r}); raise SystemExit({code})"
    return kind()


def test_a_refusal_of_the_planner_points_at_the_flag_it_names() -> None:
    answer = '{"ok": false, "refusals": [{"code": "c", "message": "too small", "remedy": "Raise --max-model-len."}]}'  # noqa: E501
    report = check_plan(scripted_planner(answer, 2), "nano", {}, 30, CancelToken())
    assert not report.ok
    assert report.problems[0].path == "limits.max_model_len.value"


@pytest.mark.parametrize(
    ("answer", "code"), [("no json", 1), ('{"ok": true}', 3), ('{"ok": false}', 0), ("[]", 0)]
)
def test_a_planner_that_does_not_say_yes_has_said_no(answer: str, code: int) -> None:
    report = check_plan(scripted_planner(answer, code), "nano", {}, 30, CancelToken())
    assert not report.ok
    assert report.problems


def test_a_planner_that_hangs_is_a_problem_of_its_deadline() -> None:
    report = check_plan(scripted_planner("{}", sleep=60), "nano", {}, 0.3, CancelToken())
    assert report.problems[0].path == "deadlines.plan_s"


def test_a_planner_ends_with_the_run() -> None:
    cancel = CancelToken()
    cancel.cancel(Cause.INTERRUPTED, "by the test")
    with pytest.raises(RunCancelled):
        check_plan(scripted_planner("{}", sleep=60), "nano", {}, 30, cancel)
