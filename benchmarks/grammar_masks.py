"""What grammars cost while decoding: mask time as a share of the steps, at a given batch.

``python -m benchmarks.grammar_masks --batch 8``. Every request of the batch has a grammar. The
time inside ``Constraints.mask`` (advancing the states, filling the masks, applying them) is
compared with the time of the whole decode steps that contain it. Both are CPU time of the thread
that runs the steps, with one thread for torch, so that a busy machine does not change the share.

``--vocabulary 200064`` measures the masks alone, over a synthetic vocabulary of that size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.vocabulary import synthetic_tokens
from gnomon.engine.grammar.compiler import GrammarCompiler
from gnomon.engine.grammar.limits import Limits
from gnomon.engine.grammar.reply import Calls, Function, Json, Start, reply_grammar
from gnomon.engine.llm import LLM
from gnomon.engine.options import EngineOptions
from gnomon.engine.runner.constraints import Constraints
from gnomon.engine.scheduler.request import Request, SamplingParams

BOOKING = {
    "type": "object",
    "properties": {
        "hotel": {"type": "string"},
        "nights": {"type": "integer", "minimum": 1, "maximum": 30},
        "date": {"type": "string", "format": "date"},
        "guests": {"type": "array", "items": {"type": "string"}},
        "room": {"enum": ["single", "double", "suite"]},
        "notes": {"type": "string", "maxLength": 400},
    },
    "required": ["hotel", "nights", "date", "guests", "room", "notes"],
}
PROMPT_TOKENS = 256


def grammars() -> dict[str, str]:
    """The grammars measured: what a request of each kind is ruled by."""
    function = Function("book", BOOKING, True, "tools[0]")
    endless, short = Limits(), Limits(text=64, items=4)
    return {
        "required strict call": reply_grammar(
            Start.CONTENT, Calls([function], True, False), None, endless
        ),
        "required strict call, short strings": reply_grammar(
            Start.CONTENT, Calls([function], True, False), None, short
        ),
        "auto with a strict tool": reply_grammar(
            Start.OPEN, Calls([function], False, False), None, endless
        ),
        "json_schema": reply_grammar(Start.CONTENT, None, Json(BOOKING, "x"), endless),
        "json_object": reply_grammar(Start.CONTENT, None, Json(None, "x"), endless),
    }


class TimedConstraints(Constraints):
    """Constraints that note how long each mask took."""

    seconds: list[float]

    def mask(self, logits: torch.Tensor, requests: Sequence[Request]) -> None:
        """As the parent, timed."""
        started = time.thread_time()
        super().mask(logits, requests)
        self.seconds.append(time.thread_time() - started)


def measure_alone(
    compiler: GrammarCompiler, source: str, batch: int, steps: int, size: int
) -> dict[str, Any]:
    """Masks without a model: replies are drawn evenly from what each grammar allows."""
    started = time.perf_counter()
    compiled = compiler.compile(source).result()
    compile_s = time.perf_counter() - started
    constraints = Constraints(compiler, [size - 1])
    generator = torch.Generator().manual_seed(0)
    requests: list[Request] = []
    masks: list[float] = []

    def add(at: int, name: str) -> None:
        request = Request(id=name, prompt_ids=(1,), sampling=SamplingParams())
        constraints.expect(request, source)
        constraints.ready(wait=True)
        requests[at : at + 1] = [request]

    for at in range(batch):
        add(at, f"{at}")
    for step in range(steps):
        logits = torch.rand(batch, size, generator=generator)
        started = time.thread_time()
        constraints.mask(logits, requests)
        masks.append(time.thread_time() - started)
        for at, token in enumerate(logits.argmax(dim=-1).tolist()):
            requests[at].output_ids.append(token)
            if token == size - 1:
                constraints.forget(requests[at].id)
                add(at, f"{at}-{step}")
    return {
        "batch": batch,
        "steps": steps,
        "vocabulary": size,
        "compile_s": round(compile_s, 3),
        "grammar_mib": round(compiled.memory_size_bytes / 2**20, 2),
        "mask_ms_median": round(statistics.median(masks) * 1e3, 3),
        "mask_ms_p99": round(sorted(masks)[int(0.99 * len(masks))] * 1e3, 3),
        "mask_ms_max": round(max(masks) * 1e3, 3),
    }


def measure(llm: LLM, source: str, batch: int, steps: int) -> dict[str, Any]:
    """Decode with every request under one grammar."""
    core = llm.core
    core.constraints.__class__ = TimedConstraints
    prompts = [[5 + (7 * at + n) % 1500 for n in range(PROMPT_TOKENS)] for at in range(batch)]

    def add(at: int, seed: int) -> None:
        params = SamplingParams(temperature=1.0, top_p=0.95, seed=seed, max_tokens=2000)
        core.add(f"{at}-{seed}", tuple(prompts[at]), params, source)

    for at in range(batch):
        add(at, 0)
    while core.compiling:
        core.start_compiled(wait=True)
    masks: list[float] = []
    totals: list[float] = []
    seed = 0
    while len(totals) < steps:
        core.constraints.seconds = []  # type: ignore[attr-defined]
        running = len(core.scheduler.running)
        started = time.thread_time()
        outputs = core.step()
        total = time.thread_time() - started
        if running == batch == len(outputs):  # a pure decode step
            totals.append(total)
            masks.append(sum(core.constraints.seconds))  # type: ignore[attr-defined]
        for output in outputs:
            if output.finish_reason is not None:
                seed += 1
                add(int(output.id.split("-")[0]), seed)
                core.start_compiled(wait=True)
    for request in [*core.scheduler.running, *core.scheduler.waiting]:
        core.abort(request.id)
    return {
        "batch": batch,
        "steps": steps,
        "step_ms_median": round(statistics.median(totals) * 1e3, 3),
        "mask_ms_median": round(statistics.median(masks) * 1e3, 3),
        "mask_ms_p99": round(sorted(masks)[int(0.99 * len(masks))] * 1e3, 3),
        "share_percent": round(100 * sum(masks) / sum(totals), 2),
        "distinct_seeds": seed + 1,
    }


def main() -> None:
    """Measure every grammar and print one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--vocabulary", type=int, help="measure masks alone, over so many tokens")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.vocabulary:
        size = arguments.vocabulary
        compiler = GrammarCompiler(lambda: synthetic_tokens(size), [size - 1])
        compiler.warm_up()
        compiler.compile('root ::= "a"').result()
        for name, source in grammars().items():
            found = measure_alone(compiler, source, arguments.batch, arguments.steps, size)
            print(json.dumps({"grammar": name, **found}), flush=True)
        return
    llm = LLM(EngineOptions(model=arguments.model, max_model_len=4096, max_num_seqs=16))
    for name, source in grammars().items():
        found = measure(llm, source, arguments.batch, arguments.steps)
        print(json.dumps({"grammar": name, **found, "threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()
