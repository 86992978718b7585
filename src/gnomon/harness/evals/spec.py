"""What a recipe says about a BFCL evaluation."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Api = Literal["chat", "responses"]


class BfclSpec(BaseModel):
    """One BFCL suite through one API; two APIs are two specs and two results, never merged.

    Attributes:
        suite: name of a committed manifest of case ids.
        api: ``chat`` for Chat Completions, ``responses`` for Responses.
        temperature: requested from the server; the client's own default is 0.001.
        threads: cases in flight at once.
        request_timeout_s: budget of one HTTP request.
        max_retries: further attempts at a request after a failed one.
        case_timeout_s: budget of one case, all its requests and attempts together.
        deadline_s: budget of asking the whole suite; cases under way then are
            ``budget_exhausted``, cases not begun ``not_run``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    suite: Literal["bfcl_smoke"] = "bfcl_smoke"
    api: Api = "chat"
    temperature: float = Field(default=0.001, ge=0, le=2)
    threads: int = Field(default=2, ge=1, le=256)
    request_timeout_s: float = Field(default=60.0, gt=0)
    max_retries: int = Field(default=1, ge=0, le=10)
    case_timeout_s: float = Field(default=120.0, gt=0)
    deadline_s: float = Field(default=300.0, gt=0)
