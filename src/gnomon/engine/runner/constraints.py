"""The grammars of live requests: waiting for their compilation, then masking their logits."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from gnomon.engine.errors import AdmissionError, GrammarTooSlow
from gnomon.engine.grammar.compiler import MASK_BUDGET_S, GrammarCompiler
from gnomon.engine.scheduler.request import Request

log = logging.getLogger(__name__)

COMPILE_TIMEOUT_S = 30.0
MAX_COMPILING = 64
PATIENCE_S = 2.0
"""How long the masks of a request may take beyond the budget of each, in all."""


@dataclass
class _Waiting:
    request: Request
    compiled: Future[Any]
    since: float


@dataclass
class _State:
    """Where a request is in its grammar: a function of its output tokens and nothing else."""

    matcher: Any
    accepted: int = 0
    overdue_s: float = 0.0  # by which masks went beyond their budget


class Constraints:
    """Requests whose output a grammar rules.

    A state advances lazily, from the request's own output tokens, when its next mask is needed.
    So neither preemption nor the batch can change it.

    Args:
        compiler: of this model's vocabulary.
        stop_token_ids: what is allowed where a grammar, against expectation, allows nothing.
    """

    def __init__(self, compiler: GrammarCompiler, stop_token_ids: Sequence[int]) -> None:
        self._compiler = compiler
        self._stop_token_ids = list(stop_token_ids)
        self._waiting: dict[str, _Waiting] = {}
        self._states: dict[str, _State] = {}
        self._bitmask: torch.Tensor | None = None

    @property
    def compiling(self) -> int:
        """Requests that wait for their grammar."""
        return len(self._waiting)

    def warm_up(self) -> None:
        """Load what the first grammar needs, in the background."""
        self._compiler.warm_up()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting or request_id in self._states

    def expect(self, request: Request, source: str) -> None:
        """Start compiling the grammar of a request, which waits here.

        Raises:
            AdmissionError: too many wait already.
        """
        compiled = self._compiler.compile(source)
        waiting = sum(not other.compiled.done() for other in self._waiting.values())
        if waiting >= MAX_COMPILING and not compiled.done():
            compiled.cancel()
            raise AdmissionError(
                f"{waiting} requests wait for their schemas to be compiled; try later"
            )
        self._waiting[request.id] = _Waiting(request, compiled, time.monotonic())

    def ready(self, *, wait: bool = False) -> list[tuple[Request, AdmissionError | None]]:
        """Requests that need not wait any more, in the order they came, or why they cannot run.

        Args:
            wait: until the first that came is done.
        """
        found: list[tuple[Request, AdmissionError | None]] = []
        for waiting in list(self._waiting.values()):
            left = COMPILE_TIMEOUT_S - (time.monotonic() - waiting.since)
            if wait and not found:
                _wait(waiting.compiled, left)
                left = COMPILE_TIMEOUT_S - (time.monotonic() - waiting.since)
            if waiting.compiled.done():
                found.append((waiting.request, self._start(waiting)))
            elif left <= 0:
                waiting.compiled.cancel()
                error = AdmissionError(
                    f"the request's schemas took more than {COMPILE_TIMEOUT_S:g} s to compile; "
                    "simplify them"
                )
                found.append((waiting.request, error))
            else:
                continue
            del self._waiting[waiting.request.id]
        return found

    def forget(self, request_id: str) -> Request | None:
        """Drop a request; returns it if it was still waiting."""
        self._states.pop(request_id, None)
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return None
        waiting.compiled.cancel()
        return waiting.request

    def take_slow(self) -> list[tuple[str, GrammarTooSlow]]:
        """Requests whose masks have held up the others for too long, and what to tell them."""
        slow = [name for name, state in self._states.items() if state.overdue_s > PATIENCE_S]
        error = GrammarTooSlow(
            f"following the schemas of this request took {PATIENCE_S:g} s more than the "
            f"{MASK_BUDGET_S * 1e3:.0f} ms a token it may take; simplify their alternatives"
        )
        for name in slow:
            del self._states[name]
        return [(name, error) for name in slow]

    def mask(self, logits: torch.Tensor, requests: Sequence[Request]) -> None:
        """Set the logits of tokens that a request's grammar forbids to -inf, in place.

        Args:
            logits: fp32 [S, V].
            requests: S of them, in row order.
        """
        rows = [at for at, request in enumerate(requests) if request.id in self._states]
        if not rows:
            return
        import xgrammar  # imported by the compiler long ago

        if self._bitmask is None or self._bitmask.shape[0] < len(rows):
            self._bitmask = xgrammar.allocate_token_bitmask(len(rows), logits.shape[1])
        for at, row in enumerate(rows):
            started = time.thread_time()
            self._fill(self._bitmask, at, requests[row])
            excess = time.thread_time() - started - MASK_BUDGET_S
            self._states[requests[row].id].overdue_s += max(excess, 0.0)
        used = torch.zeros(len(requests), self._bitmask.shape[1], dtype=self._bitmask.dtype)
        used[rows] = self._bitmask[: len(rows)]
        xgrammar.apply_token_bitmask_inplace(
            logits, used.to(logits.device), vocab_size=logits.shape[1], indices=rows
        )

    def _start(self, waiting: _Waiting) -> AdmissionError | None:
        import xgrammar

        try:
            compiled = waiting.compiled.result()
        except AdmissionError as error:
            return error
        except Exception as error:  # the library, or its import, failed: one request's problem
            log.exception("a grammar could not be compiled")
            return AdmissionError(f"the request's schemas cannot be enforced: {error}")
        self._states[waiting.request.id] = _State(xgrammar.GrammarMatcher(compiled))
        return None

    def _fill(self, bitmask: torch.Tensor, at: int, request: Request) -> None:
        state = self._states[request.id]
        while state.accepted < len(request.output_ids):
            if not state.matcher.accept_token(request.output_ids[state.accepted]):
                log.error("request %s left its grammar", request.id)
                state.accepted = len(request.output_ids)
                break
            state.accepted += 1
        if not state.matcher.is_terminated():
            state.matcher.fill_next_token_bitmask(bitmask, at)
            if bool(bitmask[at].any()):
                return
        log.error("the grammar of request %s allows no token; ending the reply", request.id)
        bitmask[at].zero_()
        for token_id in self._stop_token_ids:
            word = int(bitmask[at, token_id // 32]) & 0xFFFFFFFF | 1 << token_id % 32
            bitmask[at, token_id // 32] = word - (1 << 32) if word >= 1 << 31 else word


def _wait(future: Future[Any], timeout_s: float) -> None:
    try:
        future.exception(max(timeout_s, 0.0))
    except TimeoutError:
        return
