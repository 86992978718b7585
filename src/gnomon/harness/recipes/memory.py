"""The memory planner: does one longest request fit beside weights, draft and graphs?

Pure arithmetic over a `Serving` and the rule by which its engine sizes its pool, so a plan that
cannot fit is refused on a CPU, with its numbers, before anything is allocated. Two public failures
are its test cases: all ranks of MiniMax-M3 on H100 ran out of memory 96 MiB short in warm-up,
because a fraction of 0.95 was copied from a recipe without a draft (InferenceX #2423); and B200 at
TP 2 has a pool of 31.7 GiB where one request of 1,048,576 tokens needs 37.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gnomon.harness.recipes.model_spec import CacheShape
from gnomon.harness.recipes.place_spec import Parallelism
from gnomon.harness.recipes.quantities import GIB, gib, mib
from gnomon.harness.recipes.serving import Serving

PoolKind = Literal["budget", "static", "free", "explicit"]

_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "mxfp4": 17 / 32, "nvfp4": 18 / 32}
"""Bytes an element with its share of the scales: one byte for 32 elements in MXFP4, for 16 in
NVFP4."""


@dataclass(frozen=True)
class PoolRule:
    """How an engine decides the size of its cache pool.

    Attributes:
        kind: ``budget``: a fraction of the device holds weights, profiled memory and pool;
            ``static``: a fraction holds weights and pool, the rest everything else; ``free``: a
            fraction of what is free after loading; ``explicit``: a number of bytes.
        fraction: of the device, or of what is free.
        margin: further fraction of the device that the engine keeps back.
        explicit: bytes, for ``explicit``.
        offloaded_weights: bytes of weights each rank keeps in host memory.
        scale_bytes: of each token, layer and head, beside fp8 keys and beside fp8 values.
        default_index: layout of index keys the engine keeps where the recipe names none.
        default_draft: layout of the draft's pool where the recipe names none.
    """

    kind: PoolKind
    fraction: float = 0.0
    margin: float = 0.0
    explicit: int = 0
    offloaded_weights: int = 0
    scale_bytes: int = 0
    default_index: str | None = None
    default_draft: str | None = None


@dataclass(frozen=True)
class MemoryNeed:
    """Device memory of one rank, in bytes.

    Attributes:
        device: of the accelerator.
        weights: of the target.
        draft: of the head.
        profiled: activations, workspaces and graphs the engine measures.
        outside: what it does not measure.
        outside_room: what the rule leaves for ``outside``.
        pool: for caches.
        token: one token in all caches.
        longest: one request of ``longest_tokens``.
        longest_tokens: most tokens of a request.
    """

    device: int
    weights: int
    draft: int
    profiled: int
    outside: int
    outside_room: int
    pool: int
    token: float
    longest: int
    longest_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens the pool holds."""
        return int(self.pool / self.token) if self.token and self.pool > 0 else 0


@dataclass(frozen=True)
class MemoryVerdict:
    """What the planner says of one serving.

    Attributes:
        state: ``fits``, ``refused``, or ``unpriced`` where a fact is not public.
        reasons: why it is not ``fits``, with numbers.
        need: the numbers, None where they could not be had.
    """

    state: Literal["fits", "refused", "unpriced"]
    reasons: tuple[str, ...] = ()
    need: MemoryNeed | None = None


def token_bytes(
    shape: CacheShape, ranks: Parallelism, layout: str, index_layout: str, scale_bytes: int = 0
) -> float:
    """Bytes that one token takes in the caches of one rank.

    Args:
        shape: of the caches before sharding.
        ranks: parallelism of the replica; heads are split over tp down to one, layers over pp,
            tokens over dcp; with ``dp_attention`` a rank keeps every head.
        layout: of keys and values.
        index_layout: of index keys.
        scale_bytes: beside each key and each value of an fp8 cache.
    """
    split = 1 if ranks.dp_attention else ranks.tp
    heads = max(1, -(-shape.kv_heads // split))
    scales = scale_bytes if layout == "fp8" else 0
    keys_and_values = shape.layers * heads * 2 * (shape.head_dim * _BYTES[layout] + scales)
    index = shape.index_layers * shape.index_dim * _BYTES[index_layout]
    return (keys_and_values + index) / ranks.pp / ranks.dcp


def request_bytes(shape: CacheShape, token: float, tokens: int) -> int:
    """Bytes of one request in one pool, at most its window."""
    kept = tokens if shape.window is None else min(tokens, shape.window)
    return int(token * kept)


def plan_memory(serving: Serving, rule: PoolRule, concurrency: int) -> MemoryVerdict:
    """Price one rank of a deployment and compare it with the device.

    Of a disaggregated deployment every kind of worker is priced and the first that does not fit
    decides.

    Args:
        serving: the deployment.
        rule: of its engine.
        concurrency: sessions alive at once.
    """
    shape = serving.topology
    replicas: tuple[tuple[str, Parallelism], ...] = (("", shape),)
    if shape.prefill is not None and shape.decode is not None:
        replicas = (("prefill workers: ", shape.prefill),)
        if shape.decode.workers:
            replicas += (("decode workers: ", shape.decode),)
    verdicts = [_plan_replica(serving, rule, replica, where) for where, replica in replicas]
    for state in ("refused", "unpriced"):
        for verdict in verdicts:
            if verdict.state == state:
                return verdict
    return verdicts[-1]


def _plan_replica(
    serving: Serving, rule: PoolRule, ranks: Parallelism, where: str
) -> MemoryVerdict:
    model, drafted, device = serving.model, serving.drafted, serving.hardware.gpu_memory
    unknown = [
        name
        for name, value in {
            "model.checkpoint_bytes": model.checkpoint_bytes,
            "model.cache": model.cache,
            "speculation.draft.checkpoint_bytes": drafted.draft.checkpoint_bytes if drafted else 0,
            "speculation.draft.cache": drafted.draft.cache if drafted else 0,
            "hardware.gpu_memory": device or "unknown",
            "model.context": serving.longest_request or "unknown",
        }.items()
        if value == "unknown"
    ]
    if unknown:
        reason = f"{where}cannot be priced: {', '.join(unknown)} unknown"
        return MemoryVerdict("unpriced", (reason,))
    assert isinstance(model.checkpoint_bytes, int)
    assert isinstance(model.cache, CacheShape)
    longest_tokens = serving.longest_request or 0
    # Experts are spread over every rank of the replica, whether by tensor or by expert.
    weights = max(0, model.checkpoint_bytes // (ranks.tp * ranks.pp) - rule.offloaded_weights)
    index = serving.index_layout
    if serving.kv.index_layout is None and rule.default_index is not None:
        index = rule.default_index
    token = token_bytes(model.cache, ranks, serving.kv_layout, index, rule.scale_bytes)
    longest = request_bytes(model.cache, token, longest_tokens)
    draft = 0
    outside = serving.engine.reserve.outside_budget
    if drafted is not None:
        assert isinstance(drafted.draft.checkpoint_bytes, int)
        assert isinstance(drafted.draft.cache, CacheShape)
        draft = drafted.draft.checkpoint_bytes // ranks.tp
        layout = _draft_layout(serving, rule)
        own = token_bytes(drafted.draft.cache, ranks, layout, layout, rule.scale_bytes)
        token += own
        longest += request_bytes(drafted.draft.cache, own, longest_tokens)
        outside += drafted.draft.outside_budget
    profiled = serving.engine.reserve.profiled
    pool, room = _pool(rule, device, weights + draft, profiled)
    need = MemoryNeed(
        device, weights, draft, profiled, outside, room, pool, token, longest, longest_tokens
    )
    reasons = tuple(where + reason for reason in _reasons(need))
    return MemoryVerdict("refused" if reasons else "fits", reasons, need)


def _draft_layout(serving: Serving, rule: PoolRule) -> str:
    if serving.kv.draft_layout is not None and serving.kv.draft_layout.value != "auto":
        return serving.kv.draft_layout.value
    return rule.default_draft or serving.kv_layout


def _pool(rule: PoolRule, device: int, loaded: int, profiled: int) -> tuple[int, int]:
    """Bytes of the pool, and bytes left for what the engine does not measure."""
    if rule.kind == "explicit":
        return rule.explicit, device - loaded - profiled - rule.explicit
    budget = int(device * rule.fraction)
    if rule.kind == "static":
        return budget - loaded, device - budget - profiled
    if rule.kind == "free":
        free = device - loaded - profiled
        pool = int(free * rule.fraction)
        return pool, free - pool
    kept_back = int(device * rule.margin)
    return budget - kept_back - loaded - profiled, device - budget


def _reasons(need: MemoryNeed) -> list[str]:
    reasons = []
    parts = f"weights {gib(need.weights)}"
    if need.draft:
        parts += f", draft {gib(need.draft)}"
    parts += f", activations and graphs {gib(need.profiled)}"
    if need.pool <= 0:
        reasons.append(
            f"nothing is left for caches on a device of {gib(need.device)}: {parts}; use more "
            "accelerators, a smaller precision, or weights in host memory"
        )
    elif need.pool < need.longest:
        reasons.append(
            f"the pool holds {gib(need.pool)}, but one request of {need.longest_tokens:,} tokens "
            f"needs {gib(need.longest)} ({parts} of {gib(need.device)}); use more accelerators, a "
            "smaller cache layout, or a lower limits.max_model_len"
        )
    if need.outside > need.outside_room:
        short = need.outside - need.outside_room
        reasons.append(
            f"{mib(short)} short beside the engine's budget: it leaves {mib(need.outside_room)}, "
            f"contexts, communication and draft take {mib(need.outside)}; lower the fraction of "
            "the device that the engine may use"
        )
    return reasons


def summary(verdict: MemoryVerdict) -> str:
    """One line for a plan: the pool, and how many longest requests it holds."""
    if verdict.need is None or verdict.state != "fits":
        return "; ".join(verdict.reasons)
    need = verdict.need
    return (
        f"pool {need.pool / GIB:.1f} GiB, {need.tokens:,} tokens, "
        f"{need.pool / max(1, need.longest):.2f} requests of {need.longest_tokens:,} tokens"
    )
