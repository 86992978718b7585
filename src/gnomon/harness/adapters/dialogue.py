"""What the clients of a point make of reasoning, and what the chat template is told.

A reasoning parser moves the model's thoughts from an answer's content into a field of their own. A
client that sends only the content back loses them: the model forgets its plan at every turn, and a
multi-turn score falls to nothing (InferenceX #2423). So the parser is a matter of the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gnomon.harness.recipes.point import Point

RoundTrip = Literal["field", "content", "discarded"]

ROUND_TRIPS: Mapping[str, RoundTrip] = {
    "aiperf": "discarded",  # its assistant turns are recorded ones
    "bfcl": "field",  # sends the field back, through either API
    "mini-swe-agent": "content",
    "lm-eval": "discarded",  # single turns
}
"""Which part of an answer with reasoning a client sends back: the field, only the content, or no
part of it at all."""

_LOAD_CLIENT = "aiperf"


def clients_of(point: Point) -> tuple[str, ...]:
    """Clients that will talk to the point's server, by the names of `ROUND_TRIPS`."""
    load = (_LOAD_CLIENT,) if point.replay is not None or point.scenario is not None else ()
    suites = {spec.suite.split("_")[0] for spec in point.evals}
    return (*load, *sorted(suites))


def reasoning_parser(point: Point) -> str | None:
    """The reasoning parser to serve with: none if a client would lose what it moves away.

    Raises:
        KeyError: nobody has looked what a client of the point sends back.
    """
    if point.model.parsers is None:
        return None
    kept = all(ROUND_TRIPS[client] != "content" for client in clients_of(point))
    return point.model.parsers.reasoning if kept else None


def template_kwargs(point: Point) -> Mapping[str, Any] | None:
    """What the chat template is given by default, so that the mode is the golden curve's."""
    mode = point.drafted.thinking if point.drafted is not None else "enabled"
    return point.model.thinking_kwargs.get(mode)
