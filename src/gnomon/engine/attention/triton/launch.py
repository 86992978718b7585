"""Where kernels run, and what that decides at compile time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl


@dataclass(frozen=True)
class Arithmetic:
    """The device of a launch.

    Attributes:
        interpreted: kernels run in Triton's interpreter on a CPU. Its bf16 products are wrong
            (they multiply bit patterns), so products are fp32 there.
        multiprocessors: of the device; 1 in the interpreter.
    """

    interpreted: bool
    multiprocessors: int

    def product(self, dtype: torch.dtype) -> tl.dtype:
        """Operand dtype of tensor-core products for queries of ``dtype``; sums are fp32."""
        if self.interpreted or dtype == torch.float32:
            return tl.float32
        return tl.bfloat16

    def pick(self, *, interpreter: int, device: int) -> int:
        """A tile size: few, wide programs for the interpreter; what suits the device there."""
        return interpreter if self.interpreted else device


def power_of_2(n: int) -> int:
    """Smallest power of two not below n, n >= 1."""
    return 1 << (n - 1).bit_length()
