"""Builds client environments from their locks: once, complete or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from uv import find_uv_bin

from gnomon.harness.clients.catalogue import CLIENTS, MEBIBYTE, Client
from gnomon.harness.clients.environment import (
    MARKER,
    ClientEnvironment,
    ClientError,
    client,
    environment,
    find,
    folder,
    lock_sha256,
)
from gnomon.harness.clients.process import run_to_end, tail

Progress = Callable[[str], None]

_STEP_DEADLINE_S = 1800.0


def install(
    progress: Progress,
    names: Sequence[str] | None = None,
    cancel: threading.Event | None = None,
) -> tuple[ClientEnvironment, ...]:
    """Install clients that are not installed yet; returns at once for those that are.

    Safe to run several times at once: one process builds, the others wait for it and use what it
    built. A failed or interrupted build leaves nothing behind.

    Args:
        progress: told what happens, one line at a time.
        names: of the clients, all of them by default.
        cancel: stops a build when set.

    Raises:
        ClientError: a name is unknown, the disk is too full, or the build failed.
    """
    wanted = [client(name) for name in (CLIENTS if names is None else names)]
    for each in wanted:
        if find(each) is not None:
            progress(f"{each.name} {each.version}: already installed")
            continue
        with _only_one(each, progress, cancel):
            if find(each) is None:
                _build(each, progress, cancel)
    return tuple(environment(each.name) for each in wanted)


@contextlib.contextmanager
def _only_one(of: Client, progress: Progress, cancel: threading.Event | None) -> Iterator[None]:
    """Hold the client's lock file, so that two installers never build in the same folder."""
    target = folder(of)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as handle:
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    progress(f"{of.name}: waiting for another installation to end")
                    told = True
                if (cancel or threading.Event()).wait(0.2):
                    raise ClientError(f"installing {of.name} was cancelled") from None
        yield  # the lock ends with the handle, also when this process is killed


def _build(of: Client, progress: Progress, cancel: threading.Event | None) -> None:
    """Build in place and write the marker last: a virtual environment cannot be moved."""
    target = folder(of)
    _remove(target)  # left by a build that was killed
    _require_disk(of, target.parent)
    pins = of.pins
    progress(
        f"{of.name} {of.version}: installing {len(pins)} packages, "
        f"about {of.disk_bytes // MEBIBYTE} MiB, into {target}"
    )
    try:
        with tempfile.TemporaryDirectory(prefix="gnomon-install-") as scratch:
            _steps(of, target, Path(scratch), progress, cancel)
        partial = target / f"{MARKER}.partial"
        marker = {
            "client": of.name,
            "version": of.version,
            "lock_sha256": lock_sha256(of),
            "python": sys.version.split()[0],
            "versions": pins,
        }
        partial.write_text(json.dumps(marker, indent=1))
        partial.replace(target / MARKER)
    except BaseException:
        _remove(target)
        raise
    progress(f"{of.name} {of.version}: installed")


def _steps(
    of: Client, target: Path, scratch: Path, progress: Progress, cancel: threading.Event | None
) -> None:
    """Create, fill and try the environment."""
    uv = find_uv_bin()
    lock = scratch / f"{of.name}.txt"
    lock.write_text(of.lock)
    python = target / "bin" / "python"
    base = dict(os.environ)
    for name in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"):
        base.pop(name, None)
    # bfcl-eval creates its result folders when it is imported, in site-packages unless told.
    trial = {**base, "BFCL_PROJECT_ROOT": str(scratch), "OPENAI_API_KEY": "unused"}
    create = [uv, "venv", "--python", sys.executable, str(target)]
    # The lock is the whole truth: --no-deps keeps what it leaves out from coming back.
    fill = [uv, "pip", "install", "--no-deps", "--require-hashes"]
    fill += ["--python", str(python), "--requirements", str(lock)]
    steps = (
        ("creating the environment", base, create),
        ("downloading and installing", base, fill),
        ("trying it", trial, [str(python), "-c", of.probe]),
    )
    for what, env, argv in steps:
        progress(f"{of.name}: {what}")
        log = scratch / "step.log"
        log.write_bytes(b"")
        ended = run_to_end(
            argv, env=env, cwd=scratch, log=log, deadline_s=_STEP_DEADLINE_S, cancel=cancel
        )
        if ended.how == "cancelled":
            raise ClientError(f"installing {of.name} was cancelled; nothing was kept")
        if not ended.ok:
            raise ClientError(_failure(of, what, argv, tail(log)))


def _failure(of: Client, what: str, argv: Sequence[str], output: str) -> str:
    """A sentence about a failed step, with what it printed and what to try."""
    return (
        f"installing {of.name} {of.version} failed while {what}; nothing was kept.\n"
        f"command: {' '.join(argv)}\n{output}\n"
        "Check that a Python package index can be reached (uv reads UV_DEFAULT_INDEX, UV_INDEX, "
        "UV_FIND_LINKS and uv.toml, not pip's settings) and that this Python "
        f"({sys.version.split()[0]}) is one the client supports (3.11 or 3.12), then run "
        "`gnomon clients install` again."
    )


def _require_disk(of: Client, where: Path) -> None:
    free = shutil.disk_usage(where).free
    if free < of.disk_bytes * 3 // 2:  # downloads are unpacked beside the environment
        raise ClientError(
            f"installing {of.name} needs {of.disk_bytes * 3 // 2 // MEBIBYTE} MiB and {where} has "
            f"{free // MEBIBYTE} MiB free; free some space or set XDG_CACHE_HOME to a larger disk"
        )


def _remove(target: Path) -> None:
    if target.exists():
        shutil.rmtree(target)
