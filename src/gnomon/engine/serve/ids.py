"""Identifiers that clients see."""

from __future__ import annotations

import uuid


def new_id(prefix: str) -> str:
    """A fresh identifier, such as ``chatcmpl-5d2f…``."""
    return f"{prefix}{uuid.uuid4().hex[:24]}"
