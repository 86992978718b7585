"""Asking the engine's own planner whether a recipe fits, without starting the engine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon.harness.adapters.gnomon import recipe_path
from gnomon.harness.adapters.protocol import Command, EngineAdapter, FlagValue
from gnomon.harness.cancel import CancelToken
from gnomon.harness.errors import Problem

_OPTION = re.compile(r"--([a-z][a-z0-9-]+)")
_POLL_S = 0.05


@dataclass(frozen=True)
class PlanReport:
    """What the planner said.

    Attributes:
        command: how it was asked.
        ok: whether the plan can run.
        problems: the planner's refusals, as problems of the recipe.
        plan: its numbers (pools, blocks, bytes), as the engine names them.
        model_dir: the checkpoint that the model's name stands for, None if it does not say.
    """

    command: Command
    ok: bool
    problems: tuple[Problem, ...]
    plan: Mapping[str, Any]
    model_dir: Path | None = None


def check_plan(
    adapter: EngineAdapter,
    model: str,
    flags: Mapping[str, FlagValue],
    deadline_s: float,
    cancel: CancelToken,
) -> PlanReport:
    """Run the engine's planner and read its answer.

    Args:
        adapter: of the engine.
        model: checkpoint path or name.
        flags: that are valid on their own.
        deadline_s: the planner is killed after this long, and that is a problem too.
        cancel: ends it early.

    Raises:
        RunCancelled: the token was set.
    """
    command = adapter.plan(model, flags)
    if command is None:
        return PlanReport(Command((), {}), True, (), {})
    try:
        code, out, err = _run(command, deadline_s, cancel)
    except TimeoutError:
        problem = Problem(
            "deadlines.plan_s",
            f"the planner did not answer within {deadline_s:g} s.",
            "Raise it, or find out what keeps the planner busy.",
        )
        return PlanReport(command, False, (problem,), {})
    answer = _last_json(out)
    if answer is None:
        said = _last_line(err) or _last_line(out) or "nothing"
        problem = Problem(
            "model.path",
            f"the planner cannot read {model!r} (exit code {code}): {said}",
            "Give a checkpoint directory or a name that `gnomon plan` accepts.",
        )
        return PlanReport(command, False, (problem,), {})
    refusals = tuple(_problem(item) for item in answer.get("refusals") or ())
    ok = bool(answer.get("ok")) and code == 0 and not refusals
    if not ok and not refusals:
        said = _last_line(err) or "no reason given"
        refusals = (Problem("engine", f"the planner refuses (exit code {code}): {said}", ""),)
    where = answer.get("model_path")
    model_dir = Path(where) if isinstance(where, str) else None
    return PlanReport(command, ok, refusals, answer.get("plan") or {}, model_dir)


def _problem(refusal: Mapping[str, Any]) -> Problem:
    message, remedy = str(refusal.get("message", "")), str(refusal.get("remedy", ""))
    path = "engine.flags"
    for option in _OPTION.findall(f"{message} {remedy}"):
        named = recipe_path(option.removeprefix("no-").replace("-", "_"))
        if named is not None:
            path = named
            break
    return Problem(path, message, remedy)


def _run(command: Command, deadline_s: float, cancel: CancelToken) -> tuple[int, str, str]:
    """Exit code and output of a short program in its own process group."""
    process = subprocess.Popen(
        command.argv,
        env={**os.environ, **command.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    end = time.monotonic() + deadline_s
    try:
        while True:
            try:
                out, err = process.communicate(timeout=_POLL_S)
                return process.returncode, out, err
            except subprocess.TimeoutExpired:
                cancel.check()
                if time.monotonic() > end:
                    raise TimeoutError from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _last_json(text: str) -> dict[str, Any] | None:
    start = text.find("{")
    if start < 0:
        return None
    try:
        answer = json.loads(text[start:])
    except json.JSONDecodeError:
        return None
    return answer if isinstance(answer, dict) else None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
