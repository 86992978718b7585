"""Running out of memory at startup, told as a sentence with the plan's numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gnomon.engine.device import DeviceFacts
from gnomon.engine.errors import OutOfMemory
from gnomon.engine.memory import MemoryPlan
from gnomon.engine.rules import memory_words

_CPU_ALLOCATOR = "DefaultCPUAllocator"  # torch has no exception class for this on a CPU


@contextmanager
def memory_told(doing: str, plan: MemoryPlan, device: DeviceFacts) -> Iterator[None]:
    """Turn a failed allocation into :class:`OutOfMemory`.

    Args:
        doing: what was going on, e.g. "loading the weights".
        plan: what the engine meant to allocate.
        device: where.

    Raises:
        OutOfMemory: the block ran out of memory.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise _told(doing, plan, device, error) from error
    except RuntimeError as error:
        if _CPU_ALLOCATOR not in str(error):
            raise
        raise _told(doing, plan, device, error) from error


def _told(doing: str, plan: MemoryPlan, device: DeviceFacts, error: BaseException) -> OutOfMemory:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    pools = "--kv-cache-memory-bytes"
    if device.kind != "cpu":
        pools = f"--gpu-memory-utilization or {pools}"
    return OutOfMemory(
        f"memory ran out while {doing} on {device.name}, which has {device.memory_bytes:,} bytes; "
        f"the plan was {memory_words(plan)} bytes a rank. Lower {pools} or "
        f"--max-num-batched-tokens, quantise the weights, or end other processes. ({reason})"
    )
