"""``gnomon plan``: the pools a server would allocate, or every reason why it would not start."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from gnomon.cli import plan

Plan = Callable[..., Result]


@pytest.fixture
def run() -> Plan:
    app = typer.Typer()
    app.callback()(lambda: None)
    plan.register(app)
    return lambda *arguments: CliRunner().invoke(app, ["plan", *arguments])


def test_the_plan_shows_pages_blocks_and_bytes(run: Plan) -> None:
    result = run("nano", "--kv-cache-dtype", "fp4", "--index-cache-dtype", "nvfp4")
    assert result.exit_code == 0
    for text in ("mxfp4_128x128", "8,704", "nvfp4_128x128", "9,216", "4,096", "32,768 tokens"):
        assert text in result.stdout


def test_the_plan_as_json(run: Plan) -> None:
    result = run("nano", "--json", "--num-blocks", "300", "--kv-cache-dtype", "mxfp4")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (answer["ok"], answer["refusals"]) == (True, [])
    assert answer["plan"]["num_blocks"] == 300
    assert answer["plan"]["pool_bytes"] == 300 * answer["plan"]["block_bytes"] == 300 * 87_040


def test_all_broken_rules_are_printed_and_the_status_is_2(run: Plan) -> None:
    arguments = ("nano", "--block-size", "64", "--num-blocks", "1", "--no-enable-prefix-caching")
    result = run(*arguments)
    assert result.exit_code == 2
    assert "refused [block-size]" in result.stderr
    assert "refused [pool-too-small]" in result.stderr
    answer = json.loads(run(*arguments, "--json").stdout)
    assert (answer["ok"], answer["plan"]) == (False, None)
    assert [r["code"] for r in answer["refusals"]] == ["block-size", "pool-too-small"]
    assert all(r["message"] and r["remedy"] for r in answer["refusals"])


def test_all_bad_values_are_printed_before_anything_is_read(run: Plan) -> None:
    result = run("nowhere", "--kv-cache-dtype", "int3", "--max-num-seqs", "0", "--dtype", "half")
    assert result.exit_code == 2
    for text in ("--kv-cache-dtype: unknown cache format 'int3'", "--max-num-seqs", "--dtype"):
        assert text in result.stderr
    answer = json.loads(run("nowhere", "--kv-cache-dtype", "int3", "--json").stdout)
    assert [r["code"] for r in answer["refusals"]] == ["option"]


def test_a_model_that_is_not_there_is_refused_without_a_traceback(run: Plan) -> None:
    result = run("nowhere")
    assert result.exit_code == 2
    assert "refused [model]: model 'nowhere' does not exist" in result.stderr
    assert "Traceback" not in result.output
    assert json.loads(run("nowhere", "--json").stdout)["refusals"][0]["code"] == "model"
