"""The API process: one HTTP server and one engine core, which live and end together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from types import FrameType

import uvicorn
import uvloop

from gnomon.engine.errors import OptionsError
from gnomon.engine.models.loader import resolve_model
from gnomon.engine.runner.client import EngineClient
from gnomon.engine.runner.pulse import PulseLimits
from gnomon.engine.serve.app import build_app
from gnomon.engine.serve.connection import HEAD_BYTES, ConnectionBounds, bounded
from gnomon.engine.serve.options import ServeOptions
from gnomon.engine.serve.served import Served

log = logging.getLogger(__name__)

_BACKLOG = 2048
#: How long an idle connection stays open. Agents pause for minutes between turns on one pooled
#: connection, and a close that crosses their next request looks like a failed request.
_IDLE_CONNECTION_S = 900
_LAST_ANSWERS_S = 5  # how long open connections may take to hear that the server ends
_POLL_S = 0.1
_UNREAD_BYTES = 2**18  # of an answer, in the kernel, for each connection
_SPARE_CONNECTIONS = 1024  # idle ones, and those that ask for anything but a generation
_PROMPTS = 1024  # open at a time; a completions request may have several


def serve(options: ServeOptions) -> None:
    """Serve until SIGTERM or SIGINT. ``/health`` answers 503 until the engine is ready.

    After a signal no new request is taken; open ones may finish within the shutdown time-out, then
    they end with an error. The core and the process end after them. A second signal cuts at once.

    Raises:
        EngineError: the server could not start, or the engine died.
    """
    folder = resolve_model(options.model)
    engine = EngineClient(
        options.engine_options(),
        max_open_requests=max(_PROMPTS, options.max_open_requests),
        pulse_limits=PulseLimits(options.heartbeat_timeout_s, options.step_timeout_s),
        log_format=options.log_format,
    )
    served = Served.load(engine, options, folder)
    with _listen(options.host, options.port) as listener:
        uvloop.run(_serve(served, engine, listener))


async def _serve(served: Served, engine: EngineClient, listener: socket.socket) -> None:
    stopping = asyncio.Event()
    config = http_config(served)
    loop = asyncio.get_running_loop()
    signals = _Signals(served, stopping, cut := asyncio.Event())
    http = _HttpServer(config, lambda: loop.call_soon_threadsafe(signals.arrived))
    answering = asyncio.create_task(http.serve(sockets=[listener]))
    living = asyncio.create_task(_live(served, engine, listener))
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((answering, living, stop), return_when=asyncio.FIRST_COMPLETED)
        if living.done():
            await living  # raises why the engine could not start, or died
        await _drain(served, living, cut)
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
        with contextlib.suppress(AttributeError):  # it was never started
            await engine.shutdown()
        http.should_exit = True
        await answering
        stop.cancel()


def http_config(served: Served) -> uvicorn.Config:
    """How uvicorn serves the application."""
    options = served.options
    bounds = ConnectionBounds(
        head_s=options.stall_timeout_s,
        flush_s=options.stall_timeout_s,
        most=options.max_open_requests + _SPARE_CONNECTIONS,
    )
    return uvicorn.Config(
        build_app(served),
        http=bounded(bounds),
        ws="none",
        h11_max_incomplete_event_size=HEAD_BYTES,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=_IDLE_CONNECTION_S,
        timeout_graceful_shutdown=_LAST_ANSWERS_S,
    )


@dataclass
class _Signals:
    """The first signal drains, the second cuts."""

    served: Served
    stopping: asyncio.Event
    cut: asyncio.Event

    def arrived(self) -> None:
        self.served.gate.draining = True
        (self.cut if self.stopping.is_set() else self.stopping).set()


async def _drain(served: Served, living: asyncio.Task[None], cut: asyncio.Event) -> None:
    """Wait for open requests, up to the deadline, a second signal or the engine's death."""
    if not served.gate.open or not served.options.shutdown_timeout_s:
        return
    log.info(
        "shutting down: %d open requests have %g s to finish",
        served.gate.open,
        served.options.shutdown_timeout_s,
    )
    ends = [asyncio.create_task(served.gate.emptied()), asyncio.create_task(cut.wait())]
    await asyncio.wait(
        (*ends, living),
        timeout=served.options.shutdown_timeout_s,
        return_when=asyncio.FIRST_COMPLETED,
    )
    for end in ends:
        end.cancel()
    await asyncio.gather(*ends, return_exceptions=True)


async def _live(served: Served, engine: EngineClient, listener: socket.socket) -> None:
    """Start the engine and return when it is dead.

    Raises:
        EngineError: it could not start, or why it died.
    """
    facts = await engine.start()
    host, port = listener.getsockname()[:2]
    names = ", ".join(served.options.model_names)
    log.info(
        "server ready: %s at http://%s:%d/v1 (%s caches, %d blocks of %d tokens)",
        names,
        f"[{host}]" if ":" in host else host,
        port,
        facts.kv_cache_dtype,
        facts.num_blocks,
        facts.block_size,
    )
    while engine.death is None:
        await asyncio.sleep(_POLL_S)
    raise engine.death


class _HttpServer(uvicorn.Server):
    """A uvicorn server whose signals also tell us, and that does not die of them at the end."""

    def __init__(self, config: uvicorn.Config, on_signal: Callable[[], object]) -> None:
        super().__init__(config)
        self._on_signal = on_signal

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals ourselves: uvicorn raises them again when it is done."""
        handled: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)
        before = {sig: signal.signal(sig, self.handle_exit) for sig in handled}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The engine goes first, so that open streams hear why they end."""
        self._on_signal()


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        OptionsError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        # Connections inherit it. The kernel would grow it to megabytes for one who does not read.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD_BYTES)
        return listener
    except OSError as error:
        raise OptionsError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another --host or "
            "--port"
        ) from error
