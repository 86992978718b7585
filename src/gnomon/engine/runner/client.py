"""The API process's side of the engine core: starts it, talks to it, notices when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from gnomon.engine.errors import (
    AdmissionError,
    EngineBusy,
    EngineDead,
    EngineError,
    EngineStalled,
    GrammarTooSlow,
    StartupFailed,
    StartupRefused,
)
from gnomon.engine.options import EngineOptions
from gnomon.engine.runner.messages import (
    AbortRequest,
    AddRequest,
    CoreCommand,
    CoreEvent,
    CoreFailed,
    EngineFacts,
    EngineStats,
    FlushCache,
    Rejected,
    Shutdown,
    StatsRequest,
    StepOutput,
    TokenOutput,
)
from gnomon.engine.runner.process import IPC_SCHEME, PULSE_FILE
from gnomon.engine.runner.pulse import PULSE_LIMITS, Pulse, PulseLimits
from gnomon.engine.scheduler.request import FinishReason, SamplingParams

_LONGEST_SOCKET_PATH = 100  # sun_path is 108 bytes
_LAST_WORDS_S = 0.2  # how long the last message of an exited core may take to arrive
_REASON_S = 5.0  # the same for a core that failed, which always says why, on a busy machine
_POLL_S = 0.05
_FEEL_S = 0.5

log = logging.getLogger(__name__)

_Arrival = TokenOutput | EngineError


class EngineClient:
    """One engine core in its own process, for one asyncio loop.

    Args:
        options: options of the core.
        startup_timeout_s: how long loading and the first forward may take.
        max_open_requests: requests open at a time; more raise :class:`EngineBusy`. It bounds every
            queue between the two processes: a request has at most ``max_tokens`` outputs pending.
        pulse_limits: when the core is taken to hang. Open requests then end with
            :class:`EngineStalled`, and so do new ones until it is back.
        log_format: of the core's log, text or json.
    """

    def __init__(
        self,
        options: EngineOptions,
        *,
        startup_timeout_s: float = 600.0,
        max_open_requests: int = 1024,
        pulse_limits: PulseLimits = PULSE_LIMITS,
        log_format: str = "text",
    ) -> None:
        self.options = options
        self._limits = pulse_limits
        self._log_format = log_format
        self._stall: EngineError | None = None
        self._startup_timeout_s = startup_timeout_s
        self._max_open_requests = max_open_requests
        self._facts: EngineFacts | None = None
        self._death: EngineError | None = None
        self._open: dict[str, asyncio.Queue[_Arrival]] = {}
        self._stats: deque[asyncio.Future[EngineStats]] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[CoreEvent] = msgspec.msgpack.Decoder(CoreEvent)

    @property
    def facts(self) -> EngineFacts:
        """What the core really serves.

        Raises:
            EngineError: :meth:`start` has not returned yet.
        """
        if self._facts is None:
            raise EngineError("the engine has not started yet")
        return self._facts

    @property
    def is_ready(self) -> bool:
        """Whether a real forward has run and the core is alive."""
        return self._facts is not None and self._death is None

    @property
    def stall(self) -> EngineError | None:
        """Why the core is taken to hang; None while it shows signs of life."""
        return self._stall

    @property
    def death(self) -> EngineError | None:
        """Why the core is gone; None while it lives."""
        return self._death

    @property
    def pid(self) -> int:
        """Process id of the core."""
        return self._process.pid

    async def start(self) -> EngineFacts:
        """Start the core and wait until a real forward has run.

        Raises:
            StartupRefused: with every broken startup rule.
            StartupFailed: any other reason, or no answer in ``startup_timeout_s``.
        """
        self._folder = _private_folder()
        address = f"{IPC_SCHEME}{self._folder / 'core'}"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)
        self._started: asyncio.Future[EngineFacts] = asyncio.get_running_loop().create_future()
        self._pulse = Pulse(self._folder / PULSE_FILE, create=True)
        module = "gnomon.engine.runner.process"
        command = (sys.executable, "-m", module, address, self._log_format)
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE
        )
        assert self._process.stdin is not None
        self._process.stdin.write(self.options.model_dump_json().encode() + b"\n")
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]
        try:
            async with asyncio.timeout(self._startup_timeout_s):
                self._facts = await self._started
        except TimeoutError:
            await self.shutdown()
            raise StartupFailed(
                f"the engine core gave no sign of life in {self._startup_timeout_s:g} s"
            ) from None
        except BaseException:
            await self.shutdown()
            raise
        self._tasks.append(asyncio.create_task(self._feel()))
        return self._facts

    async def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        grammar: str | None = None,
    ) -> AsyncGenerator[TokenOutput, None]:
        """Generate; yields the new tokens of each step, the last with a finish reason.

        The request starts when the first item is asked for. Leaving the iteration early (break,
        cancellation, ``aclose``) aborts it, which frees its blocks before the core's next step.

        Raises:
            AdmissionError: the request can never run.
            EngineBusy: too many requests are open.
            EngineDead: the core is gone, before or during the request.
            EngineStalled: the core hangs, before or during the request.
        """
        self._refuse_if_dead()
        if request_id in self._open:
            raise AdmissionError(f"a request with the id {request_id!r} is already running")
        if len(self._open) >= self._max_open_requests:
            raise EngineBusy(
                f"{len(self._open)} requests are open, the most this server takes; try again later"
            )
        arrivals: asyncio.Queue[_Arrival] = asyncio.Queue()
        self._open[request_id] = arrivals
        done = False
        try:
            self._send(AddRequest(request_id, tuple(prompt_ids), sampling, grammar))
            while not done:
                arrival = await arrivals.get()
                if isinstance(arrival, EngineError):
                    done = not isinstance(arrival, EngineStalled)  # else it still has the request
                    raise arrival
                done = arrival.finish_reason is not None
                yield arrival
        finally:
            del self._open[request_id]
            if not done:
                self._send(AbortRequest(request_id))

    async def abort(self, request_id: str) -> None:
        """Abort a request; its iteration ends with an output of reason ABORT. Unknown ids pass."""
        arrivals = self._open.get(request_id)
        if arrivals is not None:
            self._send(AbortRequest(request_id))
            arrivals.put_nowait(
                TokenOutput(id=request_id, token_ids=(), finish_reason=FinishReason.ABORT)
            )

    async def stats(self) -> EngineStats:
        """Counters and gauges of the core, taken between two steps.

        Raises:
            EngineDead: the core is gone.
            EngineStalled: the core hangs.
        """
        return await self._ask(StatsRequest())

    async def flush_cache(self, *, host: bool = False) -> EngineStats:
        """Forget every block that no request holds.

        Args:
            host: forget what host memory holds too.

        Returns:
            Counters and gauges of right after.

        Raises:
            EngineDead: the core is gone.
            EngineStalled: the core hangs.
        """
        return await self._ask(FlushCache(host))

    async def _ask(self, command: StatsRequest | FlushCache) -> EngineStats:
        """Send a command that statistics answer; the core answers in order."""
        self._refuse_if_dead()
        answer: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._stats.append(answer)
        self._send(command)
        return await answer

    async def shutdown(self, timeout_s: float = 10.0) -> None:
        """End the core, and every open request with it. Safe to call twice.

        Args:
            timeout_s: how long the core may take to finish its step and leave before it is killed.
        """
        if self._process.returncode is None and self._facts is not None:
            self._send(Shutdown())
        self._die(EngineDead("the engine was shut down"))  # who waits hears it before the core ends
        if self._process.returncode is None and self._facts is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._process.wait()
        if self._process.returncode is None:  # still loading, or stuck
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _refuse_if_dead(self) -> None:
        if self._death is not None:
            raise EngineDead(str(self._death))
        if self._facts is None:
            raise EngineDead("the engine has not started yet")
        if self._stall is not None:
            raise EngineStalled(str(self._stall))

    def _send(self, command: CoreCommand) -> None:
        """Queue a command; ZeroMQ keeps the order. Needs no await, so it works while cancelled."""
        if self._death is None and not self._socket.closed:
            self._socket.send(self._encoder.encode(command))

    async def _receive(self) -> None:
        while True:
            event = self._decoder.decode(await self._socket.recv())
            match event:
                case StepOutput():
                    for output in event.outputs:
                        self._deliver(output.id, output)
                case Rejected():
                    kind = GrammarTooSlow if event.slow else AdmissionError
                    self._deliver(event.id, kind(event.message))
                case EngineStats():
                    answer = self._stats.popleft()
                    if not answer.done():
                        answer.set_result(event)
                case EngineFacts() if not self._started.done():
                    self._started.set_result(event)
                case CoreFailed():
                    self._die(_error_of(event))

    def _deliver(self, request_id: str, arrival: _Arrival) -> None:
        arrivals = self._open.get(request_id)
        if arrivals is not None:  # else it was aborted while the step ran
            arrivals.put_nowait(arrival)

    async def _watch(self) -> None:
        status = await self._process.wait()
        waited_s = 0.0
        while self._death is None and waited_s < (_REASON_S if status > 0 else _LAST_WORDS_S):
            await asyncio.sleep(_POLL_S)
            waited_s += _POLL_S
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        if self._facts is None:
            self._die(StartupFailed(f"the engine core {how} before it was ready; see its log"))
        else:
            self._die(EngineDead(f"the engine core {how}"))

    async def _feel(self) -> None:
        """Watch the core's pulse.

        Two bad looks in a row count: after both processes were frozen, the first may come before
        the core has had time to beat.
        """
        bad = 0
        while self._death is None:
            await asyncio.sleep(min(_FEEL_S, self._limits.silence_s / 4))
            problem = self._limits.problem(time.monotonic(), *self._pulse.read())
            bad = 0 if problem is None else bad + 1
            if problem is None and self._stall is not None:
                log.warning("the engine core is back")
                self._stall = None
            elif problem is not None and bad > 1 and self._stall is None:
                log.error("%s: open requests end with an error", problem)
                self._stall = EngineStalled(problem)
                self._tell(EngineStalled(problem))

    def _tell(self, error: EngineError) -> None:
        """Let everyone who waits hear of an error."""
        for arrivals in self._open.values():
            arrivals.put_nowait(error)
        for answer in self._stats:  # they stay: the core may answer yet, in this order
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # whoever waits gets it; nobody need

    def _die(self, error: EngineError) -> None:
        """Remember the first reason and tell everyone who waits."""
        if self._death is not None:
            return
        self._death = error
        if not self._started.done():
            self._started.set_exception(error)
            self._started.exception()  # whoever waits gets it; nobody need
        self._tell(EngineDead(str(error)))


def _error_of(event: CoreFailed) -> EngineError:
    if event.refusals:
        return StartupRefused(event.refusals)
    return StartupFailed(event.message) if event.startup else EngineDead(event.message)


def _private_folder() -> Path:
    """A directory only this user can enter, short enough for a socket's address."""
    folder = Path(tempfile.mkdtemp(prefix="gnomon-"))
    if len(str(folder)) > _LONGEST_SOCKET_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="gnomon-", dir="/tmp"))
    return folder
