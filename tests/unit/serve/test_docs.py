"""The documents name every field, endpoint, error code, metric and option that there is."""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path

import httpx
import pytest
import typer.main
from tests.clients.servers import scripted_server

from gnomon.cli.main import build_app as build_cli
from gnomon.engine.models.loader import resolve_model
from gnomon.engine.runner.messages import EngineStats
from gnomon.engine.serve import served as served_module
from gnomon.engine.serve.metrics import Metrics
from gnomon.engine.serve.options import ServeOptions
from gnomon.engine.serve.protocol.chat import ChatRequest
from gnomon.engine.serve.protocol.common import Body, SamplingFields
from gnomon.engine.serve.protocol.completions import CompletionRequest
from gnomon.engine.serve.protocol.messages import CountTokensRequest, MessagesRequest
from gnomon.engine.serve.protocol.responses import ResponsesRequest
from gnomon.engine.serve.protocol.tokens import DetokenizeRequest, TokenizeRequest

DOCUMENT = Path(__file__).parents[3] / "docs" / "api.md"
COMMON = "Fields of every generating endpoint"


def documented(heading: str) -> dict[str, str]:
    """Field to class, of one section of the document."""
    section = re.split(r"^## ", DOCUMENT.read_text(), flags=re.MULTILINE)
    body = next(part for part in section if part.startswith(heading + "\n"))
    rows = [line.split(" | ") for line in body.splitlines() if line.startswith("| `")]
    return {name: row[1].strip() for row in rows for name in re.findall(r"`(\w+)`", row[0])}


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("`POST /v1/chat/completions`", ChatRequest),
        ("`POST /v1/responses`", ResponsesRequest),
        ("`POST /v1/completions`", CompletionRequest),
        ("`POST /v1/messages`", MessagesRequest),
        ("`POST /v1/messages/count_tokens`", CountTokensRequest),
        ("`POST /tokenize`", TokenizeRequest),
        ("`POST /detokenize`", DetokenizeRequest),
    ],
)
def test_every_field_is_documented(heading: str, model: type[Body]) -> None:
    common = documented(COMMON) if issubclass(model, SamplingFields) else {}
    found = {**common, **documented(heading)}
    real = dict.fromkeys(model.model_fields, "supported")
    real |= dict.fromkeys(model.ACCEPTED, "accepted")
    real |= dict.fromkeys(model.NEUTRAL, "neutral only")
    assert found == real


SERVING = DOCUMENT.parent / "guides" / "serving.md"
SERVE = Path(served_module.__file__).parent


def table(text: str, first: str) -> list[list[str]]:
    """Cells of the rows of the table whose header begins with ``first``."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {first} |"):
            break
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows


def stats() -> EngineStats:
    return EngineStats(**dict.fromkeys(EngineStats.__struct_fields__, 1))


def test_every_metric_is_documented_with_its_kind_and_unit() -> None:
    async def render() -> str:
        return Metrics().render(stats()).decode()

    rendered = asyncio.run(render())
    kinds = dict(re.findall(r"^# TYPE gnomon:(\w+) (\w+)$", rendered, re.MULTILINE))
    labels = dict(re.findall(r"^gnomon:(\w+)\{(\w+)=", rendered, re.MULTILINE))
    labels = {name: label for name, label in labels.items() if not name.endswith("_bucket")}
    rows = table(SERVING.read_text(), "Metric")
    assert {row[0].strip("`") for row in rows} == {
        f"{name}{{{labels[name]}}}" if name in labels else name for name in kinds
    }
    for name, kind, unit, what in rows:
        plain = name.strip("`").split("{")[0]
        assert kinds[plain] == kind
        assert (unit == "seconds") == plain.removesuffix("_total").endswith("_seconds")
        assert unit
        assert what
        assert plain.endswith("_total") == (kind == "counter")


def codes() -> set[str]:
    """Every error code in the server's code."""
    found = {"invalid_value"}  # what a 400 has unless it says otherwise
    for path in SERVE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call):
                continue
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            values = [word.value for word in call.keywords if word.arg == "code"]
            values += call.args[2:3] if name == "bad_request" else []
            found |= {v.value for v in values if isinstance(v, ast.Constant) and v.value}
    return found


def test_every_error_code_is_documented() -> None:
    rows = table(DOCUMENT.read_text(), "Status")
    assert {code for row in rows for code in re.findall(r"`(\w+)`", row[1])} == codes()
    assert all(row[0].isdigit() and row[2] and row[3] for row in rows)


def test_every_endpoint_is_documented(tmp_path: Path) -> None:
    with scripted_server(resolve_model("nano"), debug_state=True) as server:
        document = httpx.get(f"{server.url}/openapi.json").json()
    real = {f"{method.upper()} {path}" for path, methods in document["paths"].items()
            for method in methods}  # fmt: skip
    rows = [row[0] for row in table(DOCUMENT.read_text(), "Endpoint")]
    assert set(re.findall(r"`([^`]+)`", " ".join(rows))) == real | {"GET /openapi.json"}


def test_every_option_is_reported_by_the_server_and_has_a_flag() -> None:
    fields = set(ServeOptions.model_fields)
    with scripted_server(
        resolve_model("nano"), api_key=("a very secret key",), reasoning_key="another secret key"
    ) as server:
        told = httpx.get(f"{server.url}/server_info")
    assert set(told.json()["options"]) == fields
    assert "secret" not in told.text
    assert told.json()["options"]["api_key"] is True
    assert told.json()["facts"]["speculation"] == "none"
    command = typer.main.get_command(build_cli()).commands["serve"]  # type: ignore[attr-defined]
    flags = {parameter.name for parameter in command.params} - {"help"}
    assert flags == {name.removesuffix("_s") for name in fields}
