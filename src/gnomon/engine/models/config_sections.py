"""The groups of fields of a config.json, and the rules that span fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnomon.engine.models.config_fields import FieldReader
from gnomon.engine.models.config_layers import SPARSE, LayerConfig

TRANSFORMERS_TEXT_TYPE = "minimax_m3_vl_text"

_ONLY_VALUES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("attention_output_gate", (False,)),
    ("use_gemma_norm", (True,)),
    ("use_qk_norm", (True,)),
    ("qk_norm_type", ("per_head",)),
    ("scoring_func", ("sigmoid",)),
    ("use_routing_bias", (True,)),
    ("n_shared_experts", (1,)),
    ("attention_bias", (False,)),
    ("mlp_bias", (False,)),
    ("tie_word_embeddings", (False,)),
    ("rope_parameters.rope_type", ("default",)),
    (f"{SPARSE}.sparse_score_type", ("max",)),
)
"""Fields with one implemented value; absent means that value."""


_QUANT_METHODS = (
    "fp8",
    "mxfp8",
    "mxfp4",
    "nvfp4",
    "quark",
    "compressed-tensors",
    "modelopt",
    "modelopt_mixed",
    "gnomon",
)
"""Methods that may hold readable tensors; dtype and shape of each tensor decide."""

_SPARSE_KEYS = frozenset(
    {
        "use_sparse_attention",
        "sparse_num_index_heads",
        "sparse_index_dim",
        "sparse_block_size",
        "sparse_topk_blocks",
        "sparse_init_block",
        "sparse_local_block",
        "sparse_score_type",
        "sparse_attention_freq",
        "sparse_disable_index_value",
    }
)


def refuse_unsupported(read: FieldReader) -> None:
    """Note every setting that the model code does not implement."""
    for field, allowed in _ONLY_VALUES:
        value = read.find(field)
        if value is not None and value not in allowed:
            read.problem(f"{field} is {value!r}; only {allowed[0]!r} is implemented", field)
    act = read.find("hidden_act")
    # transformers writes "silu" for its own text class and computes SwiGLU-OAI all the same.
    silu_is_swiglu_oai = read.find("model_type") == TRANSFORMERS_TEXT_TYPE
    if act is not None and act != "swigluoai" and not (act == "silu" and silu_is_swiglu_oai):
        read.problem(f"hidden_act is {act!r}; only 'swigluoai' is implemented", "hidden_act")
    for field in ("rope_scaling", "sliding_window"):
        if read.find(field):
            read.problem(f"{field} is set; this engine does not implement it", field)
    _check_quantisation(read)
    sparse = read.find(SPARSE)
    if sparse is not None and not isinstance(sparse, Mapping):
        read.problem(f"{SPARSE} is {sparse!r}; it must be an object", SPARSE)
    elif sparse is not None:
        for key in sorted(set(sparse) - _SPARSE_KEYS):
            read.problem(f"{SPARSE}.{key} is not a known key; it would change nothing", SPARSE)


def _check_quantisation(read: FieldReader) -> None:
    """Refuse methods whose tensors would be misread; the files decide about all others."""
    given = read.find("quantization_config")
    if given is None:
        return
    method = given.get("quant_method") if isinstance(given, Mapping) else given
    if method not in _QUANT_METHODS:
        read.problem(
            f"quantization_config.quant_method is {method!r}; weights may be quantised as MXFP8, "
            f"MXFP4 or NVFP4, by one of {', '.join(_QUANT_METHODS)}",
            "quantization_config",
        )


def read_sizes(read: FieldReader) -> dict[str, Any]:
    """Widths and counts every layer shares."""
    return {
        "vocab_size": read.integer("vocab_size"),
        "hidden_size": read.integer("hidden_size"),
        "num_heads": read.integer("num_attention_heads"),
        "num_kv_heads": read.integer("num_key_value_heads"),
        "head_dim": read.integer("head_dim"),
        "rms_norm_eps": read.number("rms_norm_eps"),
        "max_position_embeddings": read.integer("max_position_embeddings"),
    }


def read_rope(read: FieldReader) -> dict[str, Any]:
    """Rotary width: the factor decides, and rotary_dim may only repeat what it says.

    transformers ignores ``rotary_dim`` and rotates the whole head when no factor is given; others
    read ``rotary_dim``. So a file in which they differ means different models to different readers.
    """
    theta = read.number("rope_theta", "rope_parameters.rope_theta")
    factor_names = ("partial_rotary_factor", "rope_parameters.partial_rotary_factor")
    head_dim, rotary = read.find("head_dim"), read.find("rotary_dim")
    if rotary is not None and rotary == head_dim:
        factor = read.number(*factor_names, default=1.0)
    else:
        factor = read.number(*factor_names)
    if not isinstance(head_dim, int) or not read.ok("head_dim", "partial_rotary_factor"):
        return {"rope_theta": theta, "rotary_dim": 0}
    if factor > 1:
        read.problem(
            f"partial_rotary_factor is {factor:g}; it is the rotating part of a head, at most 1",
            "partial_rotary_factor",
        )
        return {"rope_theta": theta, "rotary_dim": 0}
    width = int(head_dim * factor)
    if rotary is not None and rotary != width:
        read.problem(
            f"rotary_dim is {rotary!r}, but partial_rotary_factor {factor:g} of head_dim "
            f"{head_dim} is {width}: they must agree",
            "rotary_dim",
        )
    if width < 2 or width % 2:
        read.problem(
            f"partial_rotary_factor {factor:g} of head_dim {head_dim} rotates {width} dims; that "
            "must be an even number",
            "partial_rotary_factor",
        )
    return {"rope_theta": theta, "rotary_dim": width}


_INDEX_FIELDS: tuple[tuple[str, str, str, int], ...] = (
    # name here, released key, transformers key, value of a model without sparse layers
    ("num_index_heads", "sparse_num_index_heads", "index_n_heads", 0),
    ("index_dim", "sparse_index_dim", "index_head_dim", 0),
    ("block_size", "sparse_block_size", "index_block_size", 128),
    ("topk_blocks", "sparse_topk_blocks", "index_topk_blocks", 16),
)


def read_index(read: FieldReader, *, required: bool) -> dict[str, Any]:
    """The index branch; without sparse layers its fields may be absent."""
    found: dict[str, Any] = {}
    for name, released, transformers, unused in _INDEX_FIELDS:
        spellings = (f"{SPARSE}.{released}", transformers)
        if required or any(read.find(s) is not None for s in spellings):
            found[name] = read.integer(*spellings)
        else:
            found[name] = unused
    found["init_blocks"] = read.integer(f"{SPARSE}.sparse_init_block", default=0, minimum=0)
    found["local_blocks"] = read.integer(
        f"{SPARSE}.sparse_local_block", "index_local_blocks", default=1
    )
    return found


def read_mlp(read: FieldReader, layers: tuple[LayerConfig, ...]) -> dict[str, Any]:
    """Dense MLP and expert sizes; those of a kind that no layer has may be absent."""
    dense = any(layer.mlp == "dense" for layer in layers)
    moe = any(layer.mlp == "moe" for layer in layers)

    def size(needed: bool, *spellings: str) -> int:
        given = any(read.find(s) is not None for s in spellings)
        return read.integer(*spellings) if needed or given else 0

    return {
        "dense_intermediate_size": size(dense, "dense_intermediate_size"),
        "expert_intermediate_size": size(moe, "intermediate_size"),
        "shared_intermediate_size": size(moe, "shared_intermediate_size"),
        "num_experts": size(moe, "num_local_experts", "num_experts"),
        "num_experts_per_token": size(moe, "num_experts_per_tok"),
        "routed_scaling_factor": (read.number("routed_scaling_factor") if moe else 1.0),
        # No defaults for alpha and limit: plain SiLU in their place gives plausible, wrong text.
        "swiglu_alpha": read.number("swiglu_alpha"),
        "swiglu_limit": read.number("swiglu_limit"),
        "swiglu_beta": read.number("swiglu_beta", default=1.0),
    }


def id_list(value: Any) -> tuple[int, ...] | None:
    """Token ids given as one integer, a list of them or null; None if it is something else."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in ids):
        return None
    return tuple(ids)


def read_tokens(read: FieldReader) -> dict[str, Any]:
    """Special token ids and the declared weight dtype."""
    eos = id_list(read.find("eos_token_id"))
    if eos is None:
        read.problem(
            f"eos_token_id is {read.find('eos_token_id')!r}; it must be an id or a list of ids",
            "eos_token_id",
        )
    bos = id_list(read.find("bos_token_id"))
    if bos is None or len(bos) > 1:
        read.problem(
            f"bos_token_id is {read.find('bos_token_id')!r}; it must be one id", "bos_token_id"
        )
    return {
        "eos_token_ids": eos or (),
        "bos_token_id": bos[0] if bos else None,
        "checkpoint_dtype": str(read.find("dtype") or read.find("torch_dtype") or "unknown"),
    }


def check_across_fields(read: FieldReader, fields: Mapping[str, Any], *, has_sparse: bool) -> None:
    """Rules that span fields; a rule whose fields already had a problem is left out."""
    f = fields
    if read.ok("num_attention_heads", "num_key_value_heads") and f["num_heads"] % f["num_kv_heads"]:
        read.problem(
            f"num_attention_heads {f['num_heads']} is not a multiple of num_key_value_heads "
            f"{f['num_kv_heads']}"
        )
    if read.ok("num_local_experts", "num_experts_per_tok") and (
        f["num_experts_per_token"] > f["num_experts"]
    ):
        read.problem(
            f"num_experts_per_tok {f['num_experts_per_token']} exceeds num_local_experts "
            f"{f['num_experts']}"
        )
    for name in ("eos_token_ids", "bos_token_id"):
        ids = f[name] if isinstance(f[name], tuple) else (f[name],)
        for token in ids:
            if token is not None and read.ok("vocab_size") and token >= f["vocab_size"]:
                read.problem(f"{name} has id {token}, outside vocab_size {f['vocab_size']}")
    if has_sparse:
        _check_index(read, f)


def _check_index(read: FieldReader, f: Mapping[str, Any]) -> None:
    heads, kv_heads = f["num_index_heads"], f["num_kv_heads"]
    heads_ok = read.ok(f"{SPARSE}.sparse_num_index_heads", "num_key_value_heads")
    if heads_ok and heads != kv_heads:
        read.problem(
            f"the model has {heads} index heads for {kv_heads} key-value heads; each key-value "
            "head needs its own index head"
        )
    forced = f["init_blocks"] + f["local_blocks"]
    forced_ok = read.ok(
        f"{SPARSE}.sparse_topk_blocks",
        f"{SPARSE}.sparse_init_block",
        f"{SPARSE}.sparse_local_block",
    )
    if forced_ok and forced > f["topk_blocks"]:
        read.problem(
            f"{f['init_blocks']} init and {f['local_blocks']} local blocks do not fit in "
            f"sparse_topk_blocks {f['topk_blocks']}; forced blocks count towards it"
        )
    index_ok = read.ok(f"{SPARSE}.sparse_index_dim", "partial_rotary_factor", "rotary_dim")
    if index_ok and f["rotary_dim"] > f["index_dim"]:
        # transformers cuts cos and sin to the index width, which breaks the half-split pairing.
        read.problem(
            f"the rotary width {f['rotary_dim']} exceeds the index head dim {f['index_dim']}"
        )
