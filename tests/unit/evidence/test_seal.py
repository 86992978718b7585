"""A sealed run never changes, and whoever changes it is found out."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.evidence.runs import manifest, sealed_run

from gnomon.harness.errors import RunFolderError
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.held import Held


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run = sealed_run(tmp_path_factory.mktemp("runs"))
    run.sign(Ed25519PrivateKey.generate())
    return run


def every_file(run: RunFolder) -> list[Path]:
    return sorted(path for path in run.path.rglob("*") if path.is_file())


def overwrite(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


@settings(deadline=None)
@given(st.data())
def test_any_byte_changed_in_a_sealed_run_is_found(signed: RunFolder, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(every_file(signed)))
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    other = data.draw(st.integers(1, 255)) ^ content[place]
    try:
        overwrite(path, content[:place] + bytes([other]) + content[place + 1 :])
        assert signed.faults()
    finally:
        overwrite(path, content)
    assert not signed.faults()


@pytest.mark.parametrize("name", ["manifest.sha256", "manifest.sig"])
def test_every_single_byte_of_seal_and_signature_counts(signed: RunFolder, name: str) -> None:
    path = signed.path / name
    content = path.read_bytes()
    for place in range(len(content)):
        for flip in (1, 4, 32):  # 4 spares the bits that base64 leaves unused, unless it looks
            changed = content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :]
            overwrite(path, changed)
            assert signed.faults(), (place, flip)
    overwrite(path, content)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda run: (run.path / "server/log.txt").unlink(), "server/log.txt: missing"),
        (lambda run: (run.path / "note.txt").write_text("x"), "note.txt: added after"),
        (lambda run: overwrite(run.path / "server/log.txt", b""), "0 bytes instead of"),
        (lambda run: (run.path / "manifest.json").unlink(), "manifest.json: missing"),
        (lambda run: (run.path / "manifest.sha256").unlink(), "was not sealed"),
    ],
    ids=["a-file-less", "a-file-more", "a-file-emptied", "no-manifest", "no-seal"],
)
def test_what_was_added_or_taken_away_is_named(
    change: Callable[[RunFolder], None], words: str, tmp_path: Path
) -> None:
    run = sealed_run(tmp_path)
    change(run)
    assert any(words in str(fault) for fault in run.faults())


def test_a_file_replaced_by_a_link_to_its_own_content_is_missing(tmp_path: Path) -> None:
    run = sealed_run(tmp_path / "runs")
    log = run.path / "server/log.txt"
    elsewhere = log.rename(tmp_path / "log.txt")
    log.symlink_to(elsewhere)
    assert [str(fault) for fault in run.faults()] == ["server/log.txt: missing"]


def test_a_renamed_run_is_not_the_run_it_claims_to_be(tmp_path: Path) -> None:
    run = sealed_run(tmp_path)
    renamed = RunFolder(run.path.rename(tmp_path / "better"))
    assert "the folder is called better" in str(renamed.faults()[0])


def test_a_key_that_is_not_the_hash_of_its_inputs_is_found(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "x")
    key = {"sha256": "0" * 64, "inputs": {"seed": 1}}
    run.seal(manifest(run_id=run.path.name, content_key=key))
    assert "not the hash of the inputs" in str(run.faults()[0])


def test_a_sealed_run_refuses_every_write(tmp_path: Path) -> None:
    run = sealed_run(tmp_path)
    for write in (
        lambda: run.write_text("report.html", "another page"),
        lambda: run.write_json("verdicts.json", {}),
        lambda: run.save_manifest(run.load_manifest()),
        lambda: run.seal(run.load_manifest()),
    ):
        with pytest.raises(RunFolderError, match="is sealed and never changes"):
            write()
    assert not run.faults()


def test_files_of_a_sealed_run_can_only_be_read(tmp_path: Path) -> None:
    run = sealed_run(tmp_path)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in every_file(run)}
    assert modes["log.txt"] == modes["verdicts.json"] == modes["manifest.json"] == "0o444"


def test_a_seal_is_a_line_that_sha256sum_reads(tmp_path: Path) -> None:
    run = sealed_run(tmp_path)
    digest = hashlib.sha256((run.path / "manifest.json").read_bytes()).hexdigest()
    assert (run.path / "manifest.sha256").read_text() == f"{digest}  manifest.json\n"
    subprocess.run(["sha256sum", "-c", "manifest.sha256"], cwd=run.path, check=True)


def test_an_unfinished_write_is_nobodys_content(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "x")
    (run.path / ".writing-abc").write_text("half of somethi")
    run.seal(manifest(run_id=run.path.name))
    assert run.load_manifest().artifacts == {}
    assert not run.faults()
    assert not (run.path / ".writing-abc").exists()


def test_a_folder_that_somebody_writes_is_not_sealed_by_another(tmp_path: Path) -> None:
    writer = RunFolder.create(tmp_path, "x")
    with pytest.raises(RunFolderError, match="by a process that is alive"):
        RunFolder(writer.path).seal(manifest(run_id=writer.path.name))
    writer.seal(manifest(run_id=writer.path.name))


def test_holding_a_folder_ends_with_its_holder(tmp_path: Path) -> None:
    handles = len(list(Path("/proc/self/fd").iterdir()))
    held = Held.take(tmp_path)
    assert held is not None
    assert Held.take(tmp_path) is None
    del held
    again = Held.take(tmp_path)
    assert again is not None
    again.release()
    assert len(list(Path("/proc/self/fd").iterdir())) == handles
