"""Signs of life of a core process, in a small file that both processes map.

A thread of the core writes the time every now and then, whatever the core's main thread computes:
a long step on a CPU is no silence, while a process that is stopped, swapped out or frozen is one.
The main thread writes when a step begins and ends, so that a step that never ends is noticed too.
The clock is the machine's monotonic one, the same in both processes.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_FORM = struct.Struct("=dd")  # last beat; begin of the step that runs, 0 if none does
_BEAT_S = 0.2


@dataclass(frozen=True)
class PulseLimits:
    """When a core is taken to hang.

    Attributes:
        silence_s: without a beat.
        step_s: in one step.
    """

    silence_s: float
    step_s: float

    def problem(self, now: float, beat: float, step: float) -> str | None:
        """What is wrong, None if nothing is; all three by the monotonic clock, ``step`` 0 for none.

        A core that is silent says nothing about its step.
        """
        if now - beat > self.silence_s:
            return f"the engine core has given no sign of life for {self.silence_s:g} s"
        if step and now - step > self.step_s:
            return f"a step of the engine core has taken longer than {self.step_s:g} s"
        return None


PULSE_LIMITS = PulseLimits(silence_s=60.0, step_s=600.0)


class Pulse:
    """The file, mapped. One process creates it, the other opens it."""

    def __init__(self, path: Path, *, create: bool) -> None:
        if create:
            path.write_bytes(_FORM.pack(time.monotonic(), 0.0))
        descriptor = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(descriptor, _FORM.size)
        finally:
            os.close(descriptor)

    def beat_for_ever(self) -> None:
        """Start the thread that beats until the process ends."""
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def step_begins(self) -> None:
        """The main thread starts a step."""
        struct.pack_into("=d", self._map, 8, time.monotonic())

    def step_ends(self) -> None:
        """The main thread has finished a step."""
        struct.pack_into("=d", self._map, 8, 0.0)

    def read(self) -> tuple[float, float]:
        """Time of the last beat, and of the begin of the step that runs or 0."""
        return _FORM.unpack_from(self._map)

    def _beat(self) -> None:
        while True:
            struct.pack_into("=d", self._map, 0, time.monotonic())
            time.sleep(_BEAT_S)
