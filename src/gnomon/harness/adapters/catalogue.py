"""Every engine the harness knows."""

from __future__ import annotations

from gnomon.harness.adapters.atom import AtomAdapter
from gnomon.harness.adapters.dynamo import DynamoAdapter
from gnomon.harness.adapters.gnomon import GnomonAdapter
from gnomon.harness.adapters.protocol import EngineAdapter
from gnomon.harness.adapters.sglang import SglangAdapter
from gnomon.harness.adapters.trtllm import TrtllmAdapter
from gnomon.harness.adapters.vllm import VllmAdapter

ADAPTERS: dict[str, EngineAdapter] = {
    adapter.name: adapter
    for adapter in (
        *(GnomonAdapter(), VllmAdapter(), SglangAdapter()),
        *(TrtllmAdapter(), AtomAdapter(), DynamoAdapter()),
    )
}
