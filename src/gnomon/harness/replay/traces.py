"""A small agentic trace set in the Weka format that AIPerf replays, made from a seed.

A trace file is one session: an ordered list of requests with their prompt length, answer length,
timing and the hash ids of their full 64-token prompt blocks. Equal ids are equal text, so ids say
which prefix a request shares with the ones before it. AIPerf writes the text itself, splits the
growth between two requests into a canned assistant turn and the tool result that follows, and
discards the server's answer: what is measured is speed and cache behaviour, never quality.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from gnomon.harness.replay.spec import SUBAGENT_REQUESTS, GeneratedTraces

BLOCK_TOKENS = 64
"""Tokens of one hashed block, as in the published agentic trace sets."""

MODEL = "recorded-model"
"""The model name inside the traces; the client replaces it by the one it is told to ask."""

Json = dict[str, Any]


@dataclass(frozen=True)
class ExpectedRequest:
    """One request that a replay of the traces must make, exactly once.

    Attributes:
        conversation_id: as AIPerf names it: the session, ``::sa:`` and the agent for a sub-agent.
        turn_index: from 0 within the conversation.
        input_tokens: length of its prompt, chat template not counted.
        output_tokens: length of its answer.
    """

    conversation_id: str
    turn_index: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class TraceSet:
    """Trace files on disk.

    Attributes:
        folder: holds the files and nothing else.
        sha256: over the names and bytes of all files, in order.
        sessions: number of files.
        requests: of the whole set, sub-agents included.
    """

    folder: Path
    sha256: str
    sessions: int
    requests: tuple[ExpectedRequest, ...]


def generate(spec: GeneratedTraces) -> list[Json]:
    """The traces of a spec, one mapping a session; equal specs give equal traces.

    A session's prompts grow from ``min_input_tokens`` towards ``max_input_tokens``, which none
    exceeds; where the two are less than two blocks apart the first may be shorter. A
    sub-agent starts with half the root's context.
    """
    rng = random.Random(spec.seed)
    return [_session(spec, rng, index) for index in range(spec.sessions)]


def write_traces(spec: GeneratedTraces, folder: Path) -> TraceSet:
    """Write the traces of a spec, one JSON file each, into an empty or missing folder.

    Raises:
        FileExistsError: the folder holds files already; a replay would read them too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; give the traces a folder of their own")
    traces = generate(spec)
    digest = hashlib.sha256()
    for trace in traces:
        path = folder / f"{trace['id']}.json"
        data = json.dumps(trace, indent=1).encode()
        path.write_bytes(data)
        digest.update(path.name.encode() + b"\0" + data)
    requests = tuple(request for trace in traces for request in expected_requests(trace))
    return TraceSet(folder, digest.hexdigest(), len(traces), requests)


def expected_requests(trace: Json) -> Iterator[ExpectedRequest]:
    """The requests of one trace, by conversation."""
    turn = count()
    for request in trace["requests"]:
        if request["type"] == "subagent":
            name = f"{trace['id']}::sa:{request['agent_id']}"
            for index, inner in enumerate(request["requests"]):
                yield ExpectedRequest(name, index, inner["in"], inner["out"])
        else:
            yield ExpectedRequest(trace["id"], next(turn), request["in"], request["out"])


def _session(spec: GeneratedTraces, rng: random.Random, index: int) -> Json:
    """One session: the root's requests, with a sub-agent after the first or second of them."""
    ids = count(1)
    spawn_after = rng.randint(0, min(1, spec.turns - 2)) if spec.subagents else None
    requests: list[Json] = []
    now, blocks = 0.0, list[int]()
    for turn, size in enumerate(_growth(spec, rng)):
        blocks = blocks + [next(ids) for _ in range(size - len(blocks))]
        last = turn == spec.turns - 1
        request = _request(spec, rng, now, blocks, first=turn == 0, last=last)
        requests.append(request)
        now += request["api_time"]
        if turn == spawn_after:
            subagent = _subagent(spec, rng, now + 0.01, ids, len(blocks))
            requests.append(subagent)
            now += 0.01 + subagent["duration_ms"] / 1e3
        now += request["think_time"]
    return {
        "id": f"session-{index:03d}",
        "models": [MODEL],
        "block_size": BLOCK_TOKENS,
        "hash_id_scope": "local",
        "tool_tokens": 2 * BLOCK_TOKENS,
        "system_tokens": BLOCK_TOKENS,
        "requests": requests,
    }


def _growth(spec: GeneratedTraces, rng: random.Random) -> list[int]:
    """Full blocks of each request of a root conversation, growing where there is room.

    A turn grows by at least two blocks while they last: one for the canned answer to the request
    before it, one for the tool result.
    """
    most = (spec.max_input_tokens - (BLOCK_TOKENS - 1)) // BLOCK_TOKENS
    sizes = [min(-(-spec.min_input_tokens // BLOCK_TOKENS) + rng.randint(0, 1), most)]
    for turn in range(1, spec.turns):
        room = (most - sizes[-1]) // (spec.turns - turn)
        sizes.append(sizes[-1] + (rng.randint(min(2, room), room) if room > 0 else 0))
    return sizes


def _request(
    spec: GeneratedTraces,
    rng: random.Random,
    at: float,
    blocks: Sequence[int],
    *,
    first: bool,
    last: bool,
) -> Json:
    """One streaming request over full ``blocks`` and a tail that no other request shares."""
    tail = rng.randint(1, BLOCK_TOKENS - 1)
    api_time = round(rng.uniform(0.2, 0.5), 3)
    return {
        "t": round(at, 3),
        "type": "s",
        "model": MODEL,
        "in": len(blocks) * BLOCK_TOKENS + tail,
        "out": rng.randint(spec.min_output_tokens, spec.max_output_tokens),
        "hash_ids": list(blocks),
        "input_types": ["text"] if first else ["tool_result"],
        "output_types": ["text"] if last else ["tool_use"],
        "stop": "end_turn" if last else "tool_use",
        "api_time": api_time,
        "think_time": round(rng.uniform(0.05, 0.25), 3),
        "ttft": round(api_time / 4, 3),
    }


def _subagent(
    spec: GeneratedTraces, rng: random.Random, at: float, ids: Iterator[int], parent: int
) -> Json:
    """A sub-agent: its own short context, requests of its own, over before the parent goes on."""
    start = max(4, parent // 2)
    blocks = [next(ids) for _ in range(start)]
    requests: list[Json] = []
    now = at
    for turn in range(SUBAGENT_REQUESTS):
        last = turn == SUBAGENT_REQUESTS - 1
        request = _request(spec, rng, now, blocks, first=turn == 0, last=last)
        requests.append(request)
        now += request["api_time"] + request["think_time"]
        blocks = blocks + [next(ids) for _ in range(2)]
    return {
        "t": round(at, 3),
        "type": "subagent",
        "agent_id": "agent-001",
        "subagent_type": "Explore",
        "duration_ms": round((now - at) * 1e3),
        "total_tokens": sum(r["in"] + r["out"] for r in requests),
        "tool_use_count": SUBAGENT_REQUESTS - 1,
        "status": "completed",
        "models": [MODEL],
        "tool_tokens": BLOCK_TOKENS,
        "system_tokens": BLOCK_TOKENS,
        "requests": requests,
    }
