"""Every case by the name it is chosen by."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.kernels import decode, prefill
from benchmarks.kernels.layer import layer
from benchmarks.kernels.measured import Measured
from benchmarks.kernels.project import project
from benchmarks.kernels.step import step
from gnomon.engine.attention.triton.backend import TritonBackend

CASES: dict[str, Callable[[TritonBackend], Iterator[Measured]]] = {
    "select": decode.select,
    "width": decode.table_width,
    "sparse": decode.sparse,
    "dense": decode.dense,
    "write": project,
    "prefill-select": prefill.select,
    "prefill-sparse": prefill.sparse,
    "step": step,
    "layer": layer,
}
