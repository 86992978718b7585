"""From a page geometry to the layout that fills it."""

from __future__ import annotations

from gnomon.engine.layouts.base import CacheLayout
from gnomon.engine.layouts.fp8 import Fp8TokenLayout, Fp8UnitLayout
from gnomon.engine.layouts.geometry import PageGeometry
from gnomon.engine.layouts.mxfp4 import Mxfp4Layout
from gnomon.engine.layouts.nvfp4 import Nvfp4Layout
from gnomon.engine.layouts.plain import Bf16Layout, Fp32Layout
from gnomon.engine.options import CacheFormat

_LAYOUTS: dict[tuple[CacheFormat, int], type[CacheLayout]] = {
    (CacheFormat.FP32, 1): Fp32Layout,
    (CacheFormat.BF16, 1): Bf16Layout,
    (CacheFormat.FP8, 1): Fp8UnitLayout,
    (CacheFormat.FP8, 2): Fp8TokenLayout,
    (CacheFormat.MXFP4, 2): Mxfp4Layout,
    (CacheFormat.NVFP4, 2): Nvfp4Layout,
}


def layout_for(geometry: PageGeometry) -> CacheLayout:
    """The layout of a geometry; format and number of regions decide."""
    return _LAYOUTS[geometry.format, len(geometry.regions)](geometry)
