"""Servers to test against: the real one as a process, and the real API over a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import uvicorn

from gnomon.engine.errors import EngineDead, EngineError
from gnomon.engine.runner.messages import EngineFacts, EngineStats, TokenOutput
from gnomon.engine.scheduler.request import FinishReason, SamplingParams
from gnomon.engine.serve.options import ServeOptions
from gnomon.engine.serve.served import Served
from gnomon.engine.serve.server import http_config

_READY = re.compile(r"server ready: .* at (http://\S+)/v1")


@dataclass
class ServerProcess:
    """A running ``gnomon serve``."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def core(self) -> psutil.Process:
        """The engine-core process."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next(c for c in children if "gnomon.engine.runner.process" in c.cmdline())

    def wait_ready(self, timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = _READY.search(self.log.read_text())
            if found:
                self.url = found[1]
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"the server did not get ready:\n{self.log.read_text()}")

    def stop(self) -> int:
        """End it politely and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@contextlib.contextmanager
def gnomon_serve(log: Path, *flags: str) -> Iterator[ServerProcess]:
    """Start ``gnomon serve`` on a free port; it is gone when the block ends."""
    command = [sys.executable, "-m", "gnomon", "serve", *flags, "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # threads that spin starve each other
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
    server = ServerProcess(process, log)
    try:
        yield server
    finally:
        try:
            server.stop()
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass
class Script:
    """What the scripted engine answers.

    Attributes:
        token_ids: in order, one a step.
        finish: how it ends; None hangs until the client leaves.
        fail: what is raised after the tokens, instead of an end.
        delay_s: before every token.
    """

    token_ids: Sequence[int] = ()
    finish: FinishReason | None = FinishReason.STOP
    fail: EngineError | None = None
    delay_s: float = 0.0
    cached: int = 0


@dataclass
class ScriptedEngine:
    """An engine that says what a test tells it to, and remembers what it was asked."""

    script: Script = field(default_factory=Script)
    prompts: list[list[int]] = field(default_factory=list)
    samplings: list[SamplingParams] = field(default_factory=list)
    grammars: list[str | None] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    death: EngineError | None = None
    stall: EngineError | None = None
    is_ready: bool = True

    @property
    def facts(self) -> EngineFacts:
        return EngineFacts(
            model="scripted", model_fingerprint="0", architecture="MiniMaxM3", device="cpu",
            compute_dtype="float32", backend="scripted", kv_cache_dtype="bf16",
            index_cache_dtype="bf16", layouts={}, block_size=128, block_bytes=1, num_blocks=1,
            max_model_len=4096, max_num_seqs=1, max_num_batched_tokens=1,
            enable_prefix_caching=True, selection_reuse=False, topk_blocks=4, seed=0,
        )  # fmt: skip

    async def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        grammar: str | None = None,
    ) -> AsyncGenerator[TokenOutput, None]:
        if self.death is not None:
            raise EngineDead(str(self.death))
        script = self.script
        self.prompts.append(list(prompt_ids))
        self.samplings.append(sampling)
        self.grammars.append(grammar)
        done = False
        try:
            for at, token_id in enumerate(script.token_ids):
                await asyncio.sleep(script.delay_s)
                last = at == len(script.token_ids) - 1 and script.fail is None
                done = last and script.finish is not None
                yield TokenOutput(
                    id=request_id,
                    token_ids=(token_id,),
                    num_cached=script.cached,
                    finish_reason=script.finish if last else None,
                )
            if script.fail is not None:
                done = True
                raise script.fail
            if script.finish is None:
                await asyncio.Event().wait()
        finally:
            (self.finished if done else self.aborted).append(request_id)

    async def flush_cache(self, *, host: bool = False) -> EngineStats:
        return await self.stats()

    async def stats(self) -> EngineStats:
        return EngineStats(
            running=0, waiting=0, blocks_total=1, blocks_used=0, blocks_cached=0,
            prefix_queries_total=0, prefix_hits_total=0, preemptions_total=0, steps_total=0,
            prompt_tokens_total=0, generation_tokens_total=0, sanitised_values_total=0,
        )  # fmt: skip


@dataclass
class ScriptedServer:
    """The real API over a scripted engine, in a thread."""

    url: str
    engine: ScriptedEngine
    served: Served

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def say(
        self,
        text: str,
        *,
        plain: bool = False,
        finish: FinishReason | None = FinishReason.STOP,
        **script: object,
    ) -> None:
        """Let the engine answer with this text; ``plain`` spells markers in ordinary tokens."""
        tokenizer = self.served.tokenizer
        ids = tokenizer.encode_plain(text) if plain else tokenizer.encode(text)
        if finish is FinishReason.STOP and "fail" not in script:
            ids += self.served.defaults.stop_token_ids[:1]
        self.engine.script = Script(ids, finish, **script)  # type: ignore[arg-type]

    def prompt(self, at: int = -1) -> str:
        """A prompt the engine was given, as text."""
        return self.served.tokenizer.decode(self.engine.prompts[at])


@contextlib.contextmanager
def scripted_server(folder: Path, **options: object) -> Iterator[ScriptedServer]:
    """Run the API in a thread until the block ends."""
    engine = ScriptedEngine()
    serve_options = ServeOptions(model="scripted", **options)  # type: ignore[arg-type]
    served = Served.load(engine, serve_options, folder)
    listener = socket.create_server(("127.0.0.1", 0))
    config = http_config(served)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield ScriptedServer(url, engine, served)
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        listener.close()
