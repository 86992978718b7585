from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gnomon.cli.main import build_app

RECIPES = Path(__file__).parents[3] / "recipes"
H100 = str(RECIPES / "minimax-m3-h100-vllm-2423.yaml")
PROBE = str(RECIPES / "probes" / "minimax-m3-b200-tp2.yaml")


def gnomon(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["sweep", *arguments])


def test_a_plan_lists_points_evaluations_and_what_keeps_them_from_being_published() -> None:
    result = gnomon("plan", H100)
    assert result.exit_code == 0
    assert "18 points, 4 evaluations with a server of their own" in result.stdout
    assert result.stdout.count("\nload ") == 18
    assert "uncovered arm tp8: its serving plan is asked by no full suite" in result.stdout
    assert "blocked   18 of 18 points: model.revision" in result.stdout


def test_a_filtered_plan_is_the_same_points_fewer_of_them() -> None:
    whole = json.loads(gnomon("plan", H100, "--json").stdout)
    some = json.loads(gnomon("plan", H100, "--arm", "tep8", "--json").stdout)
    assert [row["id"] for row in some["points"]] == [row["id"] for row in whole["points"]]
    kept = [row for row in some["points"] if row["state"] == "load"]
    assert [row["arm"] for row in kept] == ["tep8"] * 5
    assert {row["acceptance_length"] for row in kept} == {2.83}


def test_explain_says_why_each_point_exists_or_was_dropped() -> None:
    result = gnomon("plan", H100, "--arm", "tp8", "--concurrency", "4", "--explain")
    assert result.exit_code == 0
    assert "1 point, 0 evaluations" in result.stdout
    assert "exists because arm tp8 lists concurrency 4" in result.stdout
    assert "dropped: the filter keeps the concurrencies 4" in result.stdout


def test_a_filter_that_fits_nothing_is_an_error() -> None:
    result = gnomon("plan", H100, "--concurrency", "3")
    assert result.exit_code == 2
    assert "the recipe has no concurrency 3" in result.stderr


def test_a_plan_that_cannot_fit_is_refused_with_its_numbers() -> None:
    result = gnomon("plan", PROBE)
    assert result.exit_code == 2
    assert "(probe: never published)" in result.stdout
    assert "the pool holds 31.7 GiB" in result.stdout


def test_a_broken_recipe_is_refused_with_every_problem(tmp_path: Path) -> None:
    source = tmp_path / "r.yaml"
    source.write_text("name: r\nsurprise: 1\n")
    result = gnomon("plan", str(source))
    assert result.exit_code == 2
    for words in ("unknown key 'surprise'", "needs 'model'", "needs 'engine'", "needs 'scope'"):
        assert words in result.stderr


def test_a_point_shows_what_it_would_start_and_what_is_read_back() -> None:
    result = gnomon("show", H100, "tp8-mooncake-c8")
    assert result.exit_code == 0
    assert "mooncake_master --rpc_port=8010" in result.stdout
    assert "vllm serve MiniMaxAI/MiniMax-M3-MXFP8" in result.stdout
    assert "vllm_config.speculative_config.num_speculative_tokens" in result.stdout
    deployment = json.loads(gnomon("show", H100, "tp8-mooncake-c8", "--json").stdout)
    assert [process["role"] for process in deployment["processes"]] == ["mooncake-master", "server"]


@pytest.mark.parametrize(
    ("recipe", "point", "words"),
    [(H100, "tp8", "fits 11 points"), (H100, "x", "fits 0 points"), (PROBE, "tp2-c1", "31.7 GiB")],
)
def test_a_point_that_is_refused_or_not_one_is_not_shown(
    recipe: str, point: str, words: str
) -> None:
    result = gnomon("show", recipe, point)
    assert result.exit_code == 2
    assert words in result.stderr
