"""Raw records of a replay as a Parquet table: one row a request, opened by column and by range.

``replay.json`` holds everything but the records, ``requests.parquet`` the records. Any tool that
reads Parquet reads them, over one run or over ``runs/*/requests.parquet``.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import duckdb
from pydantic import TypeAdapter, ValidationError

from gnomon.harness.errors import RunFolderError
from gnomon.harness.evidence.atomic import UNFINISHED, fsync_path
from gnomon.harness.evidence.folder import REPLAY, REQUESTS, RunFolder
from gnomon.harness.replay.results import ReplayResult, RequestRecord

REPLAY_JSON: TypeAdapter[ReplayResult] = TypeAdapter(ReplayResult)
_SQL_TYPES = {"str": "VARCHAR", "int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN"}
COLUMNS: Mapping[str, str] = {
    field.name: _SQL_TYPES[str(field.type).removesuffix(" | None")]
    for field in fields(RequestRecord)
}
"""Columns of the table, in order, with their SQL types: the fields of a record."""


def save_replay(folder: RunFolder, result: ReplayResult) -> None:
    """Write a replay's result and its records."""
    folder.require_open()
    write_requests(folder.path / REQUESTS, result.records)
    rest = replace(result, records=())
    folder.write_json(REPLAY, REPLAY_JSON.dump_python(rest, mode="json"))


def load_replay(folder: RunFolder) -> ReplayResult | None:
    """A replay's result with every record, None where the run had none.

    Raises:
        RunFolderError: a file of it is damaged.
    """
    data = folder.read_json(REPLAY)
    if data is None:
        return None
    try:
        result = REPLAY_JSON.validate_python(data)
        path = folder.path / REQUESTS
        if path.is_file():
            result = replace(result, records=read_requests(path))
    except (ValidationError, duckdb.Error) as error:
        raise RunFolderError(f"the replay in {folder.path} is damaged: {error}") from None
    return result


def write_requests(path: Path, records: Sequence[RequestRecord]) -> None:
    """Write records to a Parquet file in one step; equal records give equal bytes."""
    with tempfile.NamedTemporaryFile("w", suffix=".ndjson", encoding="utf-8") as lines:
        for record in records:
            lines.write(json.dumps(asdict(record), allow_nan=False) + "\n")
        lines.flush()
        part = path.with_name(f"{UNFINISHED}{path.name}")
        with _connection() as database:
            database.execute(
                "COPY (SELECT * FROM read_json($lines, format = 'newline_delimited', "
                f"columns = {_columns_sql()})) "
                "TO $part (FORMAT parquet, COMPRESSION zstd)",
                {"lines": lines.name, "part": str(part)},
            )
    fsync_path(part)
    part.replace(path)


def read_requests(
    path: Path, *, first: int = 0, count: int | None = None
) -> tuple[RequestRecord, ...]:
    """Some records of a Parquet file, in the order sent; the others are not loaded.

    Args:
        path: of the file.
        first: row to begin with.
        count: most rows to read; all that follow if left out.
    """
    names = ", ".join(COLUMNS)
    limit = "" if count is None else f" LIMIT {count:d}"
    query = f"SELECT {names} FROM read_parquet($path){limit} OFFSET {first:d}"
    with _connection() as database:
        rows = database.execute(query, {"path": str(path)}).fetchall()
    return tuple(RequestRecord(*row) for row in rows)


def _columns_sql() -> str:
    return "{" + ", ".join(f"{name}: '{kind}'" for name, kind in COLUMNS.items()) + "}"


def _connection() -> Any:
    # One thread: the rows keep their order, and a run that is measured loses no more than one CPU.
    return duckdb.connect(":memory:", config={"threads": 1})
