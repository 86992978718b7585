"""The ``gnomon serve`` command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from gnomon.cli.engine_flags import takes_engine_options
from gnomon.cli.refusals import refuse

if TYPE_CHECKING:
    from gnomon.engine.options import EngineOptions


@takes_engine_options
def serve(
    options: EngineOptions,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Key that clients must send to /v1; repeat for more, none if left out."),
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="Name that clients use; repeat for more. MODEL if left out."),
    ] = None,
    tool_call_parser: Annotated[
        str,
        typer.Option(
            help="How the model writes tool calls: minimax_m3, minimax_m2, kimi_k2, kimi_k3, "
            "hermes or none."
        ),
    ] = "minimax_m3",
    reasoning_parser: Annotated[
        str,
        typer.Option(
            help="How the model writes reasoning: minimax_m3, minimax_m2, kimi_k2, kimi_k3, think, "
            "deepseek_r1 or none."
        ),
    ] = "minimax_m3",
    reasoning_format: Annotated[
        str,
        typer.Option(
            help="Where chat answers carry reasoning: field (reasoning_content), content (the "
            "model's own block) or both."
        ),
    ] = "field",
    max_body_bytes: Annotated[int, typer.Option(help="Longest request body.")] = 64 * 2**20,
    max_messages: Annotated[
        int, typer.Option(help="Most messages or input items of a request.")
    ] = 8192,
    max_tools: Annotated[int, typer.Option(help="Most tools of a request.")] = 1024,
    structured_max_text: Annotated[
        int | None,
        typer.Option(
            help="Most characters of a free string, and of reasoning, under structured output; the "
            "checkpoint's limit if left out."
        ),
    ] = None,
    structured_max_items: Annotated[
        int | None,
        typer.Option(help="The same for members of open lists and calls of a block."),
    ] = None,
    max_choices: Annotated[int, typer.Option(help="Most choices of a prompt: n.")] = 128,
    max_logprobs: Annotated[
        int, typer.Option(help="Most of the probable tokens told at each position.")
    ] = 20,
    max_open_requests: Annotated[
        int, typer.Option(help="Most requests open at a time, running and queued; more get a 429.")
    ] = 1024,
    max_requests_per_key: Annotated[
        int | None, typer.Option(help="The same for one API key; no limit if left out.")
    ] = None,
    max_queued_requests: Annotated[
        int | None,
        typer.Option(
            help="Most requests that wait for their first token; more get a 429. No limit of its "
            "own if left out."
        ),
    ] = None,
    max_queued_per_key: Annotated[
        int | None, typer.Option(help="The same for one API key; no limit if left out.")
    ] = None,
    request_timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds a request may take from its body to its last token; no limit if left out."
        ),
    ] = None,
    stall_timeout: Annotated[
        float,
        typer.Option(help="Seconds a client may leave its answer unread before it is aborted."),
    ] = 60,
    shutdown_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds that open requests may go on after SIGTERM before they are cut."
        ),
    ] = 5,
    heartbeat_timeout: Annotated[
        float,
        typer.Option(help="Seconds the engine core may give no sign of life; then /health is 503."),
    ] = 60,
    step_timeout: Annotated[
        float,
        typer.Option(help="Seconds a step of the engine core may take; then /health is 503."),
    ] = 600,
    max_stored_responses: Annotated[
        int, typer.Option(help="Most responses kept for previous_response_id; 0 keeps none.")
    ] = 1024,
    reasoning_key: Annotated[
        str | None,
        typer.Option(
            help="Secret of 16 characters or more under which clients carry encrypted_content; a "
            "new one at each start if left out."
        ),
    ] = None,
    log_format: Annotated[str, typer.Option(help="Format of the log: text or json.")] = "text",
    debug_state: Annotated[
        bool, typer.Option("--debug-state", help="Serve /debug/state and /debug/cache/flush.")
    ] = False,
) -> None:
    """Serve until SIGTERM or Ctrl-C; exit 2 if refused, 1 if the engine dies."""
    from pydantic import ValidationError

    from gnomon.engine.errors import EngineDead, EngineError, OptionsError, Refusal, StartupRefused
    from gnomon.engine.log_format import LogFormat, configure_log
    from gnomon.engine.serve.options import ServeOptions
    from gnomon.engine.serve.reasoning_format import ReasoningFormat
    from gnomon.engine.serve.server import serve as run_server

    if log_format not in get_args(LogFormat):
        refuse([Refusal("option", f"--log-format {log_format!r} is unknown.", "Use text or json.")])
    configure_log(log_format)
    try:
        run_server(
            ServeOptions(
                **{name: getattr(options, name) for name in type(options).model_fields},
                host=host,
                port=port,
                api_key=tuple(api_key or ()),
                served_model_name=tuple(served_model_name or ()),
                tool_call_parser=tool_call_parser,
                reasoning_parser=reasoning_parser,
                reasoning_format=cast(ReasoningFormat, reasoning_format),
                max_body_bytes=max_body_bytes,
                max_messages=max_messages,
                max_tools=max_tools,
                structured_max_text=structured_max_text,
                structured_max_items=structured_max_items,
                max_choices=max_choices,
                max_logprobs=max_logprobs,
                max_open_requests=max_open_requests,
                max_requests_per_key=max_requests_per_key,
                max_queued_requests=max_queued_requests,
                max_queued_per_key=max_queued_per_key,
                request_timeout_s=request_timeout,
                stall_timeout_s=stall_timeout,
                shutdown_timeout_s=shutdown_timeout,
                heartbeat_timeout_s=heartbeat_timeout,
                step_timeout_s=step_timeout,
                max_stored_responses=max_stored_responses,
                reasoning_key=reasoning_key,
                log_format=cast(LogFormat, log_format),
                debug_state=debug_state,
            )
        )
    except ValidationError as error:
        flags = [
            "--" + str(problem["loc"][0]).removesuffix("_s").replace("_", "-")
            for problem in error.errors()
        ]
        refuse(
            [
                Refusal("option", f"{flag}: {problem['msg']}.", f"Change {flag}.")
                for flag, problem in zip(flags, error.errors(), strict=True)
            ]
        )
    except StartupRefused as error:
        refuse(error.refusals)
    except OptionsError as error:
        refuse([Refusal("option", f"{error}.", "")])
    except EngineDead as error:
        typer.echo(f"the engine died: {error}", err=True)
        raise typer.Exit(1) from None
    except EngineError as error:
        typer.echo(f"cannot serve: {error}", err=True)
        raise typer.Exit(1) from None


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(help="Serve a model over an OpenAI-compatible HTTP API.")(serve)
