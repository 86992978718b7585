"""The engine-core process: commands in and events out over one ZeroMQ pair of sockets.

Started by :class:`gnomon.engine.runner.client.EngineClient` as ``python -m
gnomon.engine.runner.process ADDRESS``. Its standard input carries the options as one line of JSON
and then stays open for as long as the parent lives: when it ends, so does this process, whatever
way the parent went.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq

from gnomon.engine.errors import AdmissionError, EngineError, GrammarTooSlow, StartupRefused
from gnomon.engine.log_format import configure_log
from gnomon.engine.options import EngineOptions
from gnomon.engine.runner.messages import (
    AbortRequest,
    AddRequest,
    CoreCommand,
    CoreEvent,
    CoreFailed,
    FlushCache,
    Rejected,
    Shutdown,
    StatsRequest,
    StepOutput,
)
from gnomon.engine.runner.pulse import Pulse

if TYPE_CHECKING:
    from gnomon.engine.runner.core import EngineCore

log = logging.getLogger(__name__)

IPC_SCHEME = "ipc://"
PULSE_FILE = "pulse"
_COMPILING_MS = 2  # how often an idle core looks whether a grammar is compiled
_LINGER_MS = 5_000  # how long a last message may take to leave


class Link:
    """The core's end of the socket pair. Sending waits while the API process is behind."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[CoreCommand] = msgspec.msgpack.Decoder(CoreCommand)

    def send(self, event: CoreEvent) -> None:
        """Send one event."""
        self._socket.send(self._encoder.encode(event))

    def receive(self, *, wait: bool, at_most_ms: int | None = None) -> CoreCommand | None:
        """The next command; None if there is none and ``wait`` is False, or none came in time."""
        if wait and at_most_ms is not None and not self._socket.poll(at_most_ms):
            return None
        try:
            return self._decoder.decode(self._socket.recv(0 if wait else zmq.DONTWAIT))
        except zmq.Again:
            return None


def serve(core: EngineCore, link: Link, pulse: Pulse) -> None:
    """Run until told to shut down: all commands that have come, then one step, and again."""
    while True:
        at_most_ms = _COMPILING_MS if core.compiling else None
        command = link.receive(wait=not core.has_work, at_most_ms=at_most_ms)
        while command is not None:
            if isinstance(command, Shutdown):
                return
            _obey(core, link, command)
            command = link.receive(wait=False)
        for request_id, error in core.start_compiled():
            link.send(Rejected(request_id, str(error), isinstance(error, GrammarTooSlow)))
        if core.has_work:
            pulse.step_begins()
            outputs = core.step()
            pulse.step_ends()
            if outputs:
                link.send(StepOutput(outputs))


def _obey(
    core: EngineCore, link: Link, command: AddRequest | AbortRequest | StatsRequest | FlushCache
) -> None:
    match command:
        case AddRequest():
            try:
                core.add(command.id, command.prompt_ids, command.sampling, command.grammar)
            except AdmissionError as error:
                link.send(Rejected(command.id, str(error)))
        case AbortRequest():
            core.abort(command.id)
        case StatsRequest():
            link.send(core.stats())
        case FlushCache():
            core.flush_cache(host=command.host)
            link.send(core.stats())


def _leave_a_cpu_free() -> None:
    """Let torch use all CPUs but one, unless OMP_NUM_THREADS says otherwise.

    The API process needs one; a parallel region whose threads wait for each other's CPU is many
    times slower than fewer threads.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))


def run(options: EngineOptions, link: Link, pulse: Pulse) -> int:
    """Start a core, announce its facts and serve; failures are sent before returning.

    Returns:
        Exit status of the process.
    """
    from gnomon.engine.runner.core import EngineCore  # here, so that import errors are reported

    _leave_a_cpu_free()
    try:
        core = EngineCore.start(options)
    except StartupRefused as error:
        link.send(CoreFailed(str(error), startup=True, refusals=error.refusals))
        return 1
    except EngineError as error:
        link.send(CoreFailed(str(error), startup=True))
        return 1
    except Exception as error:
        log.exception("the engine core could not start")
        link.send(CoreFailed(f"{type(error).__name__}: {error}", startup=True))
        return 1
    core.constraints.warm_up()
    link.send(core.facts)
    try:
        serve(core, link, pulse)
    except Exception as error:
        log.exception("the engine core failed")
        link.send(CoreFailed(f"{type(error).__name__}: {error}", startup=False))
        return 1
    return 0


def _read_options(descriptor: int) -> EngineOptions:
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(descriptor, 65536)
        if not data:
            raise SystemExit("standard input ended before the options came")
        line += data
    return EngineOptions.model_validate_json(bytes(line))


def _exit_with_parent(descriptor: int, address: str) -> None:
    """Wait for the parent's end of standard input to close, then leave without ceremony."""
    while os.read(descriptor, 65536):
        pass
    shutil.rmtree(Path(address.removeprefix(IPC_SCHEME)).parent, ignore_errors=True)
    os._exit(1)


def main(address: str, log_format: str = "text") -> int:
    """Entry point of the process.

    Args:
        address: ``ipc://`` address that the parent has bound; its directory is private to the two.
        log_format: text or json.
    """
    configure_log(log_format, "%(asctime)s core[%(process)d] %(levelname)s %(message)s")
    # Ctrl-C and a service manager's SIGTERM reach every process of the group; what they mean, and
    # how long open requests may still take, the API process decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    options = _read_options(sys.stdin.fileno())
    threading.Thread(
        target=_exit_with_parent, args=(sys.stdin.fileno(), address), daemon=True
    ).start()
    pulse = Pulse(Path(address.removeprefix(IPC_SCHEME)).parent / PULSE_FILE, create=False)
    pulse.beat_for_ever()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
    socket.connect(address)
    try:
        return run(options, Link(socket), pulse)
    finally:
        socket.close()
        context.term()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
