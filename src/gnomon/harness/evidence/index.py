"""An index over a store: a DuckDB file that is derived from the run folders, and never trusted.

It is brought up to date before it is asked: runs whose seal it knows are kept, others are read,
and what is gone is dropped. Deleting the file costs one reading of every manifest.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb

from gnomon.harness.evidence.amendments import Amendment
from gnomon.harness.evidence.atomic import sha256_of
from gnomon.harness.evidence.folder import VERDICTS, RunFolder
from gnomon.harness.evidence.held import waiting_for
from gnomon.harness.evidence.seal import MANIFEST, sealed_hash
from gnomon.harness.evidence.store import Store

INDEX = ".index.duckdb"
LOCK = ".index.lock"
UNSEALED = "unsealed"
"""State of a run that may still change."""
DAMAGED = "damaged"
"""State of a run that is not what was sealed; it is read again each time."""
_VERSION = 1
_RUNS = {
    **dict.fromkeys(
        ("run_id", "manifest_sha256", "state", "started", "recipe", "point"), "VARCHAR"
    ),
    **dict.fromkeys(("arm", "scope", "engine", "hardware", "content_key"), "VARCHAR"),
    **dict.fromkeys(("integration", "quality", "performance", "reused", "reason"), "VARCHAR"),
}
_FIGURES = {
    **dict.fromkeys(("run_id", "verdict", "metric", "unit", "scope"), "VARCHAR"),
    "value": "DOUBLE",
    "n": "BIGINT",
    **dict.fromkeys(("low", "high", "level"), "DOUBLE"),
    "method": "VARCHAR",
}
_TABLES: Mapping[str, Mapping[str, str]] = {"runs": _RUNS, "figures": _FIGURES}


@dataclass(frozen=True)
class Row:
    """One run as the index lists it; texts are empty where a run has no such thing.

    Attributes:
        run_id: name of its folder.
        manifest_sha256: of its seal.
        state: of the manifest, ``unsealed`` before the seal, ``damaged`` where the two disagree.
        started: UTC.
        recipe: name of the recipe's point.
        point: its id.
        arm: of the recipe.
        scope: of its numbers.
        engine: that was started.
        hardware: class of the machine.
        content_key: identity of the inputs.
        integration: state of the verdict.
        quality: state of the verdict.
        performance: state of the verdict.
        reused: the run it stands on instead of measuring.
        reason: why it is no success.
        amended: the last amendment, as a sentence.
        gone: the folder was deleted after the run was removed; the amendment is what is left.
    """

    run_id: str
    manifest_sha256: str
    state: str
    started: str
    recipe: str
    point: str
    arm: str
    scope: str
    engine: str
    hardware: str
    content_key: str
    integration: str
    quality: str
    performance: str
    reused: str
    reason: str
    amended: str = ""
    gone: bool = False


def rows(store: Store) -> list[Row]:
    """Every run of a store, oldest first, and every removed run that is not there any more.

    Raises:
        StoreError: an amendment is damaged.
    """
    amendments = store.amendments()
    with opened(store) as database:
        names = ", ".join(_RUNS)
        found = database.execute(f"SELECT {names} FROM runs ORDER BY run_id").fetchall()
    listed = [replace(Row(*each), amended=_said(amendments.get(each[1]))) for each in found]
    here = {row.manifest_sha256 for row in listed}
    listed += [_gone(each) for each in amendments.values() if each.manifest_sha256 not in here]
    return sorted(listed, key=lambda row: row.run_id)


def _said(amendment: Amendment | None) -> str:
    return amendment.sentence if amendment is not None else ""


def _gone(amendment: Amendment) -> Row:
    known = {
        "run_id": amendment.run_id,
        "manifest_sha256": amendment.manifest_sha256,
        "content_key": amendment.content_key or "",
    }
    columns: dict[str, Any] = {**dict.fromkeys(_RUNS, ""), **known}
    return replace(Row(**columns), amended=amendment.sentence, gone=True)


@contextlib.contextmanager
def opened(store: Store) -> Iterator[duckdb.DuckDBPyConnection]:
    """The index, up to date, for one caller at a time; tables ``runs`` and ``figures``."""
    if not os.access(store.root, os.W_OK):  # not there yet, or a folder that may only be read
        with duckdb.connect(":memory:", config={"threads": 1}) as database:
            _create(database)
            refresh(database, store)
            yield database
        return
    with waiting_for(store.root / LOCK), _connect(store.root / INDEX) as database:
        refresh(database, store)
        yield database


def _connect(path: Path) -> duckdb.DuckDBPyConnection:
    """Open the index; one that is damaged or of another version is built again."""
    try:
        database = duckdb.connect(str(path), config={"threads": 1})
        try:
            (version,) = database.execute("SELECT version FROM about").fetchone() or (None,)
            if version == _VERSION:
                return database
        except duckdb.CatalogException:
            pass
        database.close()
    except duckdb.Error:
        pass
    for each in (path, path.with_name(f"{path.name}.wal")):
        each.unlink(missing_ok=True)
    database = duckdb.connect(str(path), config={"threads": 1})
    _create(database)
    return database


def _create(database: duckdb.DuckDBPyConnection) -> None:
    for name, columns in _TABLES.items():
        listed = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        database.execute(f"CREATE TABLE {name} ({listed})")
    database.execute(f"CREATE TABLE about AS SELECT {_VERSION} AS version")


def refresh(database: duckdb.DuckDBPyConnection, store: Store) -> int:
    """Bring the tables up to date; returns how many runs were read."""
    kept = f"SELECT run_id, manifest_sha256 FROM runs WHERE state <> '{DAMAGED}'"
    known = dict(database.execute(kept).fetchall())
    rows = {name for (name,) in database.execute("SELECT run_id FROM runs").fetchall()}
    present = {run.path.name: (run, sealed_hash(run.path)) for run in store.runs()}
    changed = [
        run
        for name, (run, sealed) in present.items()
        if not sealed or known.get(name) != sealed  # what is not sealed may have changed
    ]
    stale = [*(rows - present.keys()), *(run.path.name for run in changed)]
    with tempfile.TemporaryDirectory() as scratch:
        files = {name: Path(scratch) / f"{name}.ndjson" for name in _TABLES}
        _write_rows(changed, files)
        database.begin()
        for name, columns in _TABLES.items():
            database.execute(
                f"DELETE FROM {name} WHERE list_contains($ids, run_id)", {"ids": stale}
            )
            if files[name].stat().st_size:
                spelled = ", ".join(f"{column}: '{kind}'" for column, kind in columns.items())
                database.execute(
                    f"INSERT INTO {name} SELECT * FROM read_json($file, "
                    f"format = 'newline_delimited', columns = {{{spelled}}})",
                    {"file": str(files[name])},
                )
        database.commit()
    return len(changed)


def _write_rows(runs: list[RunFolder], files: Mapping[str, Path]) -> None:
    with (
        files["runs"].open("w", encoding="utf-8") as of_runs,
        files["figures"].open("w", encoding="utf-8") as of_figures,
    ):
        for run in runs:
            row, figures = _read(run)
            of_runs.write(json.dumps(row) + "\n")
            of_figures.writelines(json.dumps(figure) + "\n" for figure in figures)


def _read(run: RunFolder) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run's row and its figures; a run that cannot be read is a row that says so."""
    row: dict[str, Any] = {**dict.fromkeys(_RUNS, ""), "run_id": run.path.name}
    sealed = sealed_hash(run.path)
    row["manifest_sha256"] = sealed or ""
    try:
        content = (run.path / MANIFEST).read_bytes()
        manifest = json.loads(content)
        if sealed is not None and sha256_of(content) != sealed:
            raise ValueError("the manifest is not the one that was sealed")
        verdicts = _verdicts(run, manifest if sealed else None)
        row |= _facts(manifest, sealed is not None)
        row |= {
            kind: verdicts[kind]["state"]
            for kind in ("integration", "quality", "performance")
            if kind in verdicts
        }
        return row, _figures(run.path.name, verdicts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        row |= {"state": DAMAGED, "reason": f"{error}"}
        return row, []


def _verdicts(run: RunFolder, sealed_manifest: Mapping[str, Any] | None) -> dict[str, Any]:
    path = run.path / VERDICTS
    if not path.is_file():
        return {}
    content = path.read_bytes()
    if sealed_manifest is not None and (
        sealed_manifest["artifacts"].get(VERDICTS, {}).get("sha256") != sha256_of(content)
    ):
        raise ValueError("the verdicts are not those that were sealed")
    verdicts: dict[str, Any] = json.loads(content)
    return verdicts


def _facts(manifest: Mapping[str, Any], sealed: bool) -> dict[str, Any]:
    recipe, host = manifest["recipe"], manifest["host"]
    key, reused = manifest.get("content_key") or {}, manifest.get("reused") or {}
    gpus = ", ".join(gpu["name"] for gpu in host.get("gpus", ()))
    return {
        "state": manifest["state"] if sealed else UNSEALED,
        "started": manifest["started"],
        "recipe": recipe.get("name", ""),
        "point": recipe.get("id", ""),
        "arm": recipe.get("arm", ""),
        "scope": recipe.get("scope", ""),
        "engine": recipe.get("engine", {}).get("name", ""),
        "hardware": gpus or f"{host['cpu']} x {host['cpus']}",
        "content_key": key.get("sha256", ""),
        "reused": reused.get("run_id", ""),
        "reason": manifest.get("reason", ""),
    }


def _figures(run_id: str, verdicts: Mapping[str, Any]) -> list[dict[str, Any]]:
    listed = []
    for kind in ("quality", "performance"):
        for check in verdicts.get(kind, {}).get("checks", ()):
            for figure in check["figures"]:
                interval = figure.get("interval") or {}
                listed.append(
                    {
                        "run_id": run_id,
                        "verdict": kind,
                        **{
                            name: figure[name] for name in ("metric", "value", "unit", "n", "scope")
                        },
                        **{name: interval.get(name) for name in ("low", "high", "level", "method")},
                    }
                )
    return listed
