"""The engine core as a process: it serves, refuses, dies loudly, and never outlives its parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from gnomon.engine.errors import (
    AdmissionError,
    EngineBusy,
    EngineDead,
    StartupFailed,
    StartupRefused,
)
from gnomon.engine.llm import LLM
from gnomon.engine.options import EngineOptions
from gnomon.engine.runner.client import EngineClient
from gnomon.engine.scheduler.request import FinishReason, SamplingParams

MakePrompt = Callable[..., tuple[int, ...]]


def greedy(max_tokens: int = 8) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def options(model: Path, **more: object) -> EngineOptions:
    defaults = {"kv_cache_dtype": "fp32", "max_model_len": 320, "num_blocks": 60}
    return EngineOptions(model=str(model), **{**defaults, **more})  # type: ignore[arg-type]


@asynccontextmanager
async def running(model: Path, **client_options: int) -> AsyncIterator[EngineClient]:
    client = EngineClient(options(model), **client_options)
    await client.start()
    try:
        yield client
    finally:
        await client.shutdown()


async def collect(
    client: EngineClient, name: str, prompt: tuple[int, ...], count: int
) -> list[int]:
    return [t async for o in client.generate(name, prompt, greedy(count)) for t in o.token_ids]


def gone(pid: int, within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.05)
                continue
        return True
    return False


def test_requests_at_the_same_time_get_the_tokens_they_get_alone(
    tiny_model: Path, engine: Callable[..., LLM], prompt_of: MakePrompt
) -> None:
    prompts = [prompt_of(n) for n in (5, 48, 90)]
    expected = [list(c.token_ids) for c in engine().generate(prompts, greedy(12))]

    async def main() -> None:
        async with running(tiny_model) as client:
            assert client.is_ready
            assert client.facts.num_blocks == 60
            got = await asyncio.gather(
                *(collect(client, str(i), prompt, 12) for i, prompt in enumerate(prompts))
            )
            assert got == expected
            stats = await client.stats()
            assert (stats.generation_tokens_total, stats.prompt_tokens_total) == (36, 143)

    asyncio.run(main())


def test_refused_requests_do_not_disturb_the_others(
    tiny_model: Path, prompt_of: MakePrompt
) -> None:
    async def main() -> None:
        async with running(tiny_model, max_open_requests=2) as client:
            task = asyncio.create_task(collect(client, "good", prompt_of(20), 60))
            await asyncio.sleep(0)
            with pytest.raises(AdmissionError, match="already running"):
                await collect(client, "good", prompt_of(3), 4)
            with pytest.raises(AdmissionError, match="maximum context length is 320"):
                await collect(client, "long", prompt_of(300), 21)
            other = asyncio.create_task(collect(client, "other", prompt_of(20), 60))
            await asyncio.sleep(0)
            with pytest.raises(EngineBusy, match="2 requests are open"):
                await collect(client, "third", prompt_of(3), 4)
            assert len(await task) == len(await other) == 60

    asyncio.run(main())


def test_leaving_a_generation_frees_its_blocks(tiny_model: Path, prompt_of: MakePrompt) -> None:
    async def main() -> None:
        async with running(tiny_model) as client:
            async with aclosing(client.generate("a", prompt_of(40), greedy(250))) as outputs:
                async for _ in outputs:
                    break
            # Commands are obeyed in order and between steps: this answer comes after the abort.
            stats = await client.stats()
            assert (stats.blocks_used, stats.running) == (0, 0)
            assert stats.generation_tokens_total < 250

            task = asyncio.create_task(collect(client, "b", prompt_of(40), 250))
            while not (await client.stats()).running:
                pass
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await client.stats()).blocks_used == 0

            outputs = client.generate("c", prompt_of(40), greedy(250))
            await anext(outputs)
            await client.abort("c")
            await client.abort("unknown")
            last = [o async for o in outputs][-1]
            assert last.finish_reason is FinishReason.ABORT
            assert (await client.stats()).blocks_used == 0

    asyncio.run(main())


def test_everyone_who_waits_learns_that_the_core_was_killed(
    tiny_model: Path, prompt_of: MakePrompt
) -> None:
    async def main() -> None:
        async with running(tiny_model) as client:
            waiters = [
                asyncio.create_task(collect(client, str(i), prompt_of(20), 250)) for i in range(3)
            ]
            while (await client.stats()).running < 3:
                pass
            os.kill(client.pid, signal.SIGKILL)
            for outcome in await asyncio.gather(*waiters, return_exceptions=True):
                assert isinstance(outcome, EngineDead)
                assert "killed by signal 9" in str(outcome)
            assert not client.is_ready
            with pytest.raises(EngineDead, match="killed by signal 9"):
                await collect(client, "late", prompt_of(5), 4)
            with pytest.raises(EngineDead):
                await client.stats()

    asyncio.run(main())


def test_a_startup_refusal_tells_every_reason(tiny_model: Path) -> None:
    async def main() -> None:
        client = EngineClient(
            options(tiny_model, block_size=128, num_blocks=2, max_num_batched_tokens=8)
        )
        with pytest.raises(StartupRefused) as refused:
            await client.start()
        codes = [refusal.code for refusal in refused.value.refusals]
        assert codes == ["block-size", "pool-too-small", "budget-below-requests"]
        assert all(code in str(refused.value) for code in codes)
        assert gone(client.pid)

    asyncio.run(main())


def test_a_model_that_computes_nan_never_becomes_ready(tiny_model: Path, tmp_path: Path) -> None:
    tensors = load_file(tiny_model / "model.safetensors")
    tensors["language_model.lm_head.weight"][7] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())

    async def main() -> None:
        with pytest.raises(StartupFailed, match="logits that are not finite for warm-up"):
            await EngineClient(options(tmp_path)).start()

    asyncio.run(main())


def test_a_model_that_is_not_there_is_a_startup_failure_in_words() -> None:
    async def main() -> None:
        with pytest.raises(StartupFailed, match="does not exist"):
            await EngineClient(options(Path("/nonexistent/model"))).start()

    asyncio.run(main())


def test_a_core_that_takes_too_long_to_start_is_ended(tiny_model: Path) -> None:
    async def main() -> None:
        client = EngineClient(options(tiny_model), startup_timeout_s=0.05)
        with pytest.raises(StartupFailed, match=r"no sign of life in 0\.05 s"):
            await client.start()
        assert gone(client.pid)

    asyncio.run(main())


def test_shutdown_ends_open_requests_and_leaves_nothing(
    tiny_model: Path, prompt_of: MakePrompt
) -> None:
    async def main() -> None:
        async with running(tiny_model) as client:
            task = asyncio.create_task(collect(client, "a", prompt_of(20), 250))
            while not (await client.stats()).running:
                pass
            os.kill(client.pid, signal.SIGTERM)  # the API process decides when to stop, not this
            os.kill(client.pid, signal.SIGINT)
            assert (await client.stats()).running == 1
            await client.shutdown()
            with pytest.raises(EngineDead, match="was shut down"):
                await task
            assert gone(client.pid)
            assert not client._folder.exists()
            await client.shutdown()

    asyncio.run(main())


def test_who_waits_hears_of_the_shutdown_before_the_core_has_ended(
    tiny_model: Path, prompt_of: MakePrompt
) -> None:
    async def main() -> None:
        async with running(tiny_model) as client:
            task = asyncio.create_task(collect(client, "a", prompt_of(20), 250))
            while not (await client.stats()).running:
                pass
            os.kill(client.pid, signal.SIGSTOP)
            ending = asyncio.create_task(client.shutdown(timeout_s=600))
            with pytest.raises(EngineDead, match="was shut down"):
                await task
            assert not gone(client.pid)
            os.kill(client.pid, signal.SIGCONT)
            await ending
            assert gone(client.pid)

    asyncio.run(main())


PARENT = """
import asyncio, sys
from gnomon.engine.options import EngineOptions
from gnomon.engine.runner.client import EngineClient
from gnomon.engine.scheduler.request import SamplingParams

async def main():
    client = EngineClient(EngineOptions.model_validate_json(sys.argv[1]))
    start = asyncio.create_task(client.start())
    if sys.argv[2] == "ready":
        await start
        sampling = SamplingParams(temperature=0.0, max_tokens=250, ignore_eos=True)
        outputs = client.generate("a", [5] * 40, sampling)
        await anext(outputs)
    else:
        while not hasattr(client, "_process"):
            await asyncio.sleep(0.01)
    print(client.pid, client._folder, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("stage", ["ready", "loading"])
def test_the_core_goes_when_its_parent_is_killed(tiny_model: Path, stage: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, options(tiny_model).model_dump_json(), stage],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid, folder = parent.stdout.readline().split()
    assert psutil.pid_exists(int(pid))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(int(pid))
    assert not Path(folder).exists()
