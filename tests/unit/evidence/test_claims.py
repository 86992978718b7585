"""Claims: what a record bears out, what a change may have voided, and what nobody measured."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gnomon.cli.main import build_app
from gnomon.harness.evidence.claims import Status, Threshold, at_pointer, check, read_claims

ROOT = Path(__file__).parents[3]
CLAIM: dict[str, Any] = {
    "id": "copies-are-fast",
    "says": "Copies reach 47 GB/s.",
    "where": ["README.md"],
    "record": "evidence/copies.json",
    "value": "/layouts/mxfp4/gb_s",
    "holds": {"at_least": 46.5},
    "scope": "one GPU",
    "depends_on": ["src/copy.py"],
}


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a measured program, and a record that names its commit."""
    for name in ("README.md", "src/copy.py", "src/other.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    record(tmp_path)
    return tmp_path


def record(root: Path, value: Any = 46.9, **more: Any) -> None:
    data = {"commit": git(root, "rev-parse", "HEAD"), "layouts": {"mxfp4": {"gb_s": value}}}
    (root / "evidence").mkdir(exist_ok=True)
    (root / "evidence/copies.json").write_text(json.dumps({**data, **more}))


def claims(root: Path, *changes: dict[str, Any]) -> Path:
    listed = [{**CLAIM, **change} for change in changes or ({},)]
    path = root / "claims.yaml"
    path.write_text(yaml.safe_dump({"claims": listed}))
    return path


def status(root: Path, **change: Any) -> tuple[Status, str]:
    (claim,) = read_claims(claims(root, change))
    found = check(claim, root)
    return found.status, found.why


def test_a_claim_holds_while_its_record_and_its_code_stand(checkout: Path) -> None:
    assert status(checkout)[0] is Status.HOLDS
    (checkout / "src/other.py").write_text("2\n")
    assert status(checkout)[0] is Status.HOLDS


def edit(root: Path) -> None:
    (root / "src/copy.py").write_text("2\n")


def commit(root: Path) -> None:
    edit(root)
    git(root, "commit", "-q", "-a", "-m", "second")


def delete(root: Path) -> None:
    (root / "src/copy.py").unlink()


def add(root: Path) -> None:
    (root / "src/new.py").write_text("3\n")


@pytest.mark.parametrize("change", [edit, commit, delete, add])
def test_a_claim_is_stale_once_something_it_depends_on_changed(
    change: Callable[[Path], None], checkout: Path
) -> None:
    change(checkout)
    found, why = status(checkout, depends_on=["src"])
    assert found is Status.STALE
    assert "src/new.py" in why if change is add else "src/copy.py" in why


@pytest.mark.parametrize(
    ("commit", "words"),
    [(None, "names no commit"), ("0" * 40, "is not in this checkout")],
)
def test_a_record_of_unknown_code_is_stale(commit: Any, words: str, checkout: Path) -> None:
    record(checkout, commit=commit)
    found, why = status(checkout)
    assert (found, words in why) == (Status.STALE, True)


def test_a_record_can_contradict_whatever_changed_since(checkout: Path) -> None:
    record(checkout, 31.0)
    edit(checkout)
    assert status(checkout) == (Status.CONTRADICTED, "it is 31.0, not at least 46.5")


def test_what_no_record_has_is_unproven(checkout: Path) -> None:
    assert status(checkout, value="/layouts/fp8/gb_s")[0] is Status.UNPROVEN
    assert status(checkout, record="evidence/none.json")[0] is Status.UNPROVEN
    (checkout / "evidence/copies.json").write_text("{")
    assert status(checkout)[0] is Status.UNPROVEN


@given(st.floats(allow_nan=False), st.floats(-1e3, 1e3), st.floats(-1e3, 1e3))
def test_bounds_accept_what_lies_between_them(value: float, low: float, high: float) -> None:
    threshold = Threshold(at_least=low, at_most=high)
    assert threshold.accepts(value) == (low <= value <= high)


def test_a_number_is_no_truth_and_a_text_no_number() -> None:
    assert not Threshold(equals=0).accepts(False)
    assert not Threshold(equals=True).accepts(1)
    assert not Threshold(at_least=0).accepts(True)
    assert not Threshold(at_least=0).accepts("1")
    assert Threshold(equals=None).accepts(None)


def test_pointers_name_members_and_places() -> None:
    data = {"a/b": [{"c~d": 1}], "": 2}
    assert at_pointer(data, "/a~1b/0/c~0d") == 1
    assert at_pointer(data, "/") == 2
    for wrong in ("/a~1b/1", "/a~1b/x", "/z", "/a~1b/0/c~0d/e"):
        with pytest.raises(LookupError):
            at_pointer(data, wrong)


def run(path: Path, *more: str) -> Any:
    return CliRunner().invoke(build_app(), ["claims", "check", str(path), *more])


def test_stale_is_told_and_contradicted_fails(checkout: Path) -> None:
    edit(checkout)
    done = run(claims(checkout))
    assert (done.exit_code, "1 claims: 1 stale" in done.stdout) == (0, True)
    record(checkout, 31.0)
    done = run(claims(checkout), "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["counts"] == {"contradicted": 1}


def test_every_mistake_in_a_file_is_told_at_once(checkout: Path) -> None:
    wrong = claims(checkout, {"depends_on": ["src/gone.py"]}, {"where": ["nowhere.md"]})
    done = run(wrong)
    assert done.exit_code == 2
    for words in ("src/gone.py does not exist", "nowhere.md does not exist", "at two claims"):
        assert words in done.stderr
    shapeless = run(claims(checkout, {"holds": {}, "surprise": 1}))
    assert shapeless.exit_code == 2
    assert "claims[0].surprise: unknown key" in shapeless.stderr
    assert "claims[0].holds: give equals, at_least or at_most" in shapeless.stderr
    assert run(checkout / "none.yaml").exit_code == 2


def test_no_record_of_this_repository_contradicts_its_pages() -> None:
    found = [check(claim, ROOT) for claim in read_claims(ROOT / "claims.yaml")]
    wrong = [each for each in found if each.status in (Status.CONTRADICTED, Status.UNPROVEN)]
    assert found
    assert not wrong
