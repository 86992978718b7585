"""A core that is stopped is noticed, one that computes for long is not taken to hang."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from pathlib import Path

import pytest

from gnomon.engine.errors import EngineStalled
from gnomon.engine.options import EngineOptions
from gnomon.engine.runner.client import EngineClient
from gnomon.engine.runner.pulse import Pulse, PulseLimits
from gnomon.engine.scheduler.request import SamplingParams

LIMITS = PulseLimits(silence_s=10, step_s=100)


@pytest.mark.parametrize(
    ("now", "beat", "step", "problem"),
    [
        (1000, 995, 0, None),
        (1000, 995, 905, None),
        (1000, 985, 0, "no sign of life for 10 s"),
        (1000, 985, 999, "no sign of life for 10 s"),
        (1000, 999, 890, "a step .* longer than 100 s"),
    ],
)
def test_silence_and_an_endless_step_are_problems(
    now: float, beat: float, step: float, problem: str | None
) -> None:
    found = LIMITS.problem(now, beat, step)
    assert re.search(problem or "^$", found or "")


def test_a_thread_beats_while_the_main_thread_computes(tmp_path: Path) -> None:
    ours = Pulse(tmp_path / "pulse", create=True)
    theirs = Pulse(tmp_path / "pulse", create=False)
    first, step = ours.read()
    assert step == 0
    theirs.beat_for_ever()
    theirs.step_begins()
    waited = threading.Event()
    while ours.read()[0] == first:
        waited.wait(0.01)
    beat, step = ours.read()
    assert beat > first
    assert step > 0
    theirs.step_ends()
    assert ours.read()[1] == 0


def test_a_stopped_core_ends_requests_with_an_error_and_comes_back(tiny_model: Path) -> None:
    options = EngineOptions(
        model=str(tiny_model), kv_cache_dtype="fp32", max_model_len=320, num_blocks=60
    )

    async def read(client: EngineClient, name: str, tokens: int) -> int:
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        return len([o async for o in client.generate(name, (1, 2, 3), sampling)])

    async def main() -> None:
        client = EngineClient(options, pulse_limits=PulseLimits(silence_s=1.0, step_s=600))
        await client.start()
        try:
            task = asyncio.create_task(read(client, "a", 300))
            await client.stats()
            os.kill(client.pid, signal.SIGSTOP)
            pending = asyncio.create_task(client.stats())
            with pytest.raises(EngineStalled, match="no sign of life for 1 s"):
                await task
            with pytest.raises(EngineStalled):
                await pending
            with pytest.raises(EngineStalled):
                await read(client, "b", 8)
            assert client.stall is not None
            assert client.death is None
            os.kill(client.pid, signal.SIGCONT)
            while client.stall is not None:
                await asyncio.sleep(0.01)
            assert await read(client, "c", 8) == 8
            stats = await client.stats()
            assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
        finally:
            os.kill(client.pid, signal.SIGCONT)
            await client.shutdown()

    asyncio.run(main())
