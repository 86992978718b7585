"""A real server proves that it restores from host memory: flushed, found again, counted."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
from tests.clients.servers import gnomon_serve

ASK = {
    "model": "nano",
    "prompt": "A session of many turns keeps its beginning. " * 40,
    "max_tokens": 16,
    "temperature": 0,
}
BLOCK = 128


def test_a_flushed_prompt_comes_back_from_host_memory(tmp_path: Path) -> None:
    arguments = (
        *("nano", "--max-model-len", "2048", "--num-blocks", "32", "--kv-cache-dtype", "mxfp4"),
        *("--host-cache-bytes", "4000000", "--debug-state"),
    )
    with gnomon_serve(tmp_path / "server.log", *arguments) as server:
        server.wait_ready()

        def ask() -> tuple[str, int]:
            answer = httpx.post(f"{server.base_url}/completions", json=ASK, timeout=60).json()
            details = answer["usage"].get("prompt_tokens_details") or {}
            return answer["choices"][0]["text"], details.get("cached_tokens") or 0

        def counters() -> dict[str, float]:
            text = httpx.get(f"{server.url}/metrics").text
            found = re.findall(r"^gnomon:(host_\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE)
            return {name: float(value) for name, value in found}

        cold, cached = ask()
        assert cached == 0
        warm, cached = ask()
        assert cached > 2 * BLOCK
        assert counters()["host_cache_loaded_tokens_total"] == 0
        state = httpx.post(f"{server.url}/debug/cache/flush").json()
        assert (state["blocks_used"], state["blocks_cached"]) == (0, 0)
        assert state["host_blocks_used"] >= cached // BLOCK
        restored, again = ask()
        assert (cold, cached) == (warm, again) == (restored, again)
        moved = counters()
        facts = httpx.get(f"{server.url}/server_info").json()["facts"]
        assert facts["host_cache_mode"] == "eager"
        block_bytes = facts["block_bytes"]
        assert moved["host_cache_loaded_tokens_total"] == cached
        assert moved["host_cache_loaded_bytes_total"] == cached // BLOCK * block_bytes
        everything = httpx.post(f"{server.url}/debug/cache/flush", params={"host": True}).json()
        assert everything["host_blocks_used"] == 0
        assert ask() == (cold, 0)
