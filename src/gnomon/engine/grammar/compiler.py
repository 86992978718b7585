"""Compiling grammars against a vocabulary, beside the engine's steps and within bounds."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import re
import threading
import time
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
MAX_WORK = 100_000_000
"""Most character classes times tokens of a grammar: a pair costs 0.1 to 0.3 µs to compile."""
MASK_BUDGET_S = 0.05
"""What a mask may take; a grammar whose masks take longer on average is refused."""
_CACHED = 128
_CACHED_BYTES = 512 * 1024 * 1024
_RULES_BYTES = 256 * 1024 * 1024  # of rules that grammars share, kept by the library
_PROBED = 24  # tokens
_THREADS = 4
_CLASS = re.compile(r'"(?:\\.|[^"\\])*"|\[(\^?)(?:\\.|[^\]\\])*\](?:\{(\d+)(?:,(\d*))?\})?')
_EXPANDED = 128  # a longer repetition is counted


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
        self._size = 0

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
            self._size = info.vocab_size
            threads = max(1, min(_THREADS, len(os.sched_getaffinity(0)) - 1))
            self._compiler = xgrammar.GrammarCompiler(
                info, max_threads=threads, cache_enabled=True, cache_limit_bytes=_RULES_BYTES
            )
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
        library = self._prepared()
        if work(source) * self._size > MAX_WORK:
            raise AdmissionError(
                "the patterns and lengths of the request's schemas take too long to compile for "
                f"a vocabulary of {self._size} tokens; simplify them"
            )
        try:
            compiled = library.compile_grammar(source)
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
        seconds = probe(compiled, self._size)
        if seconds > MASK_BUDGET_S:
            raise AdmissionError(
                f"the request's schemas take {seconds * 1e3:.0f} ms a token to follow, more than "
                f"the {MASK_BUDGET_S * 1e3:.0f} ms a request may take; simplify their alternatives"
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


def work(source: str) -> int:
    """Character classes of a grammar, those of short repetitions counted as often as they repeat.

    What a class costs to compile grows with the vocabulary, so this bounds the time.
    """
    total = 0
    for found in _CLASS.finditer(source):
        if found.group(1) is None:  # a string
            continue
        least, most = int(found.group(2) or 1), int(found.group(3) or 0)
        # A negated class is counted, not expanded.
        total += 1 if found.group(1) else min(max(least, most), _EXPANDED)
    return total


def probe(compiled: Any, vocab_size: int) -> float:
    """Mean seconds of CPU time of a mask along a random reply."""
    import numpy as np
    import xgrammar

    rng = random.Random(0)
    matcher = xgrammar.GrammarMatcher(compiled)
    bitmask = xgrammar.allocate_token_bitmask(1, vocab_size)
    seconds, masks = 0.0, 0
    while masks < _PROBED and not matcher.is_terminated():
        started = time.thread_time()
        matcher.fill_next_token_bitmask(bitmask, 0)
        seconds += time.thread_time() - started
        masks += 1
        allowed = np.unpackbits(bitmask.numpy().view(np.uint8), bitorder="little").nonzero()[0]
        if not len(allowed):
            break
        started = time.thread_time()
        matcher.accept_token(int(rng.choice(allowed)))
        seconds += time.thread_time() - started
    return seconds / max(masks, 1)
