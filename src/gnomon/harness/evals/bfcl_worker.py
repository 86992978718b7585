"""Runs inside bfcl-eval's own environment: asks the cases of a suite, then judges the answers.

Started by the harness as a program, never imported by it, and imports nothing of gnomon:

    python bfcl_worker.py PLAN.json

The model is registered with bfcl-eval's stock handlers. What is added changes no request: a
time-out and bounded retries in place of the client's endless ones, and a record of every HTTP
exchange. Asking and judging are two processes forked from this one (importing bfcl-eval takes
seconds): judging evaluates text that a model wrote, so it gets neither the API key nor unlimited
resources, and it still happens when asking had to be stopped.

Files, all below ``BFCL_PROJECT_ROOT``: ``cases.json`` (prompt, tools, accepted answers),
``exchanges.jsonl`` (one line when an HTTP request begins, one when it ends), ``result/``
(bfcl-eval's rows), ``answered/`` (the rows that are answers), ``score/`` (bfcl-eval's verdicts on
those), ``packages.json``, ``status.json`` (how the two processes ended).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Json = dict[str, Any]

ROOT = Path(os.environ.get("BFCL_PROJECT_ROOT", "."))
BACKOFF_S = 0.5
BACKOFF_MAX_S = 8.0
PACKAGES = ("bfcl-eval", "openai", "pydantic")
JUDGE_DEADLINE_S = 120.0
IMPORTED_ONCE = (
    "openai",
    "bfcl_eval.constants.model_config",
    "bfcl_eval._llm_response_generation",
    "bfcl_eval.eval_checker.eval_runner",
)


class CaseBudgetExhausted(Exception):
    """A case used up its time before an answer came."""


class Recorder:
    """Writes a line when a request begins and one when it ends, so that none goes uncounted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.local = threading.local()

    def begin_case(self, case: str, budget_s: float) -> None:
        """Tie what this thread sends from now on to a case."""
        self.local.case = case
        self.local.number = 0
        self.local.deadline = time.monotonic() + budget_s

    def begin_attempt(self) -> float:
        """Count an attempt; returns the seconds the case has left."""
        self.local.number += 1
        self.local.request = self.local.response = self.local.status = None
        self.local.started = time.monotonic()
        left = float(self.local.deadline - self.local.started)
        if left <= 0:
            self.local.number -= 1
            raise CaseBudgetExhausted("the case's time is used up")
        self._write({"event": "begin", "case": self.local.case, "number": self.local.number})
        return left

    def on_request(self, request: Any) -> None:
        """Event hook of the HTTP client: keep the body as sent."""
        self.local.request = {
            "path": request.url.path,
            "body": json.loads(request.content) if request.content else None,
        }

    def on_response(self, response: Any) -> None:
        """Event hook of the HTTP client: keep status and body as received."""
        self.local.status = response.status_code
        response.read()
        self.local.response = response.text[:200_000]

    def end_attempt(self, failure: str | None, error: str | None) -> None:
        """Write the line."""
        line = {
            "event": "end",
            "case": self.local.case,
            "number": self.local.number,
            "latency_s": round(time.monotonic() - self.local.started, 6),
            "status": self.local.status,
            "failure": failure,
            "error": error,
            "request": self.local.request,
            "response": self.local.response,
        }
        self._write(line)

    def _write(self, line: Json) -> None:
        with self._lock, self._path.open("a") as sink:
            sink.write(json.dumps(line) + "\n")


def failure_class(error: Exception) -> str:
    """The class of a failed attempt: timeout, http, connection or protocol."""
    openai = import_module("openai")
    if isinstance(error, openai.APITimeoutError):
        return "timeout"
    if isinstance(error, openai.APIStatusError):
        return "http"
    if isinstance(error, openai.APIConnectionError):
        return "connection"
    return "protocol"


def may_retry(error: Exception) -> bool:
    """Whether another attempt could end differently: what the SDK itself would retry."""
    openai = import_module("openai")
    if isinstance(error, openai.APIStatusError):
        return error.status_code in (408, 409, 429) or error.status_code >= 500
    return isinstance(error, openai.APIConnectionError)


def attempts(recorder: Recorder, plan: Json, call: Callable[[float], Any]) -> Any:
    """Make a request, again where that may help, within the case's time and number of retries."""
    number = 0
    while True:
        left = recorder.begin_attempt()
        try:
            answer = call(min(left, plan["request_timeout_s"]))
        except Exception as error:
            recorder.end_attempt(failure_class(error), f"{type(error).__name__}: {error}"[:2000])
            number += 1
            if number > plan["max_retries"] or not may_retry(error):
                raise
            time.sleep(min(BACKOFF_S * 2 ** (number - 1), BACKOFF_MAX_S))
        else:
            recorder.end_attempt(None, None)
            return answer


def handler_class(stock: Any, recorder: Recorder, plan: Json) -> Any:
    """A stock handler whose client times out and gives up, and which tells what it exchanges."""
    openai = import_module("openai")

    class Handler(stock):  # type: ignore[misc]
        def _build_client_kwargs(self) -> Json:
            hooks = {"request": [recorder.on_request], "response": [recorder.on_response]}
            client = openai.DefaultHttpxClient(event_hooks=hooks, trust_env=False)
            return {
                **super()._build_client_kwargs(),
                "max_retries": 0,
                "http_client": client,
            }

        def inference(self, test_entry: Json, *args: Any, **kwargs: Any) -> Any:
            recorder.begin_case(test_entry["id"], plan["case_timeout_s"])
            return super().inference(test_entry, *args, **kwargs)

        def generate_with_backoff(self, **kwargs: Any) -> Any:
            api = self.client
            resource = api.responses if plan["api"] == "responses" else api.chat.completions
            started = time.time()
            answer = attempts(
                recorder, plan, lambda timeout: resource.create(timeout=timeout, **kwargs)
            )
            return answer, time.time() - started

    return Handler


def register(plan: Json, recorder: Recorder | None) -> str:
    """Add the served model to bfcl-eval's registry and return its name there."""
    registry = import_module("bfcl_eval.constants.model_config")
    handlers = import_module("bfcl_eval.model_handler.api_inference.openai_completion")
    stock = handlers.OpenAICompletionsHandler
    if plan["api"] == "responses":
        responses = import_module("bfcl_eval.model_handler.api_inference.openai_response")
        stock = responses.OpenAIResponsesHandler
    name = f"gnomon-{plan['api']}"  # no underscore: the evaluator reads it as a slash
    registry.MODEL_CONFIG_MAPPING[name] = registry.ModelConfig(
        model_name=plan["model"],
        display_name=name,
        url="-",
        org="-",
        license="-",
        model_handler=handler_class(stock, recorder, plan) if recorder else stock,
        is_fc_model=True,
        underscore_to_dot=True,  # tools are sent with underscores in place of dots
    )
    return name


def write_cases(plan: Json) -> None:
    """Write prompt, tools and accepted answers of every case of the manifest."""
    utils = import_module("bfcl_eval.utils")
    known: dict[str, Json] = {}
    for category, ids in plan["cases"].items():
        entries = utils.load_dataset_entry(category, include_language_specific_hint=False)
        truths: dict[str, Any] = {}
        if not utils.is_relevance_or_irrelevance(category):
            truths = {t["id"]: t["ground_truth"] for t in utils.load_ground_truth_entry(category)}
        for entry in entries:
            if entry["id"] in ids:
                known[entry["id"]] = {
                    "category": category,
                    "prompt": entry["question"],
                    "tools": [function["name"] for function in entry["function"]],
                    "expected": truths.get(entry["id"]),
                }
    (ROOT / "cases.json").write_text(json.dumps(known, indent=1))


def ask(plan: Json) -> None:
    """Ask every case of the manifest once."""
    key = Path(plan["api_key_file"])
    os.environ["OPENAI_API_KEY"] = key.read_text()
    key.unlink()
    os.environ["OPENAI_BASE_URL"] = plan["base_url"]
    (ROOT / "test_case_ids_to_generate.json").write_text(json.dumps(plan["cases"]))
    name = register(plan, Recorder(ROOT / "exchanges.jsonl"))
    generation = import_module("bfcl_eval._llm_response_generation")
    generation.main(
        SimpleNamespace(
            model=[name],
            test_category=[],
            temperature=plan["temperature"],
            include_input_log=True,
            exclude_state_log=False,
            num_threads=plan["threads"],
            result_dir=None,
            run_ids=True,
            allow_overwrite=False,
        )
    )


def judge(plan: Json) -> None:
    """Let bfcl-eval judge the rows that are answers; a row with a traceback is none."""
    limit_resources()
    Path(plan["api_key_file"]).unlink(missing_ok=True)
    os.environ["OPENAI_API_KEY"] = "unused"  # the handlers demand one, also to judge
    utils = import_module("bfcl_eval.utils")
    name = register(plan, None)
    answered: list[str] = []
    for category in plan["cases"]:
        where = Path(utils.get_directory_structure_by_category(category))
        file = utils.get_file_name_by_category(category, is_result_file=True)
        source = ROOT / "result" / name / where / file
        lines = source.read_text().splitlines() if source.exists() else []
        kept = [line for line in lines if line.strip() and "traceback" not in json.loads(line)]
        if kept:
            target = ROOT / "answered" / name / where / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("".join(f"{line}\n" for line in kept))
            answered.append(category)
    if answered:
        runner = import_module("bfcl_eval.eval_checker.eval_runner")
        runner.main([name], answered, "answered", "score", partial_eval=True)


def follow_parent() -> None:
    """End this process when the one that forked it is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(70)

    threading.Thread(target=watch, daemon=True).start()


def limit_resources() -> None:
    """Bound what evaluated text can use up: processor time, memory, file size, core dumps."""
    resource = import_module("resource")
    for kind, amount in (
        (resource.RLIMIT_CPU, 600),
        (resource.RLIMIT_AS, 16 << 30),
        (resource.RLIMIT_FSIZE, 1 << 30),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (amount, amount))


def apart(work: Callable[[Json], None], plan: Json, deadline_s: float, harness: int) -> Json:
    """Do something in a forked process within a deadline; returns how it ended.

    The process is ended early when the harness, this one's parent, is gone.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            follow_parent()
            work(plan)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    end = time.monotonic() + deadline_s
    how = "exited"
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return {"how": how, "code": os.waitstatus_to_exitcode(status)}
        orphaned = os.getppid() != harness
        if how == "exited" and (orphaned or time.monotonic() > end):
            how = "orphaned" if orphaned else "deadline"
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def main() -> None:
    """Import once, ask in one process, judge in another."""
    harness = os.getppid()
    plan = json.loads(Path(sys.argv[1]).read_text())
    for module in IMPORTED_ONCE:
        import_module(module)
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    (ROOT / "packages.json").write_text(json.dumps(versions))
    write_cases(plan)
    status = {"ask": apart(ask, plan, plan["deadline_s"], harness)}
    (ROOT / "status.json").write_text(json.dumps(status))
    status["judge"] = apart(judge, plan, JUDGE_DEADLINE_S, harness)
    (ROOT / "status.json").write_text(json.dumps(status))


if __name__ == "__main__":
    main()
