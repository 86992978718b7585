"""What the user asked of the server: the engine's options and those of the HTTP side."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from gnomon.engine.log_format import LogFormat
from gnomon.engine.options import EngineOptions
from gnomon.engine.serve.parsers import registry
from gnomon.engine.serve.reasoning_format import ReasoningFormat

_SECRET = ("api_key", "reasoning_key")


class ServeOptions(EngineOptions):
    """Options of ``gnomon serve``.

    Attributes:
        served_model_name: names clients may use; empty means the model as it was given.
        api_key: keys of which clients must send one; none asks for nothing.
        reasoning_format: where chat answers carry reasoning.
        max_body_bytes: longest request body.
        max_messages: most messages or input items of a request.
        max_tools: most tools of a request.
        structured_max_text: most characters of a free string, and of reasoning, under structured
            output; None leaves it to the checkpoint.
        structured_max_items: the same for members of open lists and calls of a block.
        max_choices: most choices of a prompt (``n``).
        max_logprobs: most probable tokens a request may ask for at each position.
        max_open_requests: most requests open at a time, running and queued.
        max_requests_per_key: the same for one API key; None is no limit.
        max_queued_requests: most requests without a first token at a time; None is no limit.
        max_queued_per_key: the same for one API key.
        request_timeout_s: how long a request may take, from its body to its last token; None is
            no limit.
        stall_timeout_s: how long a client may leave its answer unread, or its body unsent.
        shutdown_timeout_s: how long open requests may go on after SIGTERM.
        heartbeat_timeout_s: how long the engine core may give no sign of life.
        step_timeout_s: how long one of its steps may take.
        max_stored_responses: most responses kept for ``previous_response_id``.
        reasoning_key: secret under which clients carry ``encrypted_content``; None draws one at
            each start.
        log_format: of both processes.
        debug_state: serve ``/debug/state``.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    api_key: tuple[str, ...] = ()
    served_model_name: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    tool_call_parser: str = registry.DEFAULT
    reasoning_parser: str = registry.DEFAULT
    reasoning_format: ReasoningFormat = ReasoningFormat.FIELD
    max_body_bytes: int = Field(default=64 * 2**20, ge=1024)
    max_messages: int = Field(default=8192, ge=1)
    max_tools: int = Field(default=1024, ge=1)
    structured_max_text: int | None = Field(default=None, ge=1, le=100_000)
    structured_max_items: int | None = Field(default=None, ge=1, le=100_000)
    max_choices: int = Field(default=128, ge=1)
    max_logprobs: int = Field(default=20, ge=0)
    max_open_requests: int = Field(default=1024, ge=1)
    max_requests_per_key: int | None = Field(default=None, ge=1)
    max_queued_requests: int | None = Field(default=None, ge=1)
    max_queued_per_key: int | None = Field(default=None, ge=1)
    request_timeout_s: float | None = Field(default=None, gt=0)
    stall_timeout_s: float = Field(default=60, gt=0)
    shutdown_timeout_s: float = Field(default=5, ge=0)
    heartbeat_timeout_s: float = Field(default=60, gt=0)
    step_timeout_s: float = Field(default=600, gt=0)
    max_stored_responses: int = Field(default=1024, ge=0)
    reasoning_key: str | None = Field(default=None, min_length=16, repr=False)
    log_format: LogFormat = "text"
    debug_state: bool = False

    @field_validator("api_key", mode="before")
    @classmethod
    def _one_key_or_more(cls, given: object) -> object:
        return () if given is None else (given,) if isinstance(given, str) else given

    @field_validator("api_key")
    @classmethod
    def _usable_keys(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        if not all(keys):
            raise ValueError("a key must not be empty")
        return keys

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

    def report(self) -> dict[str, Any]:
        """Every option as JSON; of a secret, only whether there is one."""
        found = self.model_dump(mode="json", exclude=set(_SECRET))
        return found | {name: bool(getattr(self, name)) for name in _SECRET}

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names clients may use, the first being the one we report."""
        return self.served_model_name or (self.model,)

    def engine_options(self) -> EngineOptions:
        """The part the engine core takes."""
        return EngineOptions(**{name: getattr(self, name) for name in EngineOptions.model_fields})
