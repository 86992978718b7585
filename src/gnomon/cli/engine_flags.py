"""The engine's options as command-line flags, shared by every command that takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnomon.cli.refusals import refuse

if TYPE_CHECKING:
    from gnomon.engine.errors import Refusal
    from gnomon.engine.options import EngineOptions

OPTIONS_PARAMETER = "options"

_FLAGS: tuple[tuple[str, Any, str, str], ...] = (
    (
        "dtype",
        str | None,
        "--dtype",
        "Dtype of weights and activations: auto, float32 or bfloat16.",
    ),
    ("seed", int | None, "--seed", "Seed of requests that bring none."),
    (
        "max_model_len",
        int | None,
        "--max-model-len",
        "Most tokens of a request; the model's if left out.",
    ),
    ("max_num_seqs", int | None, "--max-num-seqs", "Most requests that run at a time."),
    ("max_num_batched_tokens", int | None, "--max-num-batched-tokens", "Token budget of a step."),
    (
        "kv_cache_dtype",
        str | None,
        "--kv-cache-dtype",
        "Cache of K and V: bf16, fp8, mxfp4, nvfp4, fp32.",
    ),
    (
        "index_cache_dtype",
        str | None,
        "--index-cache-dtype",
        "Cache of index keys; follows K and V.",
    ),
    (
        "block_size",
        int | None,
        "--block-size",
        "Tokens a block; only the model's own size is possible.",
    ),
    (
        "enable_prefix_caching",
        bool | None,
        "--enable-prefix-caching/--no-enable-prefix-caching",
        "Reuse the blocks of prompts that begin alike.",
    ),
    ("kv_cache_memory_bytes", int | None, "--kv-cache-memory-bytes", "Memory of the cache pools."),
    ("num_blocks", int | None, "--num-blocks", "Blocks of the cache; overrides the memory."),
    (
        "use_index_cache",
        bool | None,
        "--use-index-cache/--no-use-index-cache",
        "Let sparse layers reuse the selection of an earlier one.",
    ),
    (
        "index_topk_freq",
        int | None,
        "--index-topk-freq",
        "With reuse: every n-th sparse layer selects.",
    ),
    (
        "index_topk_pattern",
        str | None,
        "--index-topk-pattern",
        "With reuse: one letter a layer, S reuses.",
    ),
    (
        "index_skip_topk_offset",
        int | None,
        "--index-skip-topk-offset",
        "With reuse: first layers exempt.",
    ),
)
"""Field of EngineOptions, type, flag and help."""


def takes_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a Typer command the argument MODEL and the engine's flags.

    The command's parameter ``options: EngineOptions`` is replaced by them; its other parameters
    stay. Flags that are not given are left to the defaults of EngineOptions. Bad values end the
    command with status 2 and every problem (as JSON if the command has ``as_json`` and it is set).
    """
    signature = inspect.signature(command, eval_str=True, locals={"EngineOptions": object})
    own = [p for name, p in signature.parameters.items() if name != OPTIONS_PARAMETER]

    @wraps(command)
    def run(model: str, **values: Any) -> None:
        asked = {name: values.pop(name) for name, *_ in _FLAGS}
        given = {name: value for name, value in asked.items() if value is not None}
        options, problems = parse_options(model, given)
        if options is None:
            refuse(problems, as_json=bool(values.get("as_json")))
        command(**{OPTIONS_PARAMETER: options}, **values)

    model = Annotated[str, typer.Argument(help="Checkpoint directory, or 'nano'.", metavar="MODEL")]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("model", keyword, annotation=model)]
    for name, kind, flag, help_text in _FLAGS:
        setting = typer.Option(flag, help=help_text, show_default=False)
        option: Any = Annotated[kind, setting]
        parameters.append(inspect.Parameter(name, keyword, default=None, annotation=option))
    parameters += [p.replace(kind=keyword) for p in own]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    del run.__wrapped__  # Typer would read the command's own annotations through it
    return run


def parse_options(
    model: str, given: dict[str, Any]
) -> tuple[EngineOptions | None, tuple[Refusal, ...]]:
    """Validate flag values.

    Returns:
        The options, or None and one refusal for each bad value.
    """
    from pydantic import ValidationError

    from gnomon.engine.errors import Refusal
    from gnomon.engine.options import EngineOptions

    try:
        return EngineOptions(model=model, **given), ()
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            flag = "--" + str(problem["loc"][0]).replace("_", "-")
            message = problem["msg"].removeprefix("Value error, ")
            problems.append(Refusal("option", f"{flag}: {message}.", f"Change {flag}."))
        return None, tuple(problems)
