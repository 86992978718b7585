"""The rows of ``gnomon plan``: a plan and its alternatives as text. Pure."""

from __future__ import annotations

from gnomon.engine.memory import SESSION_TOKENS, MemoryPlan
from gnomon.engine.options import CacheFormat
from gnomon.engine.startup import Startup

LAYOUT_HEADINGS = (
    "Caches",
    "Block, bytes a rank",
    "Blocks",
    "Tokens",
    "Longest context",
    f"{SESSION_TOKENS // 1024}k sessions",
    "Against fp8",
)

_NAMES = {
    CacheFormat.BF16: "bf16",
    CacheFormat.FP8: "fp8",
    CacheFormat.MXFP4: "MXFP4",
    CacheFormat.NVFP4: "NVFP4",
}


def layout_rows(plans: dict[CacheFormat, MemoryPlan]) -> list[tuple[str, ...]]:
    """One row a cache layout, under :data:`LAYOUT_HEADINGS`."""
    fp8 = plans[CacheFormat.FP8].num_blocks
    return [
        (
            _NAMES[fmt],
            "cannot store this model" if plan.layout_problems else f"{plan.block_bytes:,}",
            f"{plan.num_blocks:,}",
            f"{plan.tokens:,}",
            f"{plan.longest_context:,}",
            f"{plan.sessions:,}",
            f"{plan.num_blocks / fp8:.2f}" if fp8 else "",
        )
        for fmt, plan in plans.items()
    ]


def layout_markdown(plans: dict[CacheFormat, MemoryPlan]) -> str:
    """The same as a Markdown table."""
    lines = [LAYOUT_HEADINGS, ("---", *("---:" for _ in LAYOUT_HEADINGS[1:])), *layout_rows(plans)]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def memory_rows(startup: Startup, replicas: int = 1) -> list[tuple[str, str]]:
    """What a rank's memory goes to, and what fits; (what, how much) in order."""
    plan, device = startup.plan, startup.device
    rows = [("device", f"{device.kind} ({device.name})")]
    if device.kind != "cpu":
        rows += [
            ("tensor parallel", f"{plan.ranks}" + (f", {replicas} times" if replicas > 1 else "")),
            ("memory of a rank", f"{min(b.usable_bytes for b in plan.budgets):,} bytes"),
        ]
    rows.append(("weights", f"{plan.weight_bytes:,} bytes"))
    for what, size in (
        ("draft", plan.draft_bytes),
        ("workspace", plan.workspace_bytes),
        ("graphs", plan.graph_bytes),
    ):
        if size:
            rows.append((what, f"{size:,} bytes"))
    rows += [
        ("block", f"{plan.block_bytes:,} bytes"),
        (f"blocks, limited by {plan.limited_by}", f"{plan.num_blocks:,}"),
        ("cache pools", f"{plan.pool_bytes:,} bytes"),
    ]
    if len({budget.num_blocks for budget in plan.budgets}) > 1:
        rows += [(f"blocks that fit {b.device}", f"{b.num_blocks:,}") for b in plan.budgets]
    if plan.host_bytes:
        rows.append(("blocks in host memory", f"{plan.host_blocks:,} in {plan.host_bytes:,} bytes"))
    return [
        *rows,
        ("tokens in the cache", f"{plan.tokens:,}"),
        ("longest request", f"{plan.max_model_len:,} tokens"),
        ("longest requests that fit at once", f"{plan.requests_at_max_len:,}"),
        (f"{SESSION_TOKENS // 1024}k sessions that fit at once", f"{plan.sessions:,}"),
    ]
