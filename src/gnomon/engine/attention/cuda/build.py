"""Compile the CUDA C++ kernels at first use, and remember the result by source and architecture."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import platformdirs

from gnomon.engine.errors import EngineError

_USUAL_PLACE = Path("/usr/local/cuda/bin/nvcc")
#: wgmma and the bulk copies are Hopper's own: there is no other architecture to build for.
ARCHITECTURE = "sm_90a"
_FLAGS = (
    "-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-shared", "-Xcompiler", "-fPIC",
)  # fmt: skip


class KernelBuildError(EngineError):
    """The CUDA kernels cannot be compiled here."""


@functools.cache
def load(name: str) -> ctypes.CDLL:
    """The shared library of ``<name>.cu`` beside this file, compiled if it is not in the cache.

    Raises:
        KernelBuildError: there is no nvcc, or it failed.
    """
    source = Path(__file__).with_name(f"{name}.cu")
    texts = [file.read_text() for file in (source, *sorted(source.parent.glob("*.cuh")))]
    key = hashlib.sha256("\0".join((*texts, *_FLAGS)).encode()).hexdigest()[:16]
    folder = Path(platformdirs.user_cache_dir("gnomon")) / "kernels"
    library = folder / f"{name}-{ARCHITECTURE}-{key}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _compile(source, library)
    return ctypes.CDLL(str(library))


def _compile(source: Path, library: Path) -> None:
    """Compile ``source`` and put the result at ``library`` in one step."""
    nvcc = shutil.which("nvcc") or str(_USUAL_PLACE)
    if not Path(nvcc).exists():
        raise KernelBuildError(
            f"the CUDA kernel {source.name} has to be compiled, and there is no nvcc on the PATH "
            "or in /usr/local/cuda/bin; install the CUDA toolkit, or use the Triton kernels "
            '(TritonBackend(kernels="triton"))'
        )
    handle, temporary = tempfile.mkstemp(suffix=".so", dir=library.parent)
    os.close(handle)
    done = subprocess.run(
        [nvcc, *_FLAGS, "-o", temporary, str(source)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        Path(temporary).unlink()
        raise KernelBuildError(f"nvcc could not compile {source}:\n{done.stderr.strip()}")
    Path(temporary).replace(library)
