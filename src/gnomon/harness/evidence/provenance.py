"""Where the code came from and what it ran with."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import gnomon
from gnomon.harness.evidence.manifest import BuildRecord

REDACTED = "***"
_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_SECRET_OPTION = re.compile(r"^--[a-z-]*(key|token|secret|password)[a-z-]*$")
_RELEVANT_PREFIXES = (
    *("CUDA_", "GNOMON_", "GOMP_", "HF_", "HIP_", "KMP_", "MALLOC_", "MKL_", "NCCL_"),
    *("NVIDIA_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_", "ROCR_", "TORCH", "TRITON_"),
)
_PACKAGES = (
    *("torch", "numpy", "safetensors", "tokenizers", "jinja2", "pydantic", "fastapi", "uvicorn"),
    *("pyzmq", "msgspec", "httpx", "psutil", "matplotlib"),
)


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """Values of variables whose name speaks of a secret replaced by stars."""
    return {name: REDACTED if _SECRET_NAME.search(name) else value for name, value in env.items()}


def redact_argv(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Values of options whose name speaks of a secret replaced by stars.

    ``--tokenizer`` and ``--max-num-batched-tokens`` are no secrets: the word must end the name or
    a part of it exactly.
    """
    out: list[str] = []
    hide_next = False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        secret = bool(_SECRET_OPTION.match(name)) and _is_secret(name)
        if hide_next:
            out.append(REDACTED)
        elif secret and equals:
            out.append(f"{name}={REDACTED}")
        else:
            out.append(argument)
        hide_next = secret and not equals
    return tuple(out)


def _is_secret(option: str) -> bool:
    words = option.lstrip("-").split("-")
    return bool({"key", "token", "secret", "password"} & set(words))


def relevant_env() -> dict[str, str]:
    """Inherited variables that can change what a server or a client does, secrets redacted."""
    chosen = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_RELEVANT_PREFIXES) and name != "GNOMON_RUN_MARK"
    }
    return redact_env(chosen)


def build_record(package: Path | None = None) -> BuildRecord:
    """Identity of the source that runs.

    Args:
        package: directory of the package; this one by default.
    """
    root = package or Path(gnomon.__file__).parent
    commit = git(root, "rev-parse", "HEAD")
    dirty: bool | None = None
    if commit is not None:
        status = git(root, "status", "--porcelain", "--untracked-files=normal", "--", str(root))
        dirty = bool(status) if status is not None else None
    return BuildRecord(
        version=gnomon.__version__,
        source_sha256=source_sha256(root),
        commit=commit,
        dirty=dirty,
    )


def source_sha256(root: Path) -> str:
    """Hash over relative paths and bytes of a package's files, caches left out."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if not path.is_file() or "__pycache__" in path.parts or path.name.startswith("."):
            continue
        content = path.read_bytes()
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def package_versions() -> dict[str, str]:
    """Python and the packages whose version can change a run; absent ones are left out."""
    versions = {"gnomon": gnomon.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def git(root: Path, *arguments: str, timeout_s: float = 20) -> str | None:
    """What git prints about the checkout at ``root``, stripped; None if it fails or is late."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
