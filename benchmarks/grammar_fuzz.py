"""What the worst of many random schemas and patterns costs: to write, to compile, and a mask.

``python -m benchmarks.grammar_fuzz --cases 3000 [--vocabulary 200064]``. Every schema that is not
refused is compiled; replies are drawn from its grammar, evenly and with a preference for long
tokens, and every mask is timed. Refusals are counted by keyword.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import xgrammar

from benchmarks.vocabulary import synthetic_tokens
from gnomon.engine.grammar.compiler import MAX_WORK, work
from gnomon.engine.grammar.dialects import DIALECTS
from gnomon.engine.grammar.ebnf import GrammarTooLarge
from gnomon.engine.grammar.limits import Limits
from gnomon.engine.grammar.reply import (
    Calls,
    Function,
    Json,
    RequestUnsupported,
    Start,
    reply_grammar,
)
from gnomon.engine.grammar.vocabulary import WRITTEN_MARKERS, token_bytes
from gnomon.engine.models.loader import resolve_model

NASTY = (
    "^(a*)*$", "(a|b)*a(a|b){60}", "^(a|a)*b$", "(.*)(.*)(.*)x", "^([ab]*c?){16}$", "^(a+)+$",
    "^(a|aa)+$", r"^(\w+\s?)*$", r"^([a-zA-Z0-9._-]+)+@x$", "^(x+x+)+y$", r"^(.*,){20}P$",
    "(a?){40}a{40}", "^((a{1,9}){1,9}){1,9}$", r"(\d+|\w+)*-", "^.{1,5000}$", "[^a]*b[^c]*d[^e]*f",
)  # fmt: skip
ATOMS = ("a", "b", "x", ".", r"\d", r"\w", r"\s", r"\S", r"\W", "[a-c]", "[^b]", "[a-z0-9_]",
         "é", "]", '"', r"\\", "<", "漢", "-", "@")  # fmt: skip


def pattern(rng: random.Random, depth: int = 3) -> str:
    """A random regular expression, repetitions of repetitions among them."""
    match rng.choice(("atom", "atom", "many", "either", "group") if depth else ("atom",)):
        case "many":
            times = rng.choice(("*", "+", "?", "{2,}", "{0,9}", "{3}", "{1,40}"))
            return f"({pattern(rng, depth - 1)}){times}"
        case "either":
            return f"({pattern(rng, depth - 1)}|{pattern(rng, depth - 1)})"
        case "group":
            return "".join(pattern(rng, depth - 1) for _ in range(rng.randrange(2, 5)))
        case _:
            return rng.choice(ATOMS)


def anchored(rng: random.Random) -> str:
    """A random expression, anchored or not."""
    if rng.random() < 0.05:
        return rng.choice(NASTY)
    return rng.choice(("", "^")) + pattern(rng) + rng.choice(("", "$"))


def schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """A random schema: unions that overlap, long lists and strings, large enums, recursion."""
    kinds = ("pattern", "text", "number", "enum", "array", "object", "union", "self")
    match rng.choice(kinds if depth else kinds[:4]):
        case "pattern":
            return {"type": "string", "pattern": anchored(rng)}
        case "text":
            low = rng.choice((0, 0, 1, 10, 100))
            high = low + rng.choice((0, 5, 60, 500, 10_000))
            return {"type": "string", "minLength": low, "maxLength": high}
        case "number":
            low = rng.randrange(-2000, 2000)
            kind = rng.choice(("integer", "number"))
            return {"type": kind, "minimum": low, "maximum": low + rng.randrange(0, 5000)}
        case "enum":
            return {"enum": [f"v{n * 7}" for n in range(rng.choice((1, 3, 50, 2000)))]}
        case "array":
            low = rng.choice((0, 1, 5, 300))
            return {"type": "array", "items": schema(rng, depth - 1), "minItems": low}
        case "object":
            names = rng.sample("abcdefghijkl", rng.randrange(1, 8))
            return {
                "type": "object",
                "properties": {name: schema(rng, depth - 1) for name in names},
                "required": names[: rng.randrange(len(names) + 1)],
                "additionalProperties": False,
            }
        case "union":
            return {"anyOf": [schema(rng, depth - 1) for _ in range(rng.choice((2, 3, 8)))]}
        case _:
            return {"$ref": "#/$defs/self"}


def documents(seed: int, cases: int) -> Iterator[dict[str, Any]]:
    """Schemas of parameters."""
    for at in range(cases):
        rng = random.Random(seed * 1_000_003 + at)
        value = {"type": "string", "pattern": anchored(rng)} if at % 2 else schema(rng)
        members = {"n": {"type": "integer"}, "more": {"$ref": "#/$defs/self"}}
        more = {"type": "object", "properties": members, "required": ["n"]}
        yield {
            "type": "object",
            "properties": {"value": value},
            "required": ["value"],
            "additionalProperties": False,
            "$defs": {"self": {"anyOf": [more, {"type": "string"}]}},
        }


class Prober:
    """Compiles grammars and follows them."""

    def __init__(self, tokens: list[bytes], stop: int) -> None:
        info = xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.RAW, stop_token_ids=[stop])
        self.size = len(tokens)
        self.long = np.array([len(token) for token in tokens])
        self._compiler = xgrammar.GrammarCompiler(
            info, max_threads=1, cache_enabled=True, cache_limit_bytes=256 << 20
        )

    def compiled(self, source: str) -> tuple[Any, float]:
        """A grammar, and the seconds it took."""
        started = time.thread_time()
        return self._compiler.compile_grammar(source), time.thread_time() - started

    def masks(self, compiled: Any, rng: random.Random, steps: int, *, greedy: bool) -> list[float]:
        """Seconds of every step along one reply."""
        matcher = xgrammar.GrammarMatcher(compiled)
        bitmask = xgrammar.allocate_token_bitmask(1, self.size)
        found = []
        while len(found) < steps and not matcher.is_terminated():
            started = time.thread_time()
            matcher.fill_next_token_bitmask(bitmask, 0)
            seconds = time.thread_time() - started
            bits = np.unpackbits(bitmask.numpy().view(np.uint8), bitorder="little")[: self.size]
            allowed = bits.nonzero()[0]
            if not len(allowed):
                raise AssertionError("a grammar has a dead end")
            picks = [int(rng.choice(allowed)) for _ in range(6 if greedy else 1)]
            started = time.thread_time()
            matcher.accept_token(max(picks, key=lambda token: self.long[token]))
            found.append(seconds + time.thread_time() - started)
        return found


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--vocabulary", type=int, help="a synthetic one; nano's if left out")
    arguments = parser.parse_args()
    if arguments.vocabulary:
        tokens = synthetic_tokens(arguments.vocabulary)
    else:
        tokens = token_bytes(resolve_model("nano"), 2048, WRITTEN_MARKERS)
    prober = Prober(tokens, len(tokens) - 1)
    refused: Counter[str] = Counter()
    slowest: dict[str, tuple[float, str]] = {}
    masks = compiled = 0
    total = 0.0

    def note(what: str, seconds: float, document: Any) -> None:
        if seconds > slowest.get(what, (0.0, ""))[0]:
            slowest[what] = (seconds, json.dumps(document["properties"]["value"])[:200])

    names = [*DIALECTS, "json"]
    for at, document in enumerate(documents(arguments.seed, arguments.cases)):
        rng = random.Random(at)
        name = names[at % len(names)]
        calls = Calls([Function("f", document, True, "f")], True, True)
        wanted = (None, Json(document, "j")) if name == "json" else (calls, None)
        started = time.thread_time()
        try:
            source = reply_grammar(
                Start.CONTENT, *wanted, Limits(), DIALECTS.get(name, DIALECTS["minimax_m3"])
            )
        except RequestUnsupported as error:
            refused[error.keyword] += 1
            continue
        except GrammarTooLarge:
            refused["too large"] += 1
            continue
        finally:
            note("write", time.thread_time() - started, document)
        if work(source) * prober.size > MAX_WORK:
            refused["too much work"] += 1
            continue
        grammar, seconds = prober.compiled(source)
        note("compile", seconds, document)
        compiled += 1
        for greedy in (False, True):
            found = prober.masks(grammar, rng, arguments.steps, greedy=greedy)
            note("mask", max(found, default=0.0), document)
            note("mean mask of a reply", sum(found) / max(len(found), 1), document)
            masks += len(found)
            total += sum(found)
    print(json.dumps({
        "cases": arguments.cases, "vocabulary": prober.size, "compiled": compiled, "masks": masks,
        "mean_mask_ms": round(1e3 * total / max(masks, 1), 4), "refused": dict(refused),
        "slowest_ms": {k: [round(1e3 * s, 2), what] for k, (s, what) in slowest.items()},
    }, ensure_ascii=False, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
