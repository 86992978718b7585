"""The engine's options as command-line flags, shared by every command that takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnomon.cli.refusals import refuse

if TYPE_CHECKING:
    from gnomon.engine.errors import Refusal
    from gnomon.engine.options import EngineOptions

OPTIONS_PARAMETER = "options"


@dataclass(frozen=True)
class Flag:
    """One field of EngineOptions on the command line.

    Attributes:
        field: name of the field.
        kind: type that Typer parses.
        help: what it means.
        default: what the help shows; empty if the help says it. EngineOptions has the real one.
        spelling: the flag; the field's name with dashes if left out.
    """

    field: str
    kind: Any
    help: str
    default: str = ""
    spelling: str = ""

    @property
    def flag(self) -> str:
        """How the flag is written."""
        return self.spelling or "--" + self.field.replace("_", "-")


FLAGS = (
    Flag("dtype", str, "Dtype of weights and activations: auto, float32, bfloat16.", "auto"),
    Flag("load_format", str, "Weights of the checkpoint (auto) or random ones (dummy).", "auto"),
    Flag(
        "expert_weights",
        str,
        "Pack bf16 experts while loading: mxfp8, mxfp4 or nvfp4; as they are if left out.",
    ),
    Flag("linear_weights", str, "The same for attention, dense MLPs and shared experts."),
    Flag("seed", int, "Seed of requests that bring none.", "0"),
    Flag("max_model_len", int, "Most tokens of a request; the model's positions if left out."),
    Flag("max_num_seqs", int, "Most requests that run at a time.", "16"),
    Flag("max_num_batched_tokens", int, "Token budget of a step.", "2048"),
    Flag("kv_cache_dtype", str, "Cache of K and V: bf16, fp8, mxfp4, nvfp4 or fp32.", "bf16"),
    Flag("index_cache_dtype", str, "Cache of index keys; that of K and V if left out."),
    Flag("block_size", int, "Tokens a block; only the model's own block size is possible."),
    Flag(
        "enable_prefix_caching",
        bool,
        "Reuse the blocks of prompts that begin alike.",
        "on",
        "--enable-prefix-caching/--no-enable-prefix-caching",
    ),
    Flag(
        "kv_cache_memory_bytes",
        int,
        "Memory of the cache pools of a rank; if left out 512 MiB on a CPU, what is left on a GPU.",
    ),
    Flag("num_blocks", int, "Blocks of the cache; what the memory allows if left out."),
    Flag("host_cache_bytes", int, "Host memory that keeps pages too; 0 keeps none.", "0"),
    Flag("host_cache_mode", str, "Save pages once full (eager) or on eviction (lazy).", "eager"),
    Flag("gpu_memory_utilization", float, "Part of a GPU's memory that may be used.", "0.9"),
    Flag(
        "allow_shared_gpu",
        bool,
        "Start beside other processes on a GPU.",
        "off",
        "--allow-shared-gpu/--no-allow-shared-gpu",
    ),
    Flag("tensor_parallel_size", int, "GPUs that share each layer: 1, 2, 4 or 8.", "1"),
    Flag("decode_context_parallel_size", int, "Ranks that share a context's pages.", "1"),
    Flag("prefill_context_parallel_size", int, "Ranks that share a prompt's rows.", "1"),
    Flag("index_context_parallel_size", int, "Ranks that share the index keys.", "1"),
    Flag("sequence_parallel_size", int, "Ranks that exchange heads for rows.", "1"),
    Flag(
        "use_index_cache",
        bool,
        "Let sparse layers reuse the selection of an earlier one.",
        "off",
        "--use-index-cache/--no-use-index-cache",
    ),
    Flag("index_topk_freq", int, "With reuse: every n-th sparse layer selects.", "1"),
    Flag("index_topk_pattern", str, "With reuse: one letter a sparse layer; S reuses."),
    Flag("index_skip_topk_offset", int, "With reuse: first layers that always select.", "0"),
)


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
        asked = {flag.field: values.pop(flag.field) for flag in FLAGS}
        given = {name: value for name, value in asked.items() if value is not None}
        options, problems = parse_options(model, given)
        if options is None:
            refuse(problems, as_json=bool(values.get("as_json")))
        command(**{OPTIONS_PARAMETER: options}, **values)

    model = Annotated[str, typer.Argument(help="Checkpoint directory, or 'nano'.", metavar="MODEL")]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("model", keyword, annotation=model)]
    for flag in FLAGS:
        setting = typer.Option(flag.flag, help=flag.help, show_default=flag.default or False)
        option: Any = Annotated[flag.kind | None, setting]
        parameters.append(inspect.Parameter(flag.field, keyword, default=None, annotation=option))
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
