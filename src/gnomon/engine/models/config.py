"""What a MiniMax-M3-family text model is: parsed from config.json, no torch.

Two spellings are read: that of the released checkpoints (``sparse_attention_config``,
``moe_layer_freq``, flat rope keys) and that of transformers' ``minimax_m3_vl`` (``layer_types``,
``mlp_layer_types``, ``rope_parameters``, ``index_*``). Both may be nested under ``text_config``.
A field given in two ways must agree with itself; anything the model code does not implement is
refused. See docs/design/model.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gnomon.engine.errors import CheckpointError, ModelConfigError
from gnomon.engine.models.config_fields import FieldReader
from gnomon.engine.models.config_layers import LayerConfig, read_layers
from gnomon.engine.models.config_sections import (
    TRANSFORMERS_TEXT_TYPE,
    check_across_fields,
    id_list,
    read_index,
    read_mlp,
    read_rope,
    read_sizes,
    read_tokens,
    refuse_unsupported,
)
from gnomon.engine.models.reuse import SelectionReuse
from gnomon.engine.options import EngineOptions

__all__ = ["ARCHITECTURES", "LayerConfig", "ModelConfig", "load_config", "parse_config"]

ARCHITECTURES = (
    "MiniMaxM3SparseForConditionalGeneration",
    "MiniMaxM3SparseForCausalLM",
    "MiniMaxM3VLForCausalLM",
)
"""Classes whose text model this is. M3 and M3.1 share them; the config's lists tell them apart."""

_MOST_LAYERS = 4096  # far beyond any model; a corrupt count must not become a huge list


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A MiniMax-M3-family text model.

    Attributes:
        rotary_dim: leading dims of a head that rotate.
        num_index_heads: query heads of the index branch, equal to ``num_kv_heads``.
        block_size: tokens a sparse block, which is also a cache page and a scheduler block.
        topk_blocks: most blocks a row keeps, forced ones included.
        init_blocks: leading blocks always kept.
        local_blocks: last visible blocks always kept, the row's own among them.
        expert_intermediate_size: width of one routed expert.
        eos_token_ids: ids that end a generation, of config.json and generation_config.json.
        checkpoint_dtype: dtype the file declares for its weights.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
    num_index_heads: int
    index_dim: int
    block_size: int
    topk_blocks: int
    init_blocks: int
    local_blocks: int
    dense_intermediate_size: int
    expert_intermediate_size: int
    shared_intermediate_size: int
    num_experts: int
    num_experts_per_token: int
    routed_scaling_factor: float
    swiglu_alpha: float
    swiglu_limit: float
    swiglu_beta: float
    layers: tuple[LayerConfig, ...]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    checkpoint_dtype: str

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layers)

    @property
    def reuses_selection(self) -> bool:
        """Whether any layer reuses another's selection."""
        return any(layer.reuses_selection for layer in self.layers)


def parse_config(raw: Mapping[str, Any], reuse: SelectionReuse | None = None) -> ModelConfig:
    """Turn the content of a config.json into a :class:`ModelConfig`.

    Args:
        raw: the whole file, with or without ``text_config``.
        reuse: selection reuse to use instead of what the file says about it.

    Raises:
        ModelConfigError: naming every field that is missing, contradictory or unsupported.
    """
    text = raw.get("text_config")
    if text is not None and not isinstance(text, Mapping):
        raise ModelConfigError(f"text_config is {text!r}; it must be an object")
    read = FieldReader(raw) if text is None else FieldReader(text, raw)
    architecture = _architecture(read)
    refuse_unsupported(read)
    num_layers = read.integer("num_hidden_layers", maximum=_MOST_LAYERS)
    layers = read_layers(read, num_layers, reuse)
    has_sparse = any(layer.attention == "sparse" for layer in layers)
    fields: dict[str, Any] = {
        **read_sizes(read),
        **read_rope(read),
        **read_index(read, required=has_sparse),
        **read_mlp(read, layers),
        **read_tokens(read),
    }
    check_across_fields(read, fields, has_sparse=has_sparse)
    if read.problems:
        listed = "\n".join(f"  - {p}" for p in read.problems)
        raise ModelConfigError(f"the model's config.json cannot be used:\n{listed}")
    return ModelConfig(architecture=architecture, layers=layers, **fields)


def load_config(path: Path | str, options: EngineOptions | None = None) -> ModelConfig:
    """Read the config.json of a checkpoint directory.

    Selection reuse is taken from ``options`` if they turn it on, else from the file. End tokens of
    generation_config.json are added to those of config.json.

    Raises:
        CheckpointError: the directory or the file is not there or not JSON.
        ModelConfigError: see :func:`parse_config`.
    """
    folder = Path(path)
    raw = read_json_object(folder, "config.json", required=True)
    config = parse_config(raw, None if options is None else reuse_of_options(options))
    generation = read_json_object(folder, "generation_config.json", required=False)
    extra = id_list(generation.get("eos_token_id"))
    if extra is None:
        raise ModelConfigError(
            f"eos_token_id of {folder / 'generation_config.json'} is "
            f"{generation['eos_token_id']!r}; it must be an id or a list of ids"
        )
    ids = tuple(dict.fromkeys((*config.eos_token_ids, *extra)))
    return config if ids == config.eos_token_ids else replace(config, eos_token_ids=ids)


def read_json_object(folder: Path, name: str, *, required: bool) -> dict[str, Any]:
    """Read a JSON object of a checkpoint directory; {} if it is absent and not required.

    Raises:
        CheckpointError: saying what is wrong with the directory or the file.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise CheckpointError(
            f"{folder} {what}; give a directory that holds config.json and *.safetensors"
        )
    file = folder / name
    if not file.is_file():
        if not required:
            return {}
        raise CheckpointError(f"{folder} has no {name}; it is not a model checkpoint")
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} must hold a JSON object, not a {type(value).__name__}")
    return value


def reuse_of_options(options: EngineOptions) -> SelectionReuse | None:
    """Selection reuse as the options ask for it; None if they leave it to the config.

    Raises:
        ModelConfigError: options of reuse are set while it is off.
    """
    reuse = SelectionReuse(
        freq=options.index_topk_freq,
        pattern=options.index_topk_pattern,
        skip_offset=options.index_skip_topk_offset,
    )
    if options.use_index_cache:
        return reuse
    if reuse != SelectionReuse():
        raise ModelConfigError(
            "index_topk_freq, index_topk_pattern and index_skip_topk_offset change nothing unless "
            "use_index_cache is on; turn it on or leave them out"
        )
    return None


def _architecture(read: FieldReader) -> str:
    """The class the file names; the outer one of a checkpoint with a vision tower."""
    named = read.scopes[-1].get("architectures") or read.scopes[0].get("architectures") or []
    known = [name for name in ARCHITECTURES if isinstance(named, list) and name in named]
    if known:
        return str(known[0])
    model_type = read.scopes[-1].get("model_type")
    if not named and model_type in ("minimax_m3_vl", TRANSFORMERS_TEXT_TYPE):
        return ARCHITECTURES[0] if model_type == "minimax_m3_vl" else ARCHITECTURES[2]
    read.problem(
        f"architectures is {named!r}; this engine serves {', '.join(ARCHITECTURES)}",
        "architectures",
    )
    return ARCHITECTURES[0]
