"""Quantities, host memory, golden curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError
from tests.unit.recipes.conftest import RECIPES

from gnomon.harness.errors import Problem
from gnomon.harness.recipes.dram import CAP_MIB, dram_budget
from gnomon.harness.recipes.golden import (
    GoldenError,
    GoldenRow,
    GoldenTable,
    golden_folder,
    load_golden,
)
from gnomon.harness.recipes.model_spec import SpeculationSpec
from gnomon.harness.recipes.place_spec import HardwareSpec, Topology
from gnomon.harness.recipes.quantities import GB, GIB, ByteSize, MaybeBytes


def hardware(name: str) -> HardwareSpec:
    data = yaml.safe_load((RECIPES / "parts" / "hardware" / f"{name}.yaml").read_text())
    return HardwareSpec.model_validate(data["hardware"])


# Quantities.


@pytest.mark.parametrize(
    ("text", "size"),
    [("26 GiB", 26 * GIB), ("26GB", 26 * GB), ("0.5 KiB", 512), ("1.5 B", 1), (7, 7)],
)
def test_a_size_names_its_unit_and_becomes_bytes(text: Any, size: int) -> None:
    assert TypeAdapter(ByteSize).validate_python(text) == size


@pytest.mark.parametrize("text", ["26", "26 gb", "GiB", "-1 GiB", -1, 1.5, True, "unknown"])
def test_a_size_without_a_known_unit_is_refused(text: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(ByteSize).validate_python(text)


def test_a_size_that_is_not_public_stays_unknown() -> None:
    assert TypeAdapter(MaybeBytes).validate_python("unknown") == "unknown"
    assert TypeAdapter(MaybeBytes).validate_python("250 GB") == 250 * GB


def test_a_gigabyte_is_not_a_gibibyte() -> None:
    assert round(GIB / GB, 4) == 1.0737


# Host memory: golden vectors of the public formula.


@pytest.mark.parametrize(
    ("name", "tp", "share", "gigabytes"),
    [
        ("b200", 4, 0.683, 1024),
        ("b200", 4, 1.0, 1499),
        ("b300", 2, 1.0, 749),
        ("b300", 4, 0.8, 1199),
        ("h100", 8, 0.8, 1731),
        ("h200", 8, 0.8, 1234),
        ("mi300x", 8, 0.8, 1947),
        ("mi355x", 4, 0.2, 299),
        ("gb300", 2, 0.887, 400),
    ],
)
def test_a_deployment_may_use_its_share_of_host_memory(
    name: str, tp: int, share: float, gigabytes: int
) -> None:
    assert dram_budget(hardware(name), Topology(tp=tp), share) == gigabytes * GB


def test_a_server_counts_for_3_tb_at_most() -> None:
    assert CAP_MIB * 2**20 <= 3 * 10**12 < (CAP_MIB + 1) * 2**20


def test_expert_and_decode_context_parallelism_add_no_accelerators() -> None:
    plain, spread = Topology(tp=4), Topology(tp=4, ep=4, dcp=4)
    assert plain.gpus == spread.gpus == 4
    assert Topology(tp=2, pp=2, pcp=2).gpus == 8


def test_a_server_without_accelerators_shares_with_nobody() -> None:
    laptop = HardwareSpec(name="cpu", vendor="none", gpus_per_node=0, host_dram_mib=16_384)
    assert dram_budget(laptop, Topology(tp=1), 0.5) == 8 * GB  # half of 17.18 GB, rounded down
    with pytest.raises(ValueError, match="host memory of cpu is not known"):
        dram_budget(hardware("cpu"), Topology(tp=1), 0.5)


def test_a_share_below_a_gigabyte_is_refused_and_not_rounded_to_nothing() -> None:
    with pytest.raises(ValueError, match="less than 1 GB"):
        dram_budget(hardware("h100"), Topology(tp=1), 0.001)


def workers(tp: int) -> Topology:
    half = {"workers": 2, "tp": tp}
    return Topology.model_validate({"prefill": half, "decode": half, "transfer": "nixl"})


def test_of_disaggregated_workers_one_prefill_worker_s_part_of_a_node_counts() -> None:
    node = hardware("gb300")
    assert dram_budget(node, workers(2), 1.0) == dram_budget(node, Topology(tp=2), 1.0)
    assert dram_budget(node, workers(8), 1.0) == dram_budget(node, Topology(tp=4), 1.0)


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        (Topology(tp=16), "do not fit the 8"),
        (workers(12), "no multiple of the 8"),
        (workers(3), "do not divide the 8"),
    ],
)
def test_accelerators_that_do_not_fit_nodes_evenly_have_no_budget(
    topology: Topology, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        dram_budget(hardware("b200"), topology, 1.0)


# Golden curves.


def drafts(**changes: Any) -> SpeculationSpec:
    data: dict[str, Any] = {
        "method": "eagle3",
        "draft": {"path": "Inferact/MiniMax-M3-EAGLE3-GQA", "revision": "unknown"},
        "tokens": 3,
        "thinking": "enabled",
        "why": "what the public recipes draft",
    }
    return SpeculationSpec.model_validate({**data, **changes})


def other(path: str) -> dict[str, str]:
    return {"path": path, "revision": "unknown"}


@pytest.mark.parametrize(
    ("target", "changes", "length"),
    [
        ("minimax-m3", {}, 2.78),
        ("minimax-m3", {"draft": other("Inferact/MiniMax-M3-EAGLE3")}, 2.83),
        ("minimax-m3", {"thinking": "disabled"}, 2.97),
        ("minimax-m3", {"draft": other("Inferact/MiniMax-M3-EAGLE3"), "tokens": 4}, 3.11),
        ("minimax-m3", {"tokens": 8}, 3.51),
        ("kimi-k3", {"draft": other("Inferact/Kimi-K3-DSpark"), "method": "dspark"}, 2.87),
        (
            "kimi-k3",
            {
                "draft": other("Inferact/Kimi-K3-DSpark"),
                "method": "dspark",
                "sampling": "probabilistic",
                "tokens": 7,
            },
            3.84,
        ),
    ],
)
def test_a_golden_length_follows_from_target_head_mode_method_and_k(
    target: str, changes: dict[str, Any], length: float, golden: GoldenTable
) -> None:
    row = golden.find(target, drafts(**changes))
    assert isinstance(row, GoldenRow)
    assert row.length == length
    assert row.source.startswith("https://")


@pytest.mark.parametrize(
    ("target", "changes", "path", "words"),
    [
        (None, {}, "model.family", "no golden curve can belong"),
        ("kimi-k3", {}, "speculation.draft.path", "Inferact/Kimi-K3-DSpark"),
        ("minimax-m3", {"tokens": 9}, "speculation.tokens", "ends at K = 8"),
        ("minimax-m3", {"sampling": "probabilistic"}, "speculation.draft.path", "Choose one of"),
        (
            "kimi-k3",
            {"draft": other("Inferact/Kimi-K3-DSpark"), "thinking": "disabled"},
            "speculation.thinking",
            "no disabled column",
        ),
    ],
)
def test_a_length_that_was_never_measured_is_refused(
    target: str | None, changes: dict[str, Any], path: str, words: str, golden: GoldenTable
) -> None:
    problem = golden.find(target, drafts(**changes))
    assert isinstance(problem, Problem)
    assert problem.path == path
    assert words in str(problem)


def test_a_curve_of_another_revision_of_the_head_is_refused(golden: GoldenTable) -> None:
    files = [
        file.model_copy(update={"draft_revision": "abcdef0123"})
        for file in golden.files
        if file.draft == "Inferact/MiniMax-M3-EAGLE3-GQA"
    ]
    table = GoldenTable(tuple(files))
    wrong = drafts(draft={"path": "Inferact/MiniMax-M3-EAGLE3-GQA", "revision": "1234567"})
    right = drafts(draft={"path": "Inferact/MiniMax-M3-EAGLE3-GQA", "revision": "abcdef0"})
    assert isinstance(table.find("minimax-m3", wrong), Problem)
    assert isinstance(table.find("minimax-m3", right), GoldenRow)


def test_every_shipped_length_is_possible_and_says_what_is_not_known(golden: GoldenTable) -> None:
    rows = list(golden.rows())
    assert len(rows) == 112
    assert all(1 <= row.length <= row.tokens + 1 for row in rows)
    assert all(row.interval == "unknown" and row.draft_revision == "unknown" for row in rows)
    assert {row.n for row in rows} == {80, "unknown"}


def test_a_length_beyond_k_plus_one_is_refused(tmp_path: Path) -> None:
    text = (RECIPES / "golden" / "minimax-m3-eagle3.yaml").read_text()
    (tmp_path / "wrong.yaml").write_text(text.replace("1: 1.78", "1: 2.78"))
    with pytest.raises(GoldenError, match="a step yields at most 2"):
        load_golden(tmp_path)


def test_curves_lie_beside_the_recipe_or_above_it() -> None:
    assert golden_folder(RECIPES / "quickstart.yaml") == RECIPES / "golden"
    assert golden_folder(RECIPES / "probes" / "minimax-m3-b200-tp2.yaml") == RECIPES / "golden"
    assert golden_folder(Path("/nowhere/recipe.yaml")) is None
