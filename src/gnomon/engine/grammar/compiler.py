"""Compiling grammars against a vocabulary, beside the engine's steps and within bounds."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from gnomon.engine.errors import AdmissionError

if TYPE_CHECKING:
    import xgrammar

log = logging.getLogger(__name__)

MAX_SOURCE_BYTES = 1024 * 1024
MAX_GRAMMAR_BYTES = 128 * 1024 * 1024
_CACHED = 128
_CACHED_BYTES = 512 * 1024 * 1024


class GrammarCompiler:
    """Compiles in a thread of its own and keeps the grammars used last.

    xgrammar compiles without Python's lock, so a compilation costs the engine's steps nothing but
    a CPU. Its import costs seconds, so it starts with the first grammar or with :meth:`warm_up`.

    Args:
        vocabulary: called once, in the thread, for the bytes of every token.
        stop_token_ids: tokens that may follow a complete text, and nothing else.
    """

    def __init__(
        self, vocabulary: Callable[[], Sequence[bytes]], stop_token_ids: Collection[int]
    ) -> None:
        self._vocabulary = vocabulary
        self._stop_token_ids = list(stop_token_ids)
        self._compiler: xgrammar.GrammarCompiler | None = None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        self._lock = threading.Lock()
        self._cache: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    @property
    def cached(self) -> tuple[int, int]:
        """Number and bytes of the grammars kept."""
        return len(self._cache), self._bytes

    def warm_up(self) -> None:
        """Import the library and read the vocabulary now, in the background."""
        self._pool.submit(self._prepared)

    def compile(self, source: str) -> Future[Any]:
        """The compiled grammar, now or later.

        Raises:
            AdmissionError: in the future; the source is too large or no grammar.
        """
        key = hashlib.sha256(source.encode()).digest()
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                done: Future[Any] = Future()
                done.set_result(self._cache[key][0])
                return done
        return self._pool.submit(self._compile, key, source)

    def _prepared(self) -> xgrammar.GrammarCompiler:
        if self._compiler is None:
            import xgrammar

            info = xgrammar.TokenizerInfo(
                list(self._vocabulary()),
                xgrammar.VocabType.RAW,
                stop_token_ids=self._stop_token_ids,
            )
            self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        return self._compiler

    def _compile(self, key: bytes, source: str) -> Any:
        if len(source) > MAX_SOURCE_BYTES:
            raise AdmissionError(
                f"the grammar of the request has {len(source)} bytes, more than the "
                f"{MAX_SOURCE_BYTES} that are compiled; send smaller schemas"
            )
        with self._lock:
            if key in self._cache:  # an equal one was compiled while this one waited
                return self._cache[key][0]
        try:
            compiled = self._prepared().compile_grammar(source)
        except (RuntimeError, ValueError, TypeError) as error:
            log.warning("a grammar does not compile: %s", error)
            raise AdmissionError(
                "the grammar of the request's schemas does not compile; simplify them"
            ) from error
        size = int(compiled.memory_size_bytes)
        if size > MAX_GRAMMAR_BYTES:
            raise AdmissionError(
                f"the request's schemas compile to {size >> 20} MiB, more than the "
                f"{MAX_GRAMMAR_BYTES >> 20} MiB a request may take; send smaller schemas"
            )
        self._keep(key, compiled, size)
        return compiled

    def _keep(self, key: bytes, compiled: Any, size: int) -> None:
        with self._lock:
            self._cache[key] = (compiled, size)
            self._bytes += size
            while len(self._cache) > _CACHED or self._bytes > _CACHED_BYTES:
                _, (_, gone) = self._cache.popitem(last=False)
                self._bytes -= gone
