"""``gnomon plan``: the pools a server would allocate, or every reason why it would not start."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

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


README = Path(__file__).parents[3] / "README.md"
H200S = ("minimax-m3.1", "--device", "h200", "--gpus", "4", "--weights", "mxfp4")


def test_the_readme_shows_what_the_command_prints(run: Plan) -> None:
    result = run(*H200S, "--kv-cache-dtype", "mxfp4", "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0
    text = README.read_text()
    assert " ".join(H200S) in text
    for name, layout in (("bf16", "bf16"), ("fp8", "fp8"), ("MXFP4", "mxfp4"), ("NVFP4", "nvfp4")):
        plan = answer["layouts"][layout]
        row = re.search(
            rf"^\| {name} \| ([\d,]+) \| ([\d,]+) .* \| ([\d,]+) \| [\d.]+ \|$", text, re.M
        )
        assert row is not None, name
        told = [int(number.replace(",", "")) for number in row.groups()]
        assert told == [plan["block_bytes"], plan["num_blocks"], plan["sessions_128k"]]
    mxfp4, fp8 = (answer["layouts"][name]["num_blocks"] for name in ("mxfp4", "fp8"))
    assert mxfp4 >= 1.67 * fp8


def test_a_described_machine_needs_neither_gpu_nor_files(run: Plan) -> None:
    result = run(*H200S, "--kv-cache-dtype", "nvfp4", "--draft", "dspark")
    assert result.exit_code == 0
    for text in ("4 x NVIDIA H200", "draft", "workspace", "1,658,880", "128k sessions", "MXFP4"):
        assert text in result.stdout
    answer = json.loads(run(*H200S, "--json").stdout)
    assert answer["model_path"] is None
    assert answer["plan"]["ranks"] == 4
    assert len(answer["plan"]["budgets"]) == 4


def test_a_refused_plan_still_shows_which_layout_would_fit(run: Plan) -> None:
    result = run(*H200S[:-1], "mxfp8")  # 4,097 blocks of bf16 cannot hold a million tokens
    assert result.exit_code == 2
    assert "refused [pool-too-small]" in result.stderr
    assert "what each cache layout would give" in result.stdout
    assert "MXFP4" in result.stdout


def test_ranks_may_be_fewer_than_gpus(run: Plan) -> None:
    result = run(*H200S[:3], "--gpus", "8", *H200S[5:], "--tensor-parallel-size", "4")
    assert result.exit_code == 0
    assert "4, 2 times" in result.stdout


REFUSED = [
    (("--device", "h900"), "option", "--device 'h900' is unknown; choose one of cpu, gpu, a100"),
    (("--gpus", "4"), "option", "--gpus 4 describes a machine"),
    (("--weights", "mxfp4"), "option", "has weights, and their files say what they are"),
    (("--device", "h200", "--gpus", "3"), "tensor-parallel", "the size is 3"),
    (("--expert-weights", "mxfp5"), "option", "--expert-weights"),
]


@pytest.mark.parametrize(("arguments", "code", "told"), REFUSED)
def test_what_cannot_be_planned_is_refused_by_name(
    run: Plan, arguments: tuple[str, ...], code: str, told: str
) -> None:
    answer = json.loads(run("nano", *arguments, "--json").stdout)
    assert [refusal["code"] for refusal in answer["refusals"]] == [code]
    assert told in answer["refusals"][0]["message"]


def test_weights_to_be_packed_are_planned_packed(run: Plan) -> None:
    plain, packed = (
        json.loads(run("nano", *extra, "--json").stdout)["plan"]["weight_bytes"]
        for extra in ((), ("--expert-weights", "mxfp4", "--linear-weights", "mxfp8"))
    )
    assert packed < plain / 2
