"""What is really served, read from the objects that serve it rather than from what was asked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from gnomon.engine.cache.host_pages import HostPages
from gnomon.engine.cache.pools import PagePools
from gnomon.engine.device import DeviceFacts
from gnomon.engine.layouts.geometry import PageGeometry
from gnomon.engine.models.config import ModelConfig
from gnomon.engine.options import EngineOptions
from gnomon.engine.runner.messages import EngineFacts


def gather_facts(
    *,
    config: ModelConfig,
    options: EngineOptions,
    device: DeviceFacts,
    pools: PagePools,
    max_model_len: int,
    fingerprint: str,
    weights: dict[str, str],
    host: HostPages | None,
    compute_dtype: str,
    backend: str,
) -> EngineFacts:
    """Facts for attestation; formats and sizes come from the allocated pools."""
    index_formats = {g.format.value for g in _index_geometries(pools)}
    return EngineFacts(
        model=options.model,
        model_fingerprint=fingerprint,
        weights=weights,
        host_cache_bytes=0 if host is None else host.nbytes,
        host_cache_mode="none" if host is None else options.host_cache_mode.value,
        architecture=config.architecture,
        compute_dtype=compute_dtype,
        device=f"{device.kind} ({device.name})",
        backend=backend,
        kv_cache_dtype="+".join(sorted({g.format.value for g in _kv_geometries(pools)})),
        index_cache_dtype="+".join(sorted(index_formats)) or "none",
        layouts={g.name: g.page_bytes for g in (*_kv_geometries(pools), *_index_geometries(pools))},
        block_size=config.block_size,
        block_bytes=pools.block_bytes,
        num_blocks=pools.num_blocks,
        max_model_len=max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        enable_prefix_caching=options.enable_prefix_caching,
        selection_reuse=config.reuses_selection,
        topk_blocks=config.topk_blocks,
        seed=options.seed,
    )


def cache_salt(facts: EngineFacts, pools: PagePools) -> str:
    """Identity of everything the bytes in a block depend on besides the tokens.

    The model, the dtype it computes in, the backend, the layout of every layer and the selection
    reuse: two engines may share a block's bytes only if all of them agree.
    """
    layers = [
        [layer.pages.k.name, layer.pages.v.name, layer.pages.index and layer.pages.index.name]
        for layer in pools.layers
    ]
    identity = (
        facts.model_fingerprint,
        sorted(facts.weights.items()),
        facts.compute_dtype,
        facts.backend,
        facts.block_size,
        facts.selection_reuse,
        layers,
    )
    return hashlib.sha256(repr(identity).encode()).hexdigest()


def _kv_geometries(pools: PagePools) -> Iterator[PageGeometry]:
    for layer in pools.layers:
        yield layer.pages.k
        yield layer.pages.v


def _index_geometries(pools: PagePools) -> Iterator[PageGeometry]:
    for layer in pools.layers:
        if layer.pages.index is not None:
            yield layer.pages.index
