"""What the user asked of the server: the engine's options and those of the HTTP side."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from gnomon.engine.options import EngineOptions
from gnomon.engine.serve.parsers import registry
from gnomon.engine.serve.reasoning_format import ReasoningFormat


class ServeOptions(EngineOptions):
    """Options of ``gnomon serve``.

    Attributes:
        served_model_name: names clients may use; empty means the model as it was given.
        api_key: what clients must send as a bearer token; None asks for nothing.
        reasoning_format: where chat answers carry reasoning.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    api_key: str | None = Field(default=None, min_length=1)
    served_model_name: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    tool_call_parser: str = registry.DEFAULT
    reasoning_parser: str = registry.DEFAULT
    reasoning_format: ReasoningFormat = ReasoningFormat.FIELD

    @field_validator("tool_call_parser")
    @classmethod
    def _known_tool_parser(cls, name: str) -> str:
        registry.tool_dialect(name)
        return name

    @field_validator("reasoning_parser")
    @classmethod
    def _known_reasoning_parser(cls, name: str) -> str:
        registry.reasoning_dialect(name)
        return name

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names clients may use, the first being the one we report."""
        return self.served_model_name or (self.model,)

    def engine_options(self) -> EngineOptions:
        """The part the engine core takes."""
        return EngineOptions(**{name: getattr(self, name) for name in EngineOptions.model_fields})
