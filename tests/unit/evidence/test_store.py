"""What a store knows: runs, what was said of them, and when one may stand for another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.evidence.runs import RECIPE, manifest, sealed_run, verdicts

from gnomon.harness.errors import StoreError
from gnomon.harness.evidence import index
from gnomon.harness.evidence.amendments import AmendmentKind
from gnomon.harness.evidence.atomic import write_json
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.manifest import Reused, RunState, content_key
from gnomon.harness.evidence.proven import find_proven, unproven
from gnomon.harness.evidence.store import Store, delete
from gnomon.harness.evidence.verdicts import CheckState


def key_of(seed: int) -> str:
    return content_key({"recipe": {"seed": seed}, "argv": ["python", "--port", "*"]}).sha256


def rows(store: Store) -> dict[str, index.Row]:
    return {row.run_id: row for row in index.rows(store)}


def test_an_index_lists_what_the_folders_say(store: Store) -> None:
    run = sealed_run(store.root, seed=5)
    open_run = RunFolder.create(store.root, "y")
    open_run.save_manifest(manifest(run_id=open_run.path.name))
    listed = rows(store)
    assert listed.keys() == {run.path.name, open_run.path.name}
    row = listed[run.path.name]
    assert (row.state, row.point, row.content_key) == ("complete", "x-c1", key_of(5))
    assert (row.integration, row.quality, row.performance) == ("passed", "not_run", "passed")
    assert listed[open_run.path.name].state == "unsealed"
    with index.opened(store) as database:
        figures = database.execute("SELECT run_id, metric, value, unit, n FROM figures").fetchall()
    assert figures == [(run.path.name, "ttft_ms.p50", 12.5, "ms", 40)]


def test_an_index_reads_a_sealed_run_once(store: Store) -> None:
    for seed in range(3):
        sealed_run(store.root, seed=seed)
    with index.opened(store) as database:
        assert index.refresh(database, store) == 0
        sealed_run(store.root, seed=9)
        assert index.refresh(database, store) == 1


def test_an_index_is_made_again_from_nothing_from_garbage_and_from_another_version(
    store: Store,
) -> None:
    sealed_run(store.root)
    first = index.rows(store)
    path = store.root / index.INDEX
    path.write_bytes(b"no database")
    assert index.rows(store) == first
    with index.opened(store) as database:
        database.execute("UPDATE about SET version = -1")
        database.execute("DELETE FROM runs")
    assert index.rows(store) == first
    path.unlink()
    assert index.rows(store) == first


def test_a_run_that_was_changed_is_listed_as_damaged(store: Store) -> None:
    run, fine = sealed_run(store.root, seed=1), sealed_run(store.root, seed=2)
    data = json.loads((run.path / "verdicts.json").read_text())
    data["performance"]["checks"][0]["figures"][0]["value"] = 1.0
    (run.path / "verdicts.json").chmod(0o644)
    (run.path / "verdicts.json").write_text(json.dumps(data))
    row = rows(store)[run.path.name]
    assert (row.state, row.reason) == ("damaged", "the verdicts are not those that were sealed")
    with index.opened(store) as database:
        assert database.execute("SELECT run_id FROM figures").fetchall() == [(fine.path.name,)]
    data["performance"]["checks"][0]["figures"][0]["value"] = 12.5
    write_json(run.path / "verdicts.json", data)
    assert rows(store)[run.path.name].state == "complete"


def test_a_store_without_a_folder_is_empty(store: Store) -> None:
    assert index.rows(store) == []
    assert not store.root.exists()


def test_nothing_disappears(store: Store) -> None:
    old, new, wrong = (sealed_run(store.root, seed=seed) for seed in range(3))
    store.amend(AmendmentKind.SUPERSEDED, old, "a longer window", new.path.name)
    store.amend(AmendmentKind.REMOVED, wrong, "another process used the GPU", None)
    before = rows(store)
    assert before[old.path.name].amended == f"superseded by {new.path.name}: a longer window"
    assert before[wrong.path.name].amended == "removed: another process used the GPU"
    (garbage,) = store.garbage(unsealed=True)
    assert garbage == (wrong.path, "removed: another process used the GPU")
    delete(garbage[0])
    after = rows(store)
    assert after.keys() == before.keys()
    row = after[wrong.path.name]
    assert (row.gone, row.content_key, row.amended) == (
        *(True, key_of(2)),
        "removed: another process used the GPU",
    )


def test_amendments_are_added_and_the_last_one_holds(store: Store) -> None:
    run, other = sealed_run(store.root, seed=1), sealed_run(store.root, seed=2)
    store.amend(AmendmentKind.SUPERSEDED, run, "first", other.path.name)
    store.amend(AmendmentKind.REMOVED, run, "second", None)
    files = sorted(path.name for path in (store.root / "amendments").iterdir())
    assert len(files) == 2
    assert [each.reason for each in store.amendments().values()] == ["second"]


def test_an_amendment_that_was_changed_is_refused(store: Store) -> None:
    run = sealed_run(store.root)
    store.amend(AmendmentKind.REMOVED, run, "wrong GPU", None)
    (path,) = (store.root / "amendments").iterdir()
    path.write_bytes(path.read_bytes().replace(b"wrong", b"right"))
    with pytest.raises(StoreError, match="was changed after it was written"):
        store.amendments()


def test_only_sealed_runs_are_amended_and_only_for_a_reason(store: Store) -> None:
    open_run = RunFolder.create(store.root, "x")
    with pytest.raises(StoreError, match="only what cannot change is amended"):
        store.amend(AmendmentKind.REMOVED, open_run, "why", None)
    with pytest.raises(StoreError, match="needs a reason"):
        store.amend(AmendmentKind.REMOVED, sealed_run(store.root), "  ", None)
    with pytest.raises(StoreError, match="is not in"):
        store.amend(AmendmentKind.REMOVED, sealed_run(store.root.parent), "why", None)


def test_a_run_is_found_by_id_by_its_beginning_and_by_its_folder(store: Store) -> None:
    run = sealed_run(store.root, seed=1)
    for name in (run.path.name, run.path.name[:-1], str(run.path)):
        assert store.find(name).path == run.path
    other = sealed_run(store.root, seed=2)
    with pytest.raises(StoreError, match="2 runs begin with '2'"):
        store.find("2")
    assert store.find(other.path.name).path == other.path
    with pytest.raises(StoreError, match=r"no run in .* begins with 'z'; `gnomon runs list`"):
        store.find("z")


def test_garbage_is_what_nobody_writes(store: Store) -> None:
    alive = RunFolder.create(store.root, "alive")
    dead = RunFolder.create(store.root, "dead")
    for run in (alive, dead):
        run.save_manifest(manifest(run_id=run.path.name, state=RunState.RUNNING))
    path = dead.path
    del dead, run
    (store.root / ".incoming-killed").mkdir()
    assert [each.name for each, _ in store.garbage(unsealed=False)] == [".incoming-killed"]
    listed = [each for each, _ in store.garbage(unsealed=True)]
    assert listed == [store.root / ".incoming-killed", path]
    for each in listed:
        delete(each)
    assert [run.path for run in store.runs()] == [alive.path]


NOT_PROVEN: dict[str, tuple[dict[str, Any], dict[str, CheckState], str]] = {
    "failed": ({"state": RunState.FAILED}, {}, "its state is failed"),
    "interrupted": ({"state": RunState.INTERRUPTED}, {}, "its state is interrupted"),
    "integration": ({}, {"integration": CheckState.NOT_RUN}, "integration verdict is not run"),
    "performance": ({}, {"performance": CheckState.FAILED}, "performance verdict is failed"),
    "no-load": ({}, {"performance": CheckState.NOT_RUN}, "performance verdict is not run"),
    "asked-evals": ({"recipe": {**RECIPE, "evals": [1]}}, {}, "quality verdict is not run"),
    "not-asked": ({}, {"quality": CheckState.FAILED}, "quality verdict is failed"),
    "reused": (
        {"reused": Reused(run_id="other", manifest_sha256="0" * 64)},
        {},
        "it measured nothing itself, it reused other",
    ),
}


@pytest.mark.parametrize("case", NOT_PROVEN)
def test_what_is_no_proof_is_passed_over(case: str, store: Store) -> None:
    changes, states, words = NOT_PROVEN[case]
    sealed_run(store.root, of=verdicts(**states), **changes)
    found = find_proven(store, key_of(1))
    assert found.run is None
    assert words in found.passed_over[0]


def test_random_weights_have_no_quality_to_prove() -> None:
    made = manifest(recipe={**RECIPE, "evals": [1]})
    assert unproven(made, verdicts(quality=CheckState.NOT_APPLICABLE)) is None
    assert unproven(made, None) == "it has no verdicts"


def test_the_newest_proof_of_the_very_key_is_found(store: Store) -> None:
    assert find_proven(store, key_of(1)).run is None
    one, other = sealed_run(store.root, seed=1), sealed_run(store.root, seed=2)
    for seed, run in ((1, one), (2, other)):
        found = find_proven(store, key_of(seed))
        assert found.run is not None
        assert found.run.path == run.path
    assert find_proven(store, key_of(3)).run is None


def test_a_proof_that_was_touched_amended_or_never_sealed_is_none(store: Store) -> None:
    touched, removed = sealed_run(store.root), sealed_run(store.root)
    (touched.path / "note.txt").write_text("x")
    store.amend(AmendmentKind.REMOVED, removed, "wrong GPU", None)
    never = RunFolder.create(store.root, "x")
    key = content_key({"recipe": {"seed": 1}, "argv": ["python", "--port", "*"]})
    never.save_manifest(manifest(run_id=never.path.name, content_key=key))
    found = find_proven(store, key_of(1))
    assert found.run is None
    said = "; ".join(found.passed_over)
    assert "not what was sealed: note.txt" in said
    assert "removed: wrong GPU" in said
    assert never.path.name not in said
    assert Path(store.root).is_dir()
