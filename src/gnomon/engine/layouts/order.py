"""Where the bytes of a token lie inside a page of 4-bit elements.

``ROW_MAJOR`` is element order. The others make the sixteen bytes that one thread loads exactly its
share of a Hopper ``wgmma`` A operand, which may come from registers: codes go from the load through
a few masks and shifts into the product, and never through shared memory.

``OPERAND``, for keys (of attention and of the index): tokens are the rows of an e4m3 product. A
byte with the even element's code ``a`` and the odd one's ``b`` (sign, then three bits of magnitude
m2 m1 m0) is stored as ``a3 b2 b3 a2 a1 a0 b1 b0``. With the other bits masked off, a is an e4m3
number, 2^-6 times the element; b is one after a shift by two (sign, m1, m0) and one back (m2). A
token keeps its row of dim / 2 bytes; the 4-byte word t (0 to 3) of the 32-element group s moves
from word ``4 s + t`` to word ``(dim / 32) t + s``, so that thread t of four finds its words of all
groups side by side.

``VALUE``, for values: dims are the rows of an fp16 product, which adds up over tokens. A byte holds
elements d (code ``a``; d div 8 even) and d + 8 (``b``) of a token as ``a3 b2 b1 b0 a2 a1 a0 b3``:
masked, a is the upper byte of an fp16 number, 2^-14 times the element; b is after a shift by three
(magnitude) and one by seven (sign). A word has four tokens, so that no byte belongs to two. With
token ``16 k + 8 h + 2 t + o`` and dim ``32 w + 16 i + g`` (g below 8), and T tokens a page, the
byte lies at ``16 T w + 512 (k div 2) + 64 g + 16 t + 8 (k mod 2) + 4 i + 2 o + h``, and the scale
of group s at ``T s + (T / 4) t + 4 k + 2 h + o`` of its region.
"""

from __future__ import annotations

import functools

import torch

ROW_MAJOR = "row_major"
OPERAND = "operand"
VALUE = "value"


def arrange(row_major: torch.Tensor) -> torch.Tensor:
    """Row-major code bytes uint8 [..., dim / 2] in operand order; dim a multiple of 32."""
    groups = row_major.shape[-1] // 16
    words = row_major.reshape(*row_major.shape[:-1], groups, 4, 4).transpose(-3, -2).flatten(-3)
    return _join(words & 0xF, words >> 4)


def restore(arranged: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`arrange`."""
    groups = arranged.shape[-1] // 16
    words = arranged.reshape(*arranged.shape[:-1], 4, groups, 4).transpose(-3, -2).flatten(-3)
    a, b = _split(words)
    return a | (b << 4)


def arrange_values(row_major: torch.Tensor) -> torch.Tensor:
    """Row-major code bytes uint8 [..., dim / 2] as the bytes of value order, not yet placed."""
    codes = torch.stack((row_major & 0xF, row_major >> 4), dim=-1)
    halves = codes.reshape(*row_major.shape[:-1], row_major.shape[-1] // 8, 2, 8)
    a, b = halves[..., 0, :], halves[..., 1, :]
    byte = ((a & 8) << 4) | ((a & 7) << 1) | ((b & 7) << 4) | (b >> 3)
    return byte.flatten(-2)


def restore_values(arranged: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`arrange_values`."""
    byte = arranged.reshape(*arranged.shape[:-1], arranged.shape[-1] // 8, 8)
    a = ((byte >> 4) & 8) | ((byte >> 1) & 7)
    b = ((byte & 1) << 3) | ((byte >> 4) & 7)
    codes = torch.stack((a, b), dim=-2).flatten(-3)
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


@functools.cache
def value_code_places(tokens: int, code_bytes: int, device: torch.device) -> torch.Tensor:
    """Where byte j of token t lies in the data region in value order: int64 [tokens, code_bytes].

    ``tokens`` and the dim, twice ``code_bytes``, are multiples of 32.
    """
    k, h, t, o = _token_parts(tokens, device)
    byte = torch.arange(code_bytes, device=device)
    w, i, g = byte // 16, byte // 8 % 2, byte % 8
    of_token = 512 * (k // 2) + 8 * (k % 2) + 16 * t + 2 * o + h
    return of_token[:, None] + 16 * tokens * w + 4 * i + 64 * g


@functools.cache
def value_scale_places(tokens: int, scale_bytes: int, device: torch.device) -> torch.Tensor:
    """The same for the scales: int64 [tokens, scale_bytes]."""
    k, h, t, o = _token_parts(tokens, device)
    of_token = tokens // 4 * t + 4 * k + 2 * h + o
    return of_token[:, None] + tokens * torch.arange(scale_bytes, device=device)


def _token_parts(tokens: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """k, h, t and o of every token 16 k + 8 h + 2 t + o."""
    token = torch.arange(tokens, device=device)
    return token // 16, token // 8 % 2, token // 2 % 4, token % 2


def _join(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Two codes as the byte that holds them."""
    return ((a & 8) << 4) | ((a & 7) << 2) | ((b & 8) << 2) | ((b & 4) << 4) | (b & 3)


def _split(byte: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The inverse of :func:`_join`."""
    a = ((byte >> 4) & 8) | ((byte >> 2) & 7)
    b = ((byte >> 2) & 8) | ((byte >> 4) & 4) | (byte & 3)
    return a, b
