"""Files that extend others, sections that exclude each other, combinations that cannot work."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.recipes.conftest import RECIPES, tree_of

from gnomon.harness.adapters.protocol import Command
from gnomon.harness.adapters.render import render_flags
from gnomon.harness.errors import RecipeRefused
from gnomon.harness.nouns import ServerAddress
from gnomon.harness.recipes import load
from gnomon.harness.recipes.capabilities import Capabilities
from gnomon.harness.recipes.expand import Expansion
from gnomon.harness.recipes.load import check_recipe, load_recipe
from gnomon.harness.recipes.merge import merge, spread_arms, written_path
from gnomon.harness.recipes.plan import PlanReport
from gnomon.harness.recipes.policy import PUBLISHING, REFUSING

Expand = Callable[..., Expansion]

H100 = "minimax-m3-h100-vllm-2423"
BOTH = {"workers": 1, "tp": 4}


def problems(tmp_path: Path, tree: dict[str, Any] | str) -> list[tuple[str, str]]:
    source = tmp_path / "recipe.yaml"
    source.write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree))
    with pytest.raises(RecipeRefused) as caught:
        load_recipe(source)
    return [(problem.path, str(problem)) for problem in caught.value.problems]


def changed(**keys: Any) -> dict[str, Any]:
    """The H100 recipe with values at dotted paths (``__`` between keys) replaced."""
    tree = copy.deepcopy(tree_of(H100))
    for dotted, value in keys.items():
        *parents, last = dotted.split("__")
        node: Any = tree
        for key in parents:
            node = node[int(key)] if key.isdigit() else node.setdefault(key, {})
        node[int(last) if last.isdigit() else last] = value
    return tree


# Inheritance.


def test_mappings_merge_and_everything_else_replaces() -> None:
    base = {"a": {"x": 1, "y": [1, 2]}, "b": 1, "c": 2}
    assert merge(base, {"a": {"y": [3]}, "b": {"z": 1}, "c": None}) == {
        "a": {"x": 1, "y": [3]},
        "b": {"z": 1},
    }
    assert base == {"a": {"x": 1, "y": [1, 2]}, "b": 1, "c": 2}


def test_a_flag_is_replaced_whole_because_another_value_has_another_reason() -> None:
    base = {"seed": {"value": 0, "why": "the same tokens"}}
    assert merge(base, {"seed": {"value": 1}}) == {"seed": {"value": 1}}


def test_a_topology_is_replaced_whole() -> None:
    base = {"topology": {"tp": 8, "ep": 8}}
    assert merge(base, {"topology": {"tp": 4}}) == {"topology": {"tp": 4}}


def test_an_arm_is_the_recipe_with_its_own_changes() -> None:
    spread, own = spread_arms(
        {"name": "r", "kv": {"a": 1}, "arms": [{"name": "x", "kv": {"b": 2}}, {"name": "y"}]}
    )
    assert spread["arms"] == [
        {"name": "x", "kv": {"a": 1, "b": 2}},
        {"name": "y", "kv": {"a": 1}},
    ]
    tree = {"kv": {"a": 1}}
    assert written_path(("arms", 0, "kv", "b"), tree, own) == ("arms", 0, "kv", "b")
    assert written_path(("arms", 0, "kv", "a"), tree, own) == ("kv", "a")
    assert written_path(("arms", 1, "kv", "b"), tree, own) == ("kv", "b")
    assert written_path(("arms", 0, "kv", "missing"), tree, own) == ("arms", 0, "kv", "missing")


def test_later_files_and_the_recipe_itself_win(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("scope: smoke\nhardware: {name: cpu, vendor: none}\n")
    (tmp_path / "b.yaml").write_text("scope: full\nhardware: {gpus_per_node: 0}\n")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "extends: [a.yaml, b.yaml]\nname: r\ndescription: made of parts\n"
        "hardware: {name: laptop}\ntopology: {tp: 1}\nconcurrency: [1]\n"
        "model: {path: nano, weights: random}\nengine: {name: gnomon}\n"
    )
    loaded = load_recipe(recipe).recipe
    assert loaded.scope == "full"
    assert loaded.arms[0].hardware.name == "laptop"
    assert loaded.arms[0].hardware.vendor == "none"


def test_a_circle_of_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: [recipe.yaml]\n")
    found = problems(tmp_path, "extends: [a.yaml]\nname: r\n")
    assert any("extends a.yaml again" in text for _, text in found)


def test_a_fault_of_an_extended_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("scope: full\nscope: smoke\n")
    assert ("a.yaml, line 2", "Keep one") in [
        (path, "Keep one") for path, _ in problems(tmp_path, "extends: [a.yaml]\nname: r\n")
    ]
    missing = problems(tmp_path, "extends: [none.yaml]\nname: r\n")
    assert any("none.yaml cannot be read" in text for _, text in missing)


def test_a_fault_in_what_two_arms_share_is_told_once_and_where_it_is_written(
    tmp_path: Path,
) -> None:
    found = problems(tmp_path, changed(engine__flags__attention_backnd={"value": "X", "why": "y"}))
    assert [path for path, _ in found] == ["engine.flags.attention_backnd"]
    assert "Did you mean 'attention_backend'?" in found[0][1]


def test_a_fault_of_one_arm_is_told_at_that_arm(tmp_path: Path) -> None:
    offload = {"backend": "mooncake", "dram_share": 1.5, "why": "more than there is"}
    found = problems(tmp_path, changed(arms__1__offload=offload))
    assert [path for path, _ in found] == ["arms[1].offload.dram_share"]


# Sections that exclude or need each other.

TABLE: list[tuple[dict[str, Any], str, str]] = [
    ({"surprise": 1}, "surprise", "unknown key"),
    ({"engine__name": "vlm"}, "engine.name", "Did you mean 'vllm'?"),
    ({"model__revision": "main"}, "model.revision", "is not accepted"),
    ({"model__checkpoint_bytes": "444"}, "model.checkpoint_bytes", "not a size"),
    ({"engine__image__digest": "v0.27.1"}, "engine.image.digest", "is not accepted"),
    ({"speculation__acceptance_length": 2.78}, "speculation.acceptance_length", "unknown key"),
    ({"speculation__thinking": True}, "speculation.thinking", "unknown value"),
    ({"speculation__tokens": 0}, "speculation.tokens", "is not accepted"),
    ({"engine__env": {"lower": {"value": "1", "why": "no reason"}}}, "engine.env.lower", "match"),
    ({"scenario__kind": "agentik"}, "scenario.kind", "Did you mean 'agentic'?"),
    ({"scenario__duration_s": 60}, "scenario.duration_s", "900"),
    ({"arms__0__topology": {"pp": 2}}, "arms[0].topology", "needs tp, or prefill and decode"),
    ({"arms__0__topology": {"tp": 8, "dcp": 3}}, "arms[0].topology", "not a multiple of dcp 3"),
    ({"arms__0__topology": {"tp": 8, "ep": 3}}, "arms[0].topology", "ep 3 does not divide"),
    (
        {"arms__0__topology": {"tp": 8, "prefill": BOTH, "decode": BOTH, "transfer": "nixl"}},
        "arms[0].topology",
        "tp beside prefill and decode",
    ),
    ({"arms__0__topology": {"prefill": BOTH}}, "arms[0].topology", "come together"),
    (
        {"arms__0__topology": {"prefill": BOTH, "decode": BOTH}},
        "arms[0].topology",
        "need transfer",
    ),
    (
        {"arms__0__topology": {"prefill": BOTH, "decode": {"workers": 0}, "transfer": "nixl"}},
        "arms[0].topology",
        "without decode workers",
    ),
    ({"arms__0__offload": "dram"}, "arms[0].offload", "unknown value 'dram'"),
    ({"arms__0__offload": {"backend": "mooncake", "why": "no share"}}, "arms[0].offload.dram_share",
     "needs 'dram_share'"),
    ({"arms__0__offload": {"backend": "nfs", "dram_share": 0.5, "why": "no such thing"}},
     "arms[0].offload.backend", "unknown value 'nfs'"),
    ({"arms__0__concurrency": []}, "arms[0]", "lists nothing"),
    ({"arms__0__concurrency": [4, 1]}, "arms[0]", "must ascend"),
    ({"arms__0__concurrency": {"start": 8, "end": 4}}, "arms[0].concurrency", "above end"),
    ({"arms__0__concurrency": None}, "arms[0].concurrency", "no number of sessions"),
    ({"arms__0__name": "tep8"}, "arms", "'tep8' names 2 arms"),
    ({"arms": []}, "arms", "the list is empty"),
    ({"limits__max_num_seqs": {"value": 8, "why": "too many ways"}}, "limits", "twice"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "path", "words"), TABLE)
def test_a_broken_recipe_says_where_and_why(
    change: dict[str, Any], path: str, words: str, tmp_path: Path
) -> None:
    found = problems(tmp_path, changed(**change))
    assert path in [where for where, _ in found]
    assert any(words in text for where, text in found if where == path)


def test_several_points_need_a_choice(tmp_path: Path) -> None:
    source = RECIPES / "gnomon-layouts.yaml"
    with pytest.raises(RecipeRefused, match="has 8 points, and a run executes one") as caught:
        check_recipe(source)
    assert "--point" in str(caught.value)
    checked = check_recipe(source, point_id="mxfp4-c2")
    assert checked.point.kv_layout == "mxfp4"
    assert checked.point.concurrency == 2
    assert checked.plan.ok


def test_a_point_is_planned_with_the_options_it_is_served_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Limits that follow from the concurrency too: the planned blocks are attested later."""
    asked: list[dict[str, Any]] = []

    def plan(_: object, __: str, flags: dict[str, Any], *___: object) -> PlanReport:
        asked.append(dict(flags))
        return PlanReport(Command((), {}), True, (), {})

    monkeypatch.setattr(load, "check_plan", plan)
    for point_id, sequences in (("mxfp4-c1", 2), ("mxfp4-c2", 4)):
        checked = check_recipe(RECIPES / "gnomon-layouts.yaml", point_id=point_id)
        address = ServerAddress("127.0.0.1", 1, "nano")
        served = checked.adapter.serve(checked.point, address).argv
        assert asked[-1]["max_num_seqs"] == sequences
        assert served[-len(render_flags(asked[-1])) :] == tuple(render_flags(asked[-1]))


def test_a_point_of_another_engine_is_not_run_here() -> None:
    with pytest.raises(RecipeRefused) as caught:
        check_recipe(RECIPES / f"{H100}.yaml", point_id="tp8-c16")
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {"engine.name", "scenario.kind"}


# The capability matrix.

CAPABILITY: list[tuple[str, dict[str, Any], str, str]] = [
    (H100, {"kv": {"layout": {"value": "mxfp4", "why": "4-bit pages"}}}, "kv.layout.value",
     "no 4-bit pages"),
    (H100, {"topology": {"tp": 8, "dp_attention": True}}, "topology.dp_attention",
     "cannot hold the cache of one request"),
    (H100, {"offload": {"backend": "lmcache", "dram_share": 0.5, "why": "not on NVIDIA"}},
     "offload.backend", "It lists: mooncake, vllm-simple"),
    (H100, {"hardware": {"name": "tpu"}}, "hardware.name", "It lists: h100"),
    ("minimax-m3-mi300x-vllm", {"topology": {"tp": 4}}, "topology", "do not stay resident"),
    ("minimax-m3-b200-trtllm", {"speculation": {"method": "dspark"}}, "speculation.method",
     "does not list"),
    ("minimax-m3-mi355x-atom",
     {"kv": {"layout": {"value": "mxfp4", "why": "4-bit pages"}}}, "kv.index_layout.value",
     "the index key has the same format"),
    ("kimi-k3-b300-vllm", {"topology": {"tp": 4}}, "topology", "1.5 TB"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "path", "words"), CAPABILITY)
def test_what_the_matrix_does_not_list_is_refused_with_the_reason(
    name: str, change: dict[str, Any], path: str, words: str, expanded: Expand
) -> None:
    arm = {"name": "asked", "topology": {"tp": 8}, "concurrency": [1], **change}
    (planned,) = expanded({"arms": [arm]}, name).points
    found = [problem for problem in planned.refused if problem.path == path]
    assert found, planned.refused
    assert any(words in f"{problem.message} {problem.remedy}" for problem in found)


def test_no_reason_of_the_matrix_is_cut_short() -> None:
    """Unquoted, YAML ends a value where a reference such as ``#2962`` begins."""
    for failure in Capabilities.shipped().refuses:
        assert failure.because.count("(") == failure.because.count(")")
        assert failure.instead.endswith(".")


def test_the_matrix_lists_every_engine_of_the_schema() -> None:
    from gnomon.harness.recipes.engine_spec import ENGINES

    assert set(Capabilities.shipped().engines) == set(ENGINES)


# Rules of fair measurement.


def arm(**keys: Any) -> dict[str, Any]:
    return {"arms": [{"name": "asked", "topology": {"tp": 8}, "concurrency": [1], **keys}]}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"engine": {"flags": {"hf_overrides": {
            "value": {"text_config": {"index_topk_freq": 4}}, "why": "three layers reuse"}}}},
         "engine.flags.hf_overrides.value"),
        ({"kv": {"block_size": {"value": 16, "why": "the default"}}}, "kv.block_size.value"),
        ({"kv": {"block_size": None}}, "kv.block_size.value"),
        ({"engine": {"env": {"SGLANG_SIMULATE_ACC_LEN": {
            "value": "2.78", "why": "a copied literal"}}}},
         "engine.env.SGLANG_SIMULATE_ACC_LEN"),
    ],
)  # fmt: skip
def test_a_point_that_is_not_what_it_says_is_refused(
    change: dict[str, Any], path: str, expanded: Expand
) -> None:
    (planned,) = expanded({**arm(), **change}).points
    assert path in [problem.path for problem in planned.refused]


PUBLIC = {
    "model": {"revision": "0123456789abcdef"},
    "engine": {"image": {"reference": "vllm/vllm-openai:v1", "digest": "sha256:" + "0" * 64}},
    "speculation": "none",
    "scenario": {"dataset_revision": "0123456789abcdef"},
}


def test_with_every_fact_known_only_the_missing_evaluation_speaks_against_a_point(
    expanded: Expand,
) -> None:
    (planned,) = expanded({**PUBLIC, **arm()}).points
    assert list(planned.point.blockers) == [
        "arm asked: its serving plan is asked by no full suite, only bfcl_smoke through chat, "
        "bfcl_smoke through responses"
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"revision": "unknown"}}, "model.revision"),
        ({"engine": {"image": {"digest": "unknown"}}}, "engine.image.digest"),
        ({"speculation": {"draft": {"revision": "unknown"}}}, "speculation.draft.revision"),
        ({"speculation": {"acceptance": "golden"}}, "does not say which revision"),
        ({"speculation": {"acceptance": "real"}}, "speculation.acceptance"),
        ({"scenario": {"dataset_revision": "unknown"}}, "scenario.dataset_revision"),
        ({"scenario": {"duration_s": 1200}}, "scenario.duration_s"),
        ({"scenario": {"chat_template": True}}, "scenario.chat_template"),
        ({"scope": "diagnostic"}, "scope"),
        ({"purpose": "probe"}, "never published"),
        ({"model": {"weights": "random"}}, "random weights"),
        (
            {"engine": {"flags": {"stream_interval": {"value": 20, "why": "fewer events"}}}},
            "engine.flags.stream_interval",
        ),
    ],
)
def test_each_broken_rule_keeps_a_point_from_being_published(
    change: dict[str, Any], words: str, expanded: Expand
) -> None:
    known = {key: value for key, value in PUBLIC.items() if key != "speculation"}
    base = known if "speculation" in change else PUBLIC
    (planned,) = expanded(merge({**base, **arm()}, change)).points
    assert any(words in reason for reason in planned.point.blockers)
    assert not planned.point.publishable


def test_an_engine_without_an_image_is_not_published(expanded: Expand) -> None:
    (planned,) = expanded({**PUBLIC, **arm(), "engine": {"image": None}}).points
    assert any(reason.startswith("engine.image no image") for reason in planned.point.blockers)


def test_rules_have_names_of_their_own() -> None:
    rules = (*REFUSING, *PUBLISHING)
    assert len({rule.code for rule in rules}) == len(rules)
    assert all(rule.states.endswith(".") for rule in rules)
