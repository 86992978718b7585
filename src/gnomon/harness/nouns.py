"""The few nouns that several rooms of the harness share."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ServerAddress:
    """Where an OpenAI-compatible server listens and what it calls its model.

    Attributes:
        host: name or address, without a scheme.
        port: TCP port.
        model: the model's name as the server knows it (``served-model-name``).
        api_key: bearer token, or None where the server asks for none; never shown by ``repr``.
    """

    host: str
    port: int
    model: str
    api_key: str | None = field(default=None, repr=False)

    @property
    def origin(self) -> str:
        """``http://host:port``, with an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def base_url(self) -> str:
        """``http://host:port/v1``: what OpenAI clients call the base URL."""
        return f"{self.origin}/v1"

    @property
    def metrics_url(self) -> str:
        """``http://host:port/metrics``: the Prometheus page."""
        return f"{self.origin}/metrics"


@dataclass(frozen=True)
class Finding:
    """One thing that was checked about a client's output, and what was seen.

    Attributes:
        name: stable kebab-case identifier.
        passed: whether the check held.
        evidence: a sentence with the numbers compared.
    """

    name: str
    passed: bool
    evidence: str
