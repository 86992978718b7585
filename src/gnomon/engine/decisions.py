"""Combinations of caches, model and machine that one could ask for, each with our decision.

The list is that of ROCm/ATOM #2962, which introduced 4-bit caches for MiniMax-M3.1 and refuses most
of these; here few are refused, because a page is described by its layout alone. The table in the
documentation is made from :data:`DECISIONS`, and a test puts every row to the rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["runs", "planned only", "refused", "no such option"]


@dataclass(frozen=True)
class Decision:
    """One combination.

    Attributes:
        combination: what is asked.
        outcome: it runs; a plan prices it and no server runs it; a rule or the config reader
            refuses it; or nothing asks for it.
        code: of the rule that refuses it, "model" for the config reader.
        why: the reason, for the documentation.
    """

    combination: str
    outcome: Outcome
    why: str
    code: str = ""


DECISIONS: tuple[Decision, ...] = (
    Decision(
        "K and V bf16 or fp8; index keys left out, bf16 or fp8",
        "runs",
        "Index keys left out follow K and V.",
    ),
    Decision(
        "K and V bf16 or fp8; index keys 4-bit",
        "runs",
        "Each field has a layout of its own.",
    ),
    Decision("K, V and index keys 4-bit", "runs", "MXFP4 and NVFP4 alike."),
    Decision("K and V 4-bit; index keys left out", "runs", "They follow K and V."),
    Decision(
        "K and V 4-bit; index keys bf16 or fp8",
        "runs",
        "Attention reads the pages that selection names, whatever index keys are kept in.",
    ),
    Decision("NVFP4 caches", "runs", "The format that M3.1's caches were trained with."),
    Decision(
        "4-bit caches inside another engine, as its plugin",
        "no such option",
        "Gnomon is a server of its own.",
    ),
    Decision(
        "any caches with a block size other than the model's sparse block",
        "refused",
        "A page is a sparse block is a scheduler block.",
        "block-size",
    ),
    Decision(
        "4-bit caches on a device without 4-bit arithmetic",
        "runs",
        "Pages are unpacked as they are read; no device is asked for 4-bit products.",
    ),
    Decision(
        "4-bit K and V for a model with dense attention layers",
        "runs",
        "Layouts are per layer; a dense layer has no index page and the same K and V pages.",
    ),
    Decision(
        "4-bit K and V with activations in float32",
        "runs",
        "Values are rounded to bf16 before they are quantised, whatever computed them.",
    ),
    Decision(
        "4-bit K and V with pages in host memory",
        "runs",
        "The host tier moves pages as opaque bytes, scales and index key included.",
    ),
    Decision(
        "4-bit K and V handed to another server (prefill and decode apart)",
        "no such option",
        "There is no transfer between servers, for any cache.",
    ),
    Decision(
        "4-bit K and V with a draft in the target's pool (MTP)",
        "no such option",
        "Built-in drafts of a checkpoint are skipped, and the log says so.",
    ),
    Decision(
        "4-bit K and V with a draft that has a pool of its own",
        "planned only",
        "bf16 pages, as many as the draft's window touches (`gnomon plan --draft`).",
    ),
    Decision(
        "decode context parallelism",
        "refused",
        "A rank reads whole contexts; merging parts of one is not implemented.",
        "context-parallel",
    ),
    Decision(
        "prefill context parallelism",
        "refused",
        "A rank computes all rows of a prompt.",
        "context-parallel",
    ),
    Decision(
        "sequence parallelism (Ulysses)",
        "refused",
        "Ranks divide heads, never rows.",
        "context-parallel",
    ),
    Decision(
        "index context parallelism",
        "refused",
        "Every rank keeps all index keys of its context.",
        "context-parallel",
    ),
    Decision(
        "no forced local block",
        "refused",
        "A row must see its own block, also when its scores are not finite.",
        "no-local-block",
    ),
    Decision(
        "any caches for a model of another family",
        "refused",
        "The config reader knows the MiniMax-M3 family only.",
        "model",
    ),
    Decision(
        "a draft with two-batch overlap",
        "no such option",
        "Steps mix decode rows and prefill chunks instead of overlapping two batches.",
    ),
    Decision(
        "a draft at tensor parallel 2",
        "planned only",
        "The draft's KV heads are divided like the target's.",
    ),
    Decision(
        "index queries in fp8 without 4-bit index keys",
        "no such option",
        "A backend chooses the precision of its products; the reference keeps fp32.",
    ),
)
"""In the order of the documentation."""
