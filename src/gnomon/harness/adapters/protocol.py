"""What the harness must know about an engine to plan it, start it, believe it and read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gnomon.harness.errors import Problem
from gnomon.harness.nouns import ServerAddress

if TYPE_CHECKING:
    from gnomon.harness.recipes.memory import PoolRule
    from gnomon.harness.recipes.point import Point
    from gnomon.harness.recipes.serving import Serving

FlagValue = str | int | float | bool


@dataclass(frozen=True)
class Command:
    """A program to start.

    Attributes:
        argv: program and arguments.
        env: variables added to the inherited environment.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Readiness:
    """How a process says that it is ready.

    Attributes:
        port: where it listens.
        path: answers 200 once it can work; None means that an open port is enough.
        deadline_s: how long it may take.
    """

    port: int
    path: str | None
    deadline_s: float


@dataclass(frozen=True)
class Process:
    """One process of a deployment.

    Attributes:
        role: what it is (``server``, ``mooncake-master``, ``prefill-0``, ``router``).
        command: what to start.
        ready: when the next one may start.
        files: text of files that must exist first, by name; the command names them with
            ``{folder}`` in front.
    """

    role: str
    command: Command
    ready: Readiness
    files: Mapping[str, str]


@dataclass(frozen=True)
class Deployment:
    """Every process of a point, in the order of their start.

    Attributes:
        processes: side services first, what clients talk to last.
        address: where clients talk to.
    """

    processes: tuple[Process, ...]
    address: ServerAddress

    def of(self, role: str) -> Process:
        """The process with a role.

        Raises:
            KeyError: there is none.
        """
        for process in self.processes:
            if process.role == role:
                return process
        raise KeyError(role)


@dataclass(frozen=True)
class Ports:
    """Ports a deployment may use: every adapter counts up from its base and takes no fixed one.

    Attributes:
        base: first of a free range.
    """

    base: int

    def at(self, offset: int) -> int:
        """The port at an offset of the range."""
        return self.base + offset


@dataclass(frozen=True)
class Setting:
    """One thing the recipe asked for, and where the running server says what it really does.

    Attributes:
        name: for the check, as the recipe or the plan calls it.
        asked: the expected value, normalised to what the server reports.
        pointer: dotted path into the server's own description of itself.
    """

    name: str
    asked: FlagValue
    pointer: str


@dataclass(frozen=True)
class LogPattern:
    """A fact that an engine tells only in its log.

    Attributes:
        name: of the fact.
        pattern: regular expression with one group, the value.
        unit: of the value; empty for a word.
        per: who prints it: every rank its own, every data-parallel engine its own, or one line.
        required: whether its absence fails attestation.
    """

    name: str
    pattern: str
    unit: str
    per: Literal["rank", "engine", "server"]
    required: bool = True


@dataclass(frozen=True)
class EngineMetric:
    """One series of an engine's metrics page, typed so that it cannot be summed by mistake.

    Attributes:
        id: what it means here, the same for every engine (``prefix_cache_hits``).
        series: name on the page.
        kind: counters are differenced over the window, gauges are read.
        unit: of the value.
        per: whether each rank, each data-parallel engine or the whole server reports it. Replicas
            of one pool (``copy``) report the same number: they must agree and are never summed
            (SGLang's pool was published four times too large that way, InferenceX #3115).
        labels: that select the series.
    """

    id: str
    series: str
    kind: Literal["counter", "gauge"]
    unit: Literal["tokens", "requests", "fraction", "bytes", "seconds", "steps"]
    per: Literal["engine", "copy", "server"]
    labels: Mapping[str, str]


class EngineAdapter(Protocol):
    """One engine, as the harness knows it."""

    @property
    def name(self) -> str:
        """As recipes select it."""
        ...

    @property
    def health_path(self) -> str:
        """Answers 200 once the server can serve."""
        ...

    @property
    def info_path(self) -> str | None:
        """Where the server describes itself as JSON, or None if it cannot."""
        ...

    @property
    def log_patterns(self) -> tuple[LogPattern, ...]:
        """What only the log tells."""
        ...

    @property
    def metrics(self) -> tuple[EngineMetric, ...]:
        """The metrics page."""
        ...

    @property
    def starts_here(self) -> bool:
        """Whether ``gnomon run`` can start it on this machine."""
        ...

    def plan(self, model: str, flags: Mapping[str, FlagValue]) -> Command | None:
        """The command of the engine's own planner, which prints JSON; None if it has none."""
        ...

    def serve(self, point: Point, address: ServerAddress) -> Command:
        """The command of the server's main process."""
        ...

    def deploy(self, point: Point, address: ServerAddress, ports: Ports) -> Deployment:
        """Every process of the point.

        Raises:
            ValueError: it cannot be rendered; a sentence for the recipe's author.
        """
        ...

    def settings(self, point: Point, plan: Mapping[str, Any]) -> tuple[Setting, ...]:
        """What the running server must report; a setting it cannot report fails attestation."""
        ...

    def pool_rule(self, serving: Serving) -> PoolRule:
        """How it sizes its cache pool."""
        ...

    def refusals(self, point: Point) -> tuple[Problem, ...]:
        """What it is known to refuse or to get wrong, found without starting it."""
        ...
