from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.unit.recipes.conftest import RECIPES, tree_of

from gnomon.harness.recipes.expand import Expansion, Selection, expand, explain
from gnomon.harness.recipes.merge import merge, spread_arms
from gnomon.harness.recipes.point import identity, serving_identity
from gnomon.harness.recipes.schema import Recipe

Expand = Callable[..., Expansion]

ARMS = ("tp8", "tp8-mooncake", "tep8", "tep8-mooncake")


def ids(expansion: Expansion) -> list[str]:
    return [planned.point.id for planned in expansion.points]


def test_the_h100_recipe_of_2423_is_exactly_18_points(expanded: Expand) -> None:
    expansion = expanded()
    grid: dict[str, list[int]] = {}
    for planned in expansion.standing:
        grid.setdefault(planned.point.arm, []).append(planned.point.concurrency)
    assert grid == {
        "tp8": [1, 4, 8, 12, 16],
        "tp8-mooncake": [4, 8, 12, 16],
        "tep8": [1, 4, 8, 12, 16],
        "tep8-mooncake": [4, 8, 12, 16],
    }
    assert len(expansion.standing) == 18
    assert {planned.point.forced.length for planned in expansion.standing} == {2.83}  # type: ignore[union-attr]


def test_arms_that_differ_only_in_expert_parallelism_have_ids_of_their_own(
    expanded: Expand,
) -> None:
    expansion = expanded()
    assert len(set(ids(expansion))) == 18
    hashes = {planned.point.id.rpartition("-")[2] for planned in expansion.points}
    assert len(hashes) == 18


def test_extending_a_grid_changes_no_other_id(expanded: Expand) -> None:
    tree = tree_of("minimax-m3-h100-vllm-2423")
    tree["arms"][0]["concurrency"] = [1, 2, 4, 8, 12, 16, 24]
    longer = expanded({"arms": tree["arms"]})
    assert set(ids(expanded())) < set(ids(longer))


def test_words_change_no_id_and_every_other_change_does(expanded: Expand) -> None:
    point = expanded().points[0].point
    flags = point.engine.model_dump(mode="json")["flags"]
    reason = {"gpu_memory_utilization": {"value": 0.9, "why": "another reason for the same"}}
    value = {"gpu_memory_utilization": {"value": 0.89, "why": flags["trust_remote_code"]["why"]}}
    same = expanded({"engine": {"flags": reason}, "description": "Another description of it."})
    other = expanded({"engine": {"flags": value}})
    assert ids(same) == ids(expanded())
    assert not set(ids(other)) & set(ids(expanded()))


def test_every_key_of_a_flag_s_value_counts(expanded: Expand) -> None:
    def with_config(config: dict[str, Any]) -> list[str]:
        flag = {"compilation_config": {"value": config, "why": "as the question asks"}}
        return ids(expanded({"engine": {"flags": flag}}))

    assert with_config({"cache": 1}) != with_config({"cache": 2})
    assert with_config({"why": "a"}) != with_config({"why": "b"})


def test_a_corrected_golden_length_is_another_measurement(expanded: Expand) -> None:
    point = expanded().points[0].point
    assert point.forced is not None
    corrected = point.forced.model_copy(update={"length": 2.78})
    assert identity(point.model_copy(update={"forced": corrected})) != identity(point)


def test_a_better_estimate_of_the_memory_plan_changes_no_id(expanded: Expand) -> None:
    better = expanded(
        {
            "engine": {"reserve": {"profiled": "8 GiB"}},
            "speculation": {"draft": {"checkpoint_bytes": "6 GB"}},
        }
    )
    assert ids(better) == ids(expanded())
    assert better.points[0].memory != expanded().points[0].memory


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arms=st.lists(st.sampled_from(ARMS), max_size=3, unique=True),
    sizes=st.lists(st.sampled_from([1, 4, 8, 12, 16, 99]), max_size=3, unique=True),
)
def test_a_filter_selects_and_never_rewrites(
    arms: list[str], sizes: list[int], expanded: Expand
) -> None:
    whole = {planned.point.id: planned.point for planned in expanded().points}
    kept = expanded(selection=Selection(tuple(arms), tuple(sizes)))
    assert ids(kept) == list(whole)
    for planned in kept.points:
        point = planned.point
        assert point == whole[point.id]
        fits = (not arms or point.arm in arms) and (not sizes or point.concurrency in sizes)
        assert (planned.dropped is None) == fits
    assert list(kept.unmatched) == [f"concurrency {s}" for s in sizes if s == 99]


def test_a_concurrency_that_nobody_listed_is_a_mistake_and_no_new_point(expanded: Expand) -> None:
    kept = expanded(selection=Selection(concurrencies=(3,), arms=("tp9",), ids=("nothing",)))
    assert not kept.standing
    assert kept.unmatched == ("arm tp9", "concurrency 3", "point nothing")


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [("tp8-c1", 1), ("tp8-c1-", 1), ("tp8-mooncake", 4), ("tp8", 9), ("tp", 0), ("tep8-c16", 1)],
)
def test_a_point_is_named_by_a_whole_beginning_of_its_id(
    wanted: str, fits: int, expanded: Expand
) -> None:
    assert len(expanded(selection=Selection(ids=(wanted,))).standing) == fits


def test_a_range_multiplies_and_ends_at_its_end(expanded: Expand) -> None:
    arm = {"name": "tp8", "topology": {"tp": 8}, "concurrency": {"start": 3, "end": 20}}
    expansion = expanded({"arms": [arm]})
    assert [planned.point.concurrency for planned in expansion.points] == [3, 6, 12, 20]


def test_prompts_of_fixed_length_must_fit_the_server(expanded: Expand) -> None:
    scenario = {"kind": "fixed_length", "input_tokens": 8192, "output_tokens": 1024}
    tree = tree_of("minimax-m3-h100-vllm-2423")

    def with_limit(tokens: int) -> Recipe:
        limits = {"max_model_len": {"value": tokens, "why": "prompt, answer and template"}}
        whole = merge({**tree, "scenario": scenario}, {"limits": limits})
        return Recipe.model_validate(spread_arms(whole)[0])

    with pytest.raises(ValidationError, match="cannot hold the scenario's longest request"):
        with_limit(8192 + 1024)
    points = expand(with_limit(8192 + 1024 + 256)).points
    assert {p.point.scenario.kind for p in points} == {"fixed_length"}  # type: ignore[union-attr]
    assert points[0].memory.need is not None
    assert points[0].memory.need.longest_tokens == 9472


# Evaluations.


def test_an_arm_that_forces_acceptance_is_evaluated_by_a_server_of_its_own(
    expanded: Expand,
) -> None:
    expansion = expanded()
    assert [planned.point.arm for planned in expansion.evaluations] == list(ARMS)
    for planned in expansion.evaluations:
        assert planned.point.forced is None
        assert planned.point.replay is None
        assert planned.point.scenario is None
        assert planned.point.evals
    for planned in expansion.points:
        assert not planned.point.evals


def test_an_evaluation_has_the_serving_plan_of_its_arm(expanded: Expand) -> None:
    expansion = expanded()
    plans = {planned.point.arm: serving_identity(planned.point) for planned in expansion.points}
    for planned in expansion.evaluations:
        assert serving_identity(planned.point) == plans[planned.point.arm]
    assert len(set(plans.values())) == 4


def test_without_forced_acceptance_the_largest_point_is_asked(expanded: Expand) -> None:
    expansion = expanded({"speculation": {"acceptance": "real"}})
    assert not expansion.evaluations
    asked = [planned.point for planned in expansion.points if planned.point.evals]
    assert [(point.arm, point.concurrency) for point in asked] == [(arm, 16) for arm in ARMS]


def test_arms_that_nobody_asks_are_named(expanded: Expand) -> None:
    none = expanded({"evals": []})
    assert len(none.gaps) == 4
    assert none.gaps[0] == "arm tp8: no evaluation asks its serving plan"
    smoke = expanded()
    assert "no full suite" in smoke.gaps[0]
    assert smoke.gaps[0] in smoke.points[0].point.blockers


def test_an_arm_without_load_is_still_evaluated(expanded: Expand) -> None:
    arm = {"name": "quality", "topology": {"tp": 8}}
    expansion = expanded({"arms": [arm], "scenario": None})
    assert not expansion.points
    assert [planned.point.arm for planned in expansion.evaluations] == ["quality"]


# Explanations.


def test_every_point_says_why_it_exists_and_what_speaks_against_it(expanded: Expand) -> None:
    kept = expanded(selection=Selection(arms=("tp8",)))
    first, last = explain(kept.points[0]), explain(kept.points[-1])
    assert first[0] == (
        "exists because arm tp8 lists concurrency 1: The low-latency shape, with all caches on "
        "the devices."
    )
    assert any(line.startswith("memory: pool 35.4 GiB") for line in first)
    assert any("2.83 tokens a step" in line for line in first)
    assert any(line == "dropped: the filter keeps the arms tp8" for line in last)
    assert any("not publishable: engine.image.digest" in line for line in last)


# Probes.


@pytest.mark.parametrize("probe", sorted(RECIPES.glob("probes/*.yaml")), ids=lambda p: p.stem)
def test_no_probe_can_publish_anything(probe: Any, expanded: Expand) -> None:
    expansion = expanded(name=f"probes/{probe.stem}")
    assert expansion.recipe.purpose == "probe"
    for planned in (*expansion.points, *expansion.evaluations):
        assert not planned.point.publishable
        assert "never published" in planned.point.blockers[0]


def test_a_probe_adds_no_point_to_the_production_recipe_it_extends(expanded: Expand) -> None:
    production = ids(expanded(name="minimax-m3-mi355x-vllm"))
    probe = ids(expanded(name="probes/minimax-m3-mi355x-index-reuse"))
    assert len(production) == 17
    assert len(probe) == 3
    assert not set(probe) & set(production)


def test_what_a_probe_may_ask_a_production_recipe_may_not(expanded: Expand) -> None:
    name = "probes/minimax-m3-mi355x-index-reuse"
    assert not expanded(name=name).refused
    refused = expanded({"purpose": "production"}, name).refused
    assert refused
    assert "reuse another layer's selection" in refused[0].refused[0].message
