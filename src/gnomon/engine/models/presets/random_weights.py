"""Random weights that behave: varied text, and no parameter whose misuse would not show."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from gnomon.engine.models.config import ModelConfig
from gnomon.engine.models.tensors import Shape, tensor_shapes

_LOGIT_STD = 2.5  # a temperature of 1 then gives varied text, and greedy text does not collapse


def random_weights(config: ModelConfig, seed: int) -> dict[str, torch.Tensor]:
    """All tensors of the model by name (no prefix), bfloat16, the router float32.

    Each tensor has its own stream, seeded by ``seed`` and its name, so that adding a tensor
    changes no other. Norm weights and the router bias are far from zero: a norm that forgets the
    +1 or a router that drops the bias changes the output.
    """
    return {
        name: _tensor(name, shape, config, seed) for name, shape in tensor_shapes(config).items()
    }


def _tensor(name: str, shape: Shape, config: ModelConfig, seed: int) -> torch.Tensor:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    stream = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
    values = stream.standard_normal(shape, dtype=np.float32) * np.float32(_std(name, shape))
    is_router = name.endswith(("e_score_correction_bias", "block_sparse_moe.gate.weight"))
    return torch.from_numpy(values).to(torch.float32 if is_router else torch.bfloat16)


def _std(name: str, shape: Shape) -> float:
    if "norm" in name:
        return 0.2
    if name.endswith("e_score_correction_bias"):
        return 0.1
    if "embed_tokens" in name:
        return 1.0
    fan_in = float(shape[-1])
    return (_LOGIT_STD if name.startswith("lm_head") else 1.0) / fan_in**0.5
