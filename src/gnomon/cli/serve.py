"""The ``gnomon serve`` command."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

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
        str | None, typer.Option(help="Key that clients must send to /v1; none if left out.")
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
) -> None:
    """Serve until SIGTERM or Ctrl-C; exit 2 if refused, 1 if the engine dies."""
    from pydantic import ValidationError

    from gnomon.engine.errors import EngineDead, EngineError, OptionsError, Refusal, StartupRefused
    from gnomon.engine.serve.options import ServeOptions
    from gnomon.engine.serve.server import serve as run_server

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        run_server(
            ServeOptions(
                **{name: getattr(options, name) for name in type(options).model_fields},
                host=host,
                port=port,
                api_key=api_key,
                served_model_name=tuple(served_model_name or ()),
                tool_call_parser=tool_call_parser,
                reasoning_parser=reasoning_parser,
            )
        )
    except ValidationError as error:
        flags = ["--" + str(problem["loc"][0]).replace("_", "-") for problem in error.errors()]
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
