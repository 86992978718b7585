"""The slice: the quickstart recipe end to end, with our server and the real clients."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from gnomon.harness.evidence.manifest import RunState, StageState
from gnomon.harness.evidence.verdicts import CheckState

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


def test_the_run_succeeds_and_prints_where_its_report_is(quickstart_run: Any) -> None:
    assert quickstart_run.code == 0, quickstart_run.printed
    assert str(quickstart_run.folder.path / "report.html") in quickstart_run.printed


def test_every_stage_is_complete(quickstart_run: Any) -> None:
    manifest = quickstart_run.folder.load_manifest()
    assert manifest.state is RunState.COMPLETE
    assert {stage.state for stage in manifest.stages} == {StageState.COMPLETE}
    assert [stage.name for stage in manifest.stages] == [
        *("preflight", "launch", "attest", "replay", "bfcl_smoke:chat", "bfcl_smoke:responses"),
        *("teardown", "judge", "report"),
    ]


def test_the_verdicts_are_honest_about_random_weights(quickstart_run: Any) -> None:
    verdicts = quickstart_run.folder.load_verdicts()
    assert verdicts.integration.state is CheckState.PASSED
    assert verdicts.quality.state is CheckState.NOT_APPLICABLE
    assert verdicts.performance.state is CheckState.PASSED
    for verdict in verdicts.all():
        for check in verdict.checks:
            assert check.scope == "smoke"
            assert all(figure.n >= 1 for figure in check.figures)


def test_what_is_served_was_read_back(quickstart_run: Any) -> None:
    integration = quickstart_run.folder.load_verdicts().integration
    attested = {check.name for check in integration.checks if check.name.startswith("attested")}
    assert attested >= {
        f"attested: {name}"
        for name in (
            *("kv_cache_dtype", "index_cache_dtype", "max_model_len", "max_num_seqs"),
            *("max_num_batched_tokens", "enable_prefix_caching", "num_blocks", "block_bytes"),
        )
    }


def test_every_case_went_through_both_apis(quickstart_run: Any) -> None:
    suites = json.loads((quickstart_run.folder.path / "evals.json").read_text())
    assert [suite["api"] for suite in suites] == ["chat", "responses"]
    for suite in suites:
        assert [case["id"] for case in suite["cases"]] == [
            *("simple_python_141", "multiple_38", "parallel_1", "irrelevance_0")
        ]


def test_the_manifest_holds_the_hash_of_every_file(quickstart_run: Any) -> None:
    folder = quickstart_run.folder
    manifest = folder.load_manifest()
    assert not folder.faults()
    for name, artifact in manifest.artifacts.items():
        content = (folder.path / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == artifact.sha256, name
    assert manifest.content_key is not None
    assert manifest.content_key.inputs["model_fingerprint"]
    assert set(manifest.clients) == {"aiperf", "bfcl-eval"}
