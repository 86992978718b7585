from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gnomon.harness.evidence.provenance as provenance
from gnomon.harness.errors import RunFolderError
from gnomon.harness.evidence.atomic import canonical_json, write_bytes, write_json
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.keys import key_inputs, stable_argv, unlabelled, without_commentary
from gnomon.harness.evidence.manifest import (
    BuildRecord,
    ClientRecord,
    LaunchRecord,
    Manifest,
    content_key,
)
from gnomon.harness.telemetry.host import HostFacts, host_facts, parse_nvidia_smi

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
HOST = HostFacts(
    hostname="h", system="s", distribution="d", cpu="c", cpus=2, memory_bytes=1 << 30, gpus=()
)


def manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "run_id": "r",
        "started": "2026-01-01T00:00:00.000Z",
        "recipe_source": "recipes/x.yaml",
        "recipe_sha256": "0" * 64,
        "recipe": {"name": "x", "evals": [], "engine": {"flags": {"seed": {"value": 0}}}},
        "launch": LaunchRecord(argv=("/a/python", "--port", "1"), env={}, inherited_env={}),
        "build": BuildRecord(version="0.1.0", source_sha256="a" * 64),
        "clients": {"aiperf": ClientRecord(lock_sha256="b" * 64, versions={})},
        "host": HOST,
    }
    return Manifest.model_validate({**fields, **changes})


INFO = {"engine": "gnomon", "version": "0.1.0", "facts": {"model_fingerprint": "c" * 64}}


def key(of: Manifest, info: Any = INFO) -> str:
    inputs = key_inputs(of, info, [])
    assert inputs is not None
    return content_key(inputs).sha256


@given(st.dictionaries(st.text(max_size=4), JSON), st.dictionaries(st.text(max_size=4), JSON))
def test_keys_are_equal_exactly_when_their_inputs_are(a: dict[str, Any], b: dict[str, Any]) -> None:
    same = json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
    assert (content_key(a).sha256 == content_key(b).sha256) == same


@given(st.dictionaries(st.text(max_size=4), JSON, min_size=2))
def test_the_order_of_inputs_does_not_matter(inputs: dict[str, Any]) -> None:
    assert content_key(inputs) == content_key(dict(reversed(inputs.items())))


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": {"name": "x", "evals": [], "engine": {"flags": {"seed": {"value": 1}}}}},
        {"build": BuildRecord(version="0.1.0", source_sha256="b" * 64)},
        {"clients": {"aiperf": ClientRecord(lock_sha256="c" * 64, versions={})}},
        {"host": HOST.model_copy(update={"cpus": 4})},
        {"versions": {"torch": "9"}},
        {"launch": LaunchRecord(argv=("/a/python", "--seed", "1"), env={}, inherited_env={})},
        {"launch": LaunchRecord(argv=("/a/python",), env={"X": "1"}, inherited_env={})},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_input_changes_the_key(change: dict[str, Any]) -> None:
    assert key(manifest()) != key(manifest(**change))


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "other", "started": "2027-01-01T00:00:00.000Z"},
        {"recipe_source": "elsewhere.yaml"},
        {"launch": LaunchRecord(argv=("/b/python", "--port", "2"), env={}, inherited_env={})},
        {"host": HOST.model_copy(update={"hostname": "another"})},
    ],
    ids=["run", "file", "port-and-place", "machine-of-the-same-class"],
)
def test_what_is_no_input_does_not_change_the_key(change: dict[str, Any]) -> None:
    assert key(manifest()) == key(manifest(**change))


def test_another_model_is_another_key() -> None:
    other = {**INFO, "facts": {"model_fingerprint": "d" * 64}}
    assert key(manifest()) != key(manifest(), other)


def test_there_is_no_key_before_every_input_is_known() -> None:
    assert key_inputs(manifest(), {}, []) is None
    assert key_inputs(manifest(launch=None), INFO, []) is None
    assert key_inputs(manifest(recipe={"evals": [{}]}), INFO, []) is None


def test_commentary_is_no_input() -> None:
    point: dict[str, Any] = {"name": "a", "arm": "b", "id": "b-c1", "blockers": ["unknown"]}
    point |= {"engine": {"name": "g", "flags": {"f": {"value": 1, "why": "so"}}}}
    measured = {"engine": {"name": "g", "flags": {"f": {"value": 1}}}}
    assert without_commentary(unlabelled(point)) == measured
    assert stable_argv(["/x/python", "--port", "80", "-v"]) == ["python", "--port", "*", "-v"]


def test_an_interrupted_write_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "manifest.json"
    write_bytes(path, b"old")

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["manifest.json"]


def test_nan_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"ttft": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(float("inf"))


def test_a_sealed_folder_knows_the_hash_of_every_file(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    folder.write_text("a.txt", "a")
    folder.write_text("deep/b.txt", "b")
    (folder.path / "link").symlink_to("/etc/passwd")
    folder.seal(manifest(run_id=folder.path.name))
    loaded = folder.load_manifest()
    assert set(loaded.artifacts) == {"a.txt", "deep/b.txt"}
    assert loaded.artifacts["a.txt"].sha256.startswith("ca978112ca1bbdca")
    assert loaded.artifacts["a.txt"].bytes == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "holds no manifest.json"),
        ("{", "cannot be read"),
        ('{"schema_version": 99}', "schema version 99"),
        ('{"schema_version": 1}', "damaged"),
        ("[]", "schema version None"),
    ],
)
def test_a_folder_that_is_no_run_is_refused(
    content: str | None, words: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(RunFolderError, match=words):
        RunFolder(tmp_path).load_manifest()


def test_secrets_are_redacted_and_nothing_else() -> None:
    env = {"OPENAI_API_KEY": "sk-1", "HF_TOKEN": "t", "OMP_NUM_THREADS": "1"}
    assert provenance.redact_env(env) == {
        "OPENAI_API_KEY": "***",
        "HF_TOKEN": "***",
        "OMP_NUM_THREADS": "1",
    }
    argv = ("--api-key", "sk-1", "--api-key=sk-2", "--max-num-batched-tokens", "9", "--tokenizer=t")
    assert provenance.redact_argv(argv) == (
        *("--api-key", "***", "--api-key=***", "--max-num-batched-tokens", "9", "--tokenizer=t"),
    )


def test_only_variables_that_matter_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("MY_DIARY", "private")
    recorded = provenance.relevant_env()
    assert recorded["OMP_NUM_THREADS"] == "3"
    assert recorded["HF_TOKEN"] == "***"
    assert "MY_DIARY" not in recorded


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


def test_a_build_knows_its_commit_and_whether_it_differs_from_it(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "a.py").write_text("x = 1\n")
    outside = provenance.build_record(package)
    assert (outside.commit, outside.dirty) == (None, None)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "pkg")
    git(tmp_path, "commit", "-q", "-m", "first")
    clean = provenance.build_record(package)
    assert clean.dirty is False
    assert clean.source_sha256 == outside.source_sha256
    (package / "new.py").write_text("y = 2\n")
    (package / "__pycache__").mkdir()
    dirty = provenance.build_record(package)
    assert dirty.dirty is True
    assert dirty.commit == clean.commit
    assert dirty.source_sha256 != clean.source_sha256


def test_gpus_are_read_from_the_drivers_table() -> None:
    table = "GPU-1, NVIDIA H200, 143771, 570.1\nbroken line\n"
    (gpu,) = parse_nvidia_smi(table)
    assert (gpu.name, gpu.memory_mib) == ("NVIDIA H200", 143771)


def test_this_machine_has_facts() -> None:
    facts = host_facts()
    assert facts.cpus >= 1
    assert facts.memory_bytes > 0
    assert facts.cpu in facts.hardware_class
