"""Where the bytes of a token lie inside its row of a page.

``ROW_MAJOR`` is element order. ``OPERAND`` is for 4-bit index keys, which a scoring kernel only
ever multiplies: the sixteen bytes that one thread loads are exactly its share of a Hopper ``wgmma``
operand (the e4m3 A fragment of m64nNk32, held in registers), so that keys go from the load through
a few masks and shifts into the product, and never through shared memory.

Two things differ from row-major, both inside a token's row of dim / 2 bytes:

* **words**: the 4-byte word t (0 to 3) of the 32-element group s moves from word ``4 s + t`` to
  word ``(dim / 32) t + s``: thread t of four then finds its words of all groups side by side;
* **bits**: a byte with the even element's code ``a`` and the odd one's ``b`` (sign, then three
  bits of magnitude m2 m1 m0) is stored as ``a3 b2 b3 a2 a1 a0 b1 b0``. With the other bits masked
  off, a is an e4m3 number, 2^-6 times the element; b is one after a shift by two (sign, m1, m0)
  and one back (m2).
"""

from __future__ import annotations

import torch

ROW_MAJOR = "row_major"
OPERAND = "operand"


def arrange(row_major: torch.Tensor) -> torch.Tensor:
    """Row-major code bytes uint8 [..., dim / 2] in operand order; dim a multiple of 32."""
    groups = row_major.shape[-1] // 16
    words = row_major.reshape(*row_major.shape[:-1], groups, 4, 4).transpose(-3, -2).flatten(-3)
    a, b = words & 0xF, words >> 4
    return ((a & 8) << 4) | ((a & 7) << 2) | ((b & 8) << 2) | ((b & 4) << 4) | (b & 3)


def restore(arranged: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`arrange`."""
    groups = arranged.shape[-1] // 16
    words = arranged.reshape(*arranged.shape[:-1], 4, groups, 4).transpose(-3, -2).flatten(-3)
    a = ((words >> 4) & 8) | ((words >> 2) & 7)
    b = ((words >> 2) & 8) | ((words >> 4) & 4) | (words & 3)
    return a | (b << 4)
