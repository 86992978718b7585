"""`gnomon runs` as a user types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from tests.unit.evidence.runs import manifest, sealed_run
from typer.testing import CliRunner

from gnomon.cli.main import build_app
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.store import Store

Runs = Callable[..., Result]


@pytest.fixture
def runs(store: Store) -> Runs:
    """`gnomon runs` over the store."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(build_app(), ["runs", *arguments, "--store", str(store.root)])

    return run


def key_pair(folder: Path) -> tuple[str, str]:
    key = Ed25519PrivateKey.generate()
    private, public = folder / "key", folder / "key.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return str(private), str(public)


def test_a_list_has_every_run_with_its_state(runs: Runs, store: Store) -> None:
    assert "no runs in" in runs("list").stdout
    run = sealed_run(store.root)
    assert run.path.name in runs("list").stdout
    (row,) = json.loads(runs("list", "--json").stdout)["runs"]
    assert (row["run_id"], row["state"], row["integration"]) == (
        *(run.path.name, "complete", "passed"),
    )


def test_a_run_is_shown_with_what_it_proves(runs: Runs, store: Store) -> None:
    run = sealed_run(store.root)
    shown = json.loads(runs("show", run.path.name, "--json").stdout)
    assert (shown["proven"], shown["files"], len(shown["verdicts"])) == (True, 2, 3)
    assert "performance         passed: A sentence." in runs("show", run.path.name).stdout


def test_verify_names_what_was_changed(runs: Runs, store: Store) -> None:
    run, other = sealed_run(store.root, seed=1), sealed_run(store.root, seed=2)
    assert runs("verify").exit_code == 0
    (run.path / "server/log.txt").chmod(0o644)
    (run.path / "server/log.txt").write_text("started with seed 7\n")
    done = runs("verify")
    assert done.exit_code == 1
    assert f"NOT WHOLE  {run.path.name}\n  server/log.txt: changed\n" in done.stdout
    assert f"whole      {other.path.name}\n" in done.stdout


def test_a_signature_is_asked_for_by_key(runs: Runs, store: Store, tmp_path: Path) -> None:
    run = sealed_run(store.root)
    private, public = key_pair(tmp_path)
    unsigned = runs("verify", "--signed-by", public)
    assert (unsigned.exit_code, "nobody signed the run" in unsigned.stdout) == (1, True)
    assert runs("sign", run.path.name, "--key", private).exit_code == 0
    assert runs("verify", "--signed-by", public).exit_code == 0
    (tmp_path / "other").mkdir()
    _, stranger = key_pair(tmp_path / "other")
    done = runs("verify", "--signed-by", stranger)
    assert (done.exit_code, "made with another key" in done.stdout) == (1, True)


def test_a_run_moves_to_another_store(runs: Runs, store: Store, tmp_path: Path) -> None:
    run = sealed_run(store.root)
    to = f"{tmp_path}/packed/"
    assert runs("export", run.path.name, to).exit_code == 0
    packed = f"{to}{run.path.name}.run.tar"
    assert runs("verify", packed).exit_code == 0
    other = tmp_path / "other"
    done = CliRunner().invoke(build_app(), ["runs", "import", to, "--store", str(other)])
    assert done.exit_code == 0, done.output
    assert not Store(other).find(run.path.name).faults()
    assert "there already" in runs("import", to).stdout
    content = bytearray(Path(packed).read_bytes())
    content[content.index(b"seed 1")] ^= 1
    Path(packed).write_bytes(content)
    damaged = runs("verify", packed)
    assert (damaged.exit_code, "is not what was sealed" in damaged.stdout) == (1, True)


def test_explain_says_which_inputs_differ(runs: Runs, store: Store) -> None:
    a, b, twin = (sealed_run(store.root, seed=seed).path.name for seed in (1, 2, 1))
    same = runs("explain", a, twin)
    assert (same.exit_code, "equal keys" in same.stdout) == (0, True)
    done = runs("explain", a, b)
    assert done.exit_code == 1
    assert "1 input differs" in done.stdout
    assert "  recipe.seed\n    a  1\n    b  2\n" in done.stdout


def test_a_removed_run_leaves_its_record(runs: Runs, store: Store) -> None:
    old, new = sealed_run(store.root, seed=1), sealed_run(store.root, seed=2)
    names = old.path.name, new.path.name
    assert runs("supersede", names[0], "--by", names[1], "--reason", "longer").exit_code == 0
    assert runs("remove", names[0], "--reason", "wrong GPU").exit_code == 0
    assert "would delete" in runs("gc", "--dry-run").stdout
    assert old.path.is_dir()
    assert "(removed: wrong GPU)" in runs("gc").stdout
    assert not old.path.exists()
    assert "nothing to delete" in runs("gc").stdout
    listed = {row["run_id"]: row for row in json.loads(runs("list", "--json").stdout)["runs"]}
    assert listed[names[0]]["gone"]
    assert listed[names[0]]["amended"] == "removed: wrong GPU"


REFUSED = {
    "unknown run": (("show", "nothing"), "no run in"),
    "nothing to verify": (("verify",), "holds no sealed run"),
    "no such key file": (("sign", "2", "--key", "/no/key"), "cannot be read"),
    "no such packed run": (("import", "/no/such.run.tar"), "cannot be read from"),
    "itself": (("supersede", "2", "--by", "2", "--reason", "x"), "cannot supersede itself"),
    "sealed already": (("seal", "2"), "is sealed and never changes"),
    "no reason": (("remove", "2", "--reason", " "), "needs a reason"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_mistake_is_a_sentence_and_status_2(case: str, runs: Runs, store: Store) -> None:
    arguments, words = REFUSED[case]
    if case not in ("unknown run", "nothing to verify"):
        sealed_run(store.root)
    done = runs(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.output


def test_a_run_without_a_key_cannot_be_explained(runs: Runs, store: Store) -> None:
    keyless = RunFolder.create(store.root, "x")
    keyless.seal(manifest(run_id=keyless.path.name))
    done = runs("explain", keyless.path.name, keyless.path.name)
    assert (done.exit_code, "has no content key" in done.stderr) == (2, True)
