"""Raw records in Parquet: the same records come back, and only those that are asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.harness.errors import RunFolderError
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.raw import load_replay, read_requests, save_replay, write_requests
from gnomon.harness.replay.results import ReplayCounts, ReplayResult, RequestRecord

NUMBER = st.floats(allow_nan=False, allow_infinity=False)
COUNT = st.none() | st.integers(0, 2**40)
RECORD = st.builds(
    RequestRecord,
    request_id=st.text(max_size=5),
    conversation_id=st.text(max_size=5),
    turn_index=st.integers(0, 99),
    agent_depth=st.integers(0, 3),
    start_s=NUMBER,
    end_s=NUMBER,
    ttft_ms=st.none() | NUMBER,
    itl_ms=st.none() | NUMBER,
    latency_ms=st.none() | NUMBER,
    input_tokens=COUNT,
    output_tokens=COUNT,
    cached_tokens=COUNT,
    cancelled=st.booleans(),
    error=st.none() | st.text(max_size=9),
)


def numbered(count: int) -> tuple[RequestRecord, ...]:
    one = RequestRecord("", "c", 0, 0, 0.0, 1.0, ttft_ms=2.5)
    return tuple(replace(one, request_id=f"r{i}", start_s=i / 3) for i in range(count))


@settings(max_examples=30, deadline=None)
@given(st.lists(RECORD, max_size=4))
def test_every_record_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, records: list[RequestRecord]
) -> None:
    path = tmp_path_factory.mktemp("raw") / "requests.parquet"
    write_requests(path, records)
    assert read_requests(path) == tuple(records)


def test_equal_records_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_requests(tmp_path / name, numbered(500))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_range_is_read_in_the_order_sent(tmp_path: Path) -> None:
    path = tmp_path / "requests.parquet"
    write_requests(path, numbered(1000))
    assert read_requests(path, first=700, count=2) == numbered(702)[700:]
    assert read_requests(path, first=998) == numbered(1000)[998:]
    assert read_requests(path, count=0) == ()


def test_a_hundred_megabytes_are_opened_without_loading_them(tmp_path: Path) -> None:
    path = tmp_path / "requests.parquet"
    with duckdb.connect(":memory:", config={"threads": 1}) as database:
        database.execute(
            "COPY (SELECT md5(i::VARCHAR) || md5((i + 1)::VARCHAR) AS request_id, "
            "'c' AS conversation_id, i AS turn_index, 0 AS agent_depth, i / 3.0::DOUBLE AS start_s,"
            " i::DOUBLE AS end_s, NULL::DOUBLE AS ttft_ms, NULL::DOUBLE AS itl_ms, NULL::DOUBLE AS "
            "latency_ms, NULL::BIGINT AS input_tokens, NULL::BIGINT AS output_tokens, NULL::BIGINT "
            "AS cached_tokens, false AS cancelled, NULL::VARCHAR AS error FROM range(1500000) t(i))"
            f" TO '{path}' (FORMAT parquet, COMPRESSION uncompressed)"
        )
    assert path.stat().st_size > 100_000_000
    read_before = _bytes_read()
    (record,) = read_requests(path, first=700_000, count=1)
    assert record.turn_index == 700_000
    assert _bytes_read() - read_before < 30_000_000


def _bytes_read() -> int:
    """Bytes this process asked the kernel for, from the page cache too."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar:")))


def result(records: tuple[RequestRecord, ...]) -> ReplayResult:
    return ReplayResult(
        argv=("aiperf",),
        env={},
        exit_code=0,
        was_cancelled=False,
        reason=None,
        wall_s=2.0,
        duration_s=1.0,
        records=records,
        counts=ReplayCounts(len(records), len(records), len(records), 0, 0, 0),
        slices=(),
        slice_s=1.0,
        client_cache=None,
        server_cache=None,
        findings=(),
        versions={},
    )


def test_a_replay_is_read_back_whole(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "x")
    assert load_replay(run) is None
    save_replay(run, result(numbered(3)))
    assert load_replay(run) == result(numbered(3))
    assert run.read_json("replay.json")["records"] == []


def test_a_damaged_table_is_refused_in_words(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "x")
    save_replay(run, result(numbered(3)))
    (run.path / "requests.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(RunFolderError, match=r"the replay in .* is damaged"):
        load_replay(run)
