"""Which process writes a folder: a lock that the kernel drops when that process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from collections.abc import Iterator
from pathlib import Path


class Held:
    """A folder or file that this process writes; no file is needed to say so, nothing is stale."""

    def __init__(self, handle: int) -> None:
        self._close = weakref.finalize(self, os.close, handle)

    @classmethod
    def take(cls, path: Path) -> Held | None:
        """Take it, or None where somebody else has it.

        A file system without locks cannot say who has it; there it is always given.
        """
        handle = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            pass
        return cls(handle)

    def release(self) -> None:
        """Give it up; the end of the process does the same."""
        self._close()


@contextlib.contextmanager
def waiting_for(path: Path) -> Iterator[None]:
    """Take a lock file, however long the others need, and give it up at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
