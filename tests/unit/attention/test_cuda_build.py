"""Compiling the CUDA kernels: what is said when that cannot be done, and what is covered."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from gnomon.engine.attention.cuda import attend, build, select
from gnomon.engine.attention.rows import Selection, SelectionRule
from gnomon.engine.cache.pools import build_pools
from gnomon.engine.layouts.geometry import LayerPages, geometry
from gnomon.engine.options import CacheFormat


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.load.cache_clear()
    yield tmp_path
    build.load.cache_clear()


def test_without_nvcc_the_alternative_is_named(empty_cache, monkeypatch):
    monkeypatch.setenv("PATH", str(empty_cache))
    monkeypatch.setattr(build, "_USUAL_PLACE", empty_cache / "nvcc")
    with pytest.raises(build.KernelBuildError, match=r'TritonBackend\(kernels="triton"\)'):
        build.load("select")


def test_a_source_that_does_not_compile_is_an_error_with_the_compilers_words(
    empty_cache, monkeypatch
):
    compiler = empty_cache / "nvcc"
    compiler.write_text(
        "#!/bin/sh\necho 'select.cu(1): error: expected a declaration' >&2\nexit 2\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{empty_cache}:{Path(shutil.which('sh') or '/bin/sh').parent}")
    with pytest.raises(build.KernelBuildError, match="expected a declaration"):
        build.load("select")
    assert not list(empty_cache.rglob("*.so")), "nothing half made stays in the cache"


INDEX_Q = torch.zeros(4, 4, 128, dtype=torch.float8_e4m3fn)
RULE = SelectionRule(16)


@pytest.mark.parametrize(
    ("fmt", "q", "widest", "rule", "covered"),
    [
        (CacheFormat.MXFP4, INDEX_Q, 1, RULE, True),
        (CacheFormat.MXFP4, INDEX_Q, 8, RULE, True),
        (CacheFormat.MXFP4, INDEX_Q, 9, RULE, False),
        (CacheFormat.NVFP4, INDEX_Q, 8, RULE, True),
        (CacheFormat.NVFP4, INDEX_Q, 9, RULE, False),
        (CacheFormat.FP8, INDEX_Q, 1, RULE, False),
        (CacheFormat.MXFP4, INDEX_Q.bfloat16(), 8, RULE, True),
        (CacheFormat.NVFP4, INDEX_Q.half(), 8, RULE, True),
        (CacheFormat.MXFP4, INDEX_Q.float(), 1, RULE, False),
        (CacheFormat.MXFP4, INDEX_Q, 1, SelectionRule(1), False),
        (CacheFormat.MXFP4, INDEX_Q, 1, SelectionRule(18), False),
    ],
    ids=lambda x: str(x)[:12],
)
def test_which_selections_the_kernel_covers(fmt, q, widest, rule, covered):
    page = geometry(fmt, 128, 128, "index")
    assert select.fits(page, q, widest, 32, rule) == covered


@pytest.mark.parametrize(
    ("fmt", "block", "dtype", "heads", "slots", "covered"),
    [
        (CacheFormat.MXFP4, 128, torch.bfloat16, 32, 16, True),
        (CacheFormat.NVFP4, 128, torch.bfloat16, 2, 128, True),
        (CacheFormat.NVFP4, 128, torch.bfloat16, 2, None, True),
        (CacheFormat.NVFP4, 128, torch.bfloat16, 2, 129, False),
        (CacheFormat.MXFP4, 128, torch.float32, 32, 16, False),
        (CacheFormat.MXFP4, 16, torch.bfloat16, 32, 16, False),
        (CacheFormat.MXFP4, 128, torch.bfloat16, 34, 16, False),
        (CacheFormat.FP8, 128, torch.bfloat16, 32, 16, False),
        (CacheFormat.BF16, 128, torch.bfloat16, 32, None, False),
    ],
)
def test_which_attention_the_kernel_covers(fmt, block, dtype, heads, slots, covered):
    key, value = (geometry(fmt, block, 128, role) for role in ("key", "value"))
    cache = build_pools([LayerPages(2, key, value, None)], 1).layers[0]
    selection = None if slots is None else Selection(torch.zeros(1, 2, slots, dtype=torch.int64))
    assert attend.fits(cache, torch.zeros(1, heads, 128, dtype=dtype), selection) == covered


def test_row_major_pages_are_not_covered():
    page = geometry(CacheFormat.MXFP4, 128, 128, "kv")
    cache = build_pools([LayerPages(2, page, page, None)], 1).layers[0]
    assert not attend.fits(cache, torch.zeros(1, 2, 128, dtype=torch.bfloat16), None)
