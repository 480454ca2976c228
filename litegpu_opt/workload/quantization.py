"""The formats that a quantised checkpoint asks for.

They are read from `quantization_config` and from an `hf_quant_config.json`. Bits of a number, with
its share of scales and zero points:

| method | bits | source |
|---|---|---|
| fp8, a scale per tensor or row | 8 | the scales of rows and tensors are neglected |
| fp8, blocks of r x c | 8 + 32/(r c) | DeepSeek-V3, arXiv 2412.19437; vLLM: fp32 scales |
| mxfp4, mxfp8 | 4 + 8/32, 8 + 8/32 | OCP Microscaling 1.0 |
| nvfp4 | 4 + 8/16 | NVIDIA; ModelOpt's effective_bits is 4.5 |
| gptq, awq: b bits, groups of g | b + (16 + b)/g | AutoGPTQ, AutoAWQ: fp16 scales, packed zeros |
| the same, g = -1 | b | one scale per column, neglected |
| bitsandbytes, 8 bits | 8 | one scale per row, neglected |
| bitsandbytes, 4 bits | 4 + 32/64 | bitsandbytes: blocks of 64, fp32 scales |
| the same, double quantisation | 4 + 8/64 + 32/(64 * 256) | QLoRA, arXiv 2305.14314 |
| compressed-tensors, groups of g | b + 16/g, asymmetric b + (16 + b)/g | its source |
| ModelOpt AWQ, groups of g | 4 + 16/g | the 16 bits are recalled |

Neglected scales and permutations (`g_idx`)
are below 0.5 % of a matrix of 4096 rows.

Parts: attention, MLP and experts; with MXFP4 the experts only. compressed-tensors and ModelOpt also
convert the LM head unless it is excluded, GPTQ and AWQ with `lm_head: true`, the others never. The
embedding is never converted, nor a head that is tied to it. A router is only converted where it is
named as a target: ModelOpt leaves `*router*` and `*mlp.gate*` by default, several routers are no
linear module, and files that leave them often do not list them (nvidia/DeepSeek-V3.1-NVFP4).
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from .config_file import ConfigFile, short
from .formats import BLOCK_PARTS, FORMATS, Format, scaled
from .quantized_modules import MOST_PATTERNS, Pattern, Rule, formats_by_part, parse_pattern


Quantization = tuple[tuple[tuple[str, Format], ...], Format | None]
"""Part of the model -> format of its matrices, where quantised; format of the KV cache."""

TARGETED_PARTS = (*BLOCK_PARTS, "router", "head")
GROUP_SIZES = range(1, 2**16)
KV_FORMATS = {"FP8": "fp8", "INT8": "int8", "NVFP4": "nvfp4"}
_COMMON_NAMES = {
    "fp8-block128x128": "fp8-block128",
    "fp4-g16": "nvfp4",
    "nvfp4-g16": "nvfp4",
    "fp4-g32": "mxfp4",
}
_TEXT_MODELS = ("text_config", "llm_config", "language_config")


def read_quantization(config: ConfigFile, beside: ConfigFile | None) -> Quantization:
    """What a checkpoint's files say about its formats.

    **Arguments:**

    - `config`: the `config.json`, or the part of it with the language model.
    - `beside`: the `hf_quant_config.json` of the same folder, if there is one.

    **Raises:** `UserError` with file and key, also if the two files differ.
    """
    places = [key for key in _TEXT_MODELS if isinstance(config.fields.get(key), dict)]
    text = config.nested(places[0]) if places else config
    model = replace(text, fields={**config.fields, **text.fields}) if places else config
    found = []
    for place in (config, text):
        if place.fields.get("quantization_config") not in (None, {}):
            found.append(_read(place.nested("quantization_config"), model))
            break
    if beside is not None:
        _only(beside, "producer quant_method quantization")
        _required(beside, "quantization")
        found.append(_read_modelopt(beside.nested("quantization"), model))
        if found[0] != found[-1]:
            differ = f"{_described(found[1])}, but in {config.path}: {_described(found[0])}"
            raise beside.error("quantization", differ, allowed="the same in both files")
    return found[0] if found else ((), None)


def _described(quantization: Quantization) -> str:
    parts, kv = quantization
    stated = [f"{part} {item.name}" for part, item in parts] or ["nothing quantised"]
    return ", ".join([*stated, f"KV cache {kv.name}" if kv else "KV cache not quantised"])


# --- checked access to one object of a file -----------------------------------------------------


def _required(section: ConfigFile, key: str) -> Any:
    if section.fields.get(key) is None:
        raise section.error(key, "missing")
    return section.fields[key]


def _one_of(section: ConfigFile, key: str, allowed: Sequence[Any], default: Any = None) -> Any:
    """A value of the same type as those in `allowed`; `default` is recorded where it is used."""
    value = section.fields.get(key)
    if value is None and default is not None:
        section.assume(f"{section.prefix}{key} = {json.dumps(default)}")
        return default
    if type(value) is not type(allowed[0]) or value not in allowed:
        what = "missing" if value is None else f"{short(value)} is not understood"
        ends = isinstance(allowed, range) and len(allowed) > 1
        listed = f"{allowed[0]} to {allowed[-1]}" if ends else ", ".join(map(str, allowed))
        raise section.error(key, what, listed)
    return value


def _only(section: ConfigFile, *known: str) -> None:
    """Refuse fields that are switched on and not known to the method."""
    names = {name for text in known for name in text.split()}
    for key, value in section.fields.items():
        if key not in names and value not in (None, False, {}, []):
            raise section.error(key[:60], "not understood here, and may change sizes")


def _patterns(section: ConfigFile, *keys: str) -> tuple[Pattern, ...]:
    """The module patterns of some lists."""
    found: dict[str, str] = {}
    for key in keys:
        texts = section.fields.get(key) or []
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise section.error(key, f"{short(texts)} is not understood", "a list of module names")
        found |= dict.fromkeys(texts, key)
    patterns = tuple(parse_pattern(text, section, key) for text, key in found.items())
    if sum(pattern.regex is not None for pattern in patterns) > MOST_PATTERNS:
        raise section.error(keys[0], f"more than {MOST_PATTERNS} patterns besides plain names")
    return patterns


# --- formats ------------------------------------------------------------------------------------


def _format(
    kind: str, block: Sequence[int] = (), scale_bits: int = 0, *, eight_bit_math: bool = False
) -> Format:
    """A format by its kind (`int4`, `fp8`) and the numbers that share a scale: (g) or (r, c)."""
    name = kind
    if block:
        name += f"-g{block[0]}" if len(block) == 1 else f"-block{block[0]}x{block[1]}"
    name = _COMMON_NAMES.get(name, name)
    if eight_bit_math != (kind == "fp8"):
        name += "-a8" if eight_bit_math else "-a16"
    name = name.removesuffix("-a16") if kind != "fp8" else name
    size = math.prod(block)
    return scaled(
        name, int(kind[-1]), scale_bits=scale_bits, block=size, eight_bit_math=eight_bit_math
    )


def _block(section: ConfigFile, key: str) -> tuple[int, ...]:
    """Rows and columns that share a scale."""
    value = section.fields[key]
    if not (isinstance(value, list) and len(value) == 2) or not all(
        type(size) is int and size in GROUP_SIZES for size in value
    ):
        raise section.error(key, f"{short(value)} is not a block", "two sizes, each 1 to 65535")
    return tuple(value)


def _group_size(section: ConfigFile, default: int | None = None) -> int | None:
    """Numbers that share a scale; `None`: a whole column, which files write as -1."""
    value = section.fields.get("group_size")
    if type(value) is int and value == -1:
        return None
    return _one_of(section, "group_size", GROUP_SIZES, default)


# --- methods ------------------------------------------------------------------------------------


def _read(section: ConfigFile, model: ConfigFile) -> Quantization:
    if section.fields.get("quant_method") is None and "quant_algo" in section.fields:
        return _read_modelopt(section, model)  # old versions of ModelOpt leave the method out
    return METHODS[_one_of(section, "quant_method", tuple(METHODS))](section, model)


def _read_fp8(section: ConfigFile, model: ConfigFile) -> Quantization:
    _only(
        section,
        "quant_method weight_block_size modules_to_not_convert ignored_layers activation_scheme",
        "fmt scale_fmt",  # without effect on sizes
    )
    _one_of(section, "activation_scheme", ("dynamic", "static"), "dynamic")
    new = FORMATS["fp8"]
    if section.fields.get("weight_block_size") is not None:
        new = _format("fp8", _block(section, "weight_block_size"), 32, eight_bit_math=True)
    excluded = _patterns(section, "modules_to_not_convert", "ignored_layers")
    return formats_by_part(model, [Rule(new)], excluded, BLOCK_PARTS), None


def _read_mxfp4(section: ConfigFile, model: ConfigFile) -> Quantization:
    _only(section, "quant_method modules_to_not_convert")
    excluded = _patterns(section, "modules_to_not_convert")
    return formats_by_part(model, [Rule(FORMATS["mxfp4"])], excluded, ("experts",)), None


def _read_gptq_or_awq(section: ConfigFile, model: ConfigFile) -> Quantization:
    _only(
        section,
        "quant_method bits group_size modules_to_not_convert lm_head",
        # Without effect on sizes; zero points are stored also where they are all the same.
        "sym zero_point desc_act static_groups true_sequential damp_percent damp_auto_increment",
        "act_group_aware checkpoint_format format pack_dtype meta quantizer version backend mse",
        "block_name_to_quantize module_name_preceding_first_block model_name_or_path dataset",
        "model_file_base_name model_seqlen tokenizer batch_size pad_token_id do_fuse",
        "max_input_length cache_block_outputs use_exllama use_cuda_fp16 disable_exllama",
        "exllama_config fuse_max_seq_len modules_to_fuse is_marlin_format",
    )
    awq = _one_of(section, "quant_method", ("gptq", "awq")) == "awq"
    bits = _one_of(section, "bits", (4, 8) if awq else (2, 3, 4, 8))
    size = _group_size(section)
    new = _format(f"int{bits}", (size,), 16 + bits) if size else _format(f"int{bits}")
    head = section.fields.get("lm_head") is not None and section.flag("lm_head", default=False)
    parts = (*BLOCK_PARTS, "head") if head else BLOCK_PARTS
    excluded = _patterns(section, "modules_to_not_convert")
    return formats_by_part(model, [Rule(new)], excluded, parts), None


def _read_bitsandbytes(section: ConfigFile, model: ConfigFile) -> Quantization:
    _only(
        section,
        "quant_method load_in_8bit load_in_4bit bnb_4bit_quant_type bnb_4bit_use_double_quant",
        "llm_int8_skip_modules",
        # Without effect on sizes; the underlined ones repeat the others.
        "_load_in_4bit _load_in_8bit bnb_4bit_compute_dtype bnb_4bit_quant_storage",
        "llm_int8_threshold llm_int8_enable_fp32_cpu_offload",
    )
    eight, four = (_one_of(section, f"load_in_{n}bit", (True, False), False) for n in (8, 4))
    if eight == four:
        raise section.error("load_in_4bit", "and load_in_8bit: one has to be true, and not both")
    new = FORMATS["int8"]
    if four:
        kind = _one_of(section, "bnb_4bit_quant_type", ("nf4", "fp4"), "fp4")
        new = scaled(kind, 4, scale_bits=32, block=64)
        if _one_of(section, "bnb_4bit_use_double_quant", (True, False), False):
            # 8 bits for 64 numbers, and 32 for 256 of those.
            new = scaled(f"{kind}-double", 4, scale_bits=8 * 256 + 32, block=64 * 256)
    excluded = _patterns(section, "llm_int8_skip_modules")
    return formats_by_part(model, [Rule(new)], excluded, BLOCK_PARTS), None


# --- compressed-tensors -------------------------------------------------------------------------


_STORED = (
    *("int-quantized", "float-quantized", "naive-quantized", "pack-quantized", "mixed-precision"),
    *("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"),
)
_SCALE_BITS = {
    "torch.uint8": 8,
    "torch.float8_e4m3fn": 8,
    "torch.float16": 16,
    "torch.bfloat16": 16,
    "torch.float32": 32,
}


def _read_compressed(section: ConfigFile, model: ConfigFile) -> Quantization:
    _only(
        section,
        "quant_method config_groups ignore kv_cache_scheme format sparsity_config",
        "quantization_status global_compression_ratio run_compressed version",  # without effect
    )
    if section.fields.get("sparsity_config") not in (None, {}):
        _one_of(section.nested("sparsity_config"), "format", ("dense",))
    _one_of(section, "format", _STORED)
    rules = []
    for group in _groups(section):
        _only(group, "weights targets input_activations output_activations format")
        if group.fields.get("format") is not None:
            _one_of(group, "format", _STORED)
        if group.fields.get("weights") is not None:
            rules.append(Rule(_weights(group), _targets(group)))
    parts = formats_by_part(model, rules, _patterns(section, "ignore"), TARGETED_PARTS)
    return parts, _kv_format(section)


def _groups(section: ConfigFile) -> list[ConfigFile]:
    _required(section, "config_groups")
    groups = section.nested("config_groups")
    return [groups.nested(name) for name in groups.fields]


def _targets(group: ConfigFile) -> tuple[Pattern, ...] | None:
    """The modules that are named; `None` for all linear ones."""
    _required(group, "targets")
    named = _patterns(group, "targets")
    for pattern in named:
        if "embed" in pattern.text.lower():
            raise pattern.error("is converted: a quantised embedding is not understood")
    return None if any(pattern.text == "Linear" for pattern in named) else named


def _weights(group: ConfigFile) -> Format:
    """Format of the weights of a group.

    Scales are 16 bits wide, those of blocks 32, and those of 4-bit floats and of groups of 32
    floats (microscaling) 8, unless `scale_dtype` says otherwise.
    """
    _required(group, "weights")
    weights = group.nested("weights")
    _only(
        weights,
        "num_bits type group_size strategy block_structure symmetric scale_dtype",
        "dynamic actorder observer observer_kwargs zp_dtype",  # without effect on sizes
    )
    bits = _one_of(weights, "num_bits", (4, 8))
    kind = {"int": "int", "float": "fp"}[_one_of(weights, "type", ("int", "float"))]
    size = _group_size(weights) if weights.fields.get("group_size") is not None else None
    strategies = ("tensor", "channel", "group", "tensor_group", "block")
    strategy = _one_of(weights, "strategy", strategies, "group" if size else "channel")
    block, scale = (), 0
    if strategy == "block":
        _required(weights, "block_structure")
        block, scale = _block(weights, "block_structure"), 32
    elif strategy in ("group", "tensor_group"):
        block = (_one_of(weights, "group_size", GROUP_SIZES),)
        scale = 8 if kind == "fp" and (bits == 4 or block == (32,)) else 16
    elif size:
        raise weights.error("group_size", f"{size} contradicts strategy {strategy}")
    if weights.fields.get("scale_dtype") is not None and block:
        scale = _SCALE_BITS[_one_of(weights, "scale_dtype", tuple(_SCALE_BITS))]
    if not _one_of(weights, "symmetric", (True, False), True) and block:
        scale += bits
    eight = False
    if group.fields.get("input_activations") is not None:
        eight = _one_of(group.nested("input_activations"), "num_bits", (4, 8, 16)) == 8
    return _format(f"{kind}{bits}", block, scale, eight_bit_math=eight)


def _kv_format(section: ConfigFile) -> Format | None:
    """Format of the KV cache: an algorithm by its name, or bits and type."""
    found = set()
    for key in ("kv_cache_quant_algo", "kv_cache_scheme"):
        if isinstance(section.fields.get(key), dict):
            scheme = section.nested(key)
            _one_of(scheme, "num_bits", (8,))
            kind = _one_of(scheme, "type", ("int", "float"))
            found.add("int8" if kind == "int" else "fp8")
        elif section.fields.get(key) is not None:
            found.add(KV_FORMATS[_one_of(section, key, tuple(KV_FORMATS))])
    if len(found) > 1:
        raise section.error("kv_cache_scheme", "contradicts kv_cache_quant_algo")
    return FORMATS[found.pop()] if found else None


# --- ModelOpt -----------------------------------------------------------------------------------


class Algorithm(NamedTuple):
    """A `quant_algo` of ModelOpt."""

    kind: str
    eight_bit_math: bool = False
    block: tuple[int, ...] = ()
    """Numbers that share a scale; one size is that of a group, where the file does not say."""
    scale_bits: int = 0


ALGORITHMS = {
    "FP8": Algorithm("fp8", True),
    "FP8_PER_CHANNEL_PER_TOKEN": Algorithm("fp8", True),
    "FP8_PB_WO": Algorithm("fp8", False, (128, 128), 32),
    "MXFP8": Algorithm("fp8", True, (32,), 8),
    "NVFP4": Algorithm("nvfp4", False, (16,), 8),
    "NVFP4_AWQ": Algorithm("nvfp4", False, (16,), 8),
    "W4A16_NVFP4": Algorithm("nvfp4", False, (16,), 8),
    "W4A8_MXFP4_FP8": Algorithm("fp4", True, (32,), 8),
    "W4A16_AWQ": Algorithm("int4", False, (128,), 16),
    "W4A8_AWQ": Algorithm("int4", True, (128,), 16),
    "W8A16": Algorithm("int8"),
    "W8A8_SQ_PER_CHANNEL": Algorithm("int8", True),
}
MIXED = "MIXED_PRECISION"
"""Algorithms by module, in `quantized_layers`."""


def _read_modelopt(section: ConfigFile, model: ConfigFile) -> Quantization:
    _only(
        section,
        "quant_method quant_algo group_size has_zero_point kv_cache_quant_algo kv_cache_scheme",
        "exclude_modules ignore quantized_layers config_groups",
        "producer pre_quant_scale",  # without effect on sizes
    )
    rules = []
    if section.fields.get("quant_algo") == MIXED:
        _required(section, "quantized_layers")
        rules = _layer_rules(section.nested("quantized_layers"), _stated_group_size(section))
    elif section.fields.get("quantized_layers") not in (None, {}):
        raise section.error("quantized_layers", "contradicts quant_algo", f"with {MIXED}")
    elif section.fields.get("quant_algo") is not None:
        rules = [Rule(_algorithm(section, None, (*ALGORITHMS, MIXED)))]
    if section.fields.get("config_groups") not in (None, {}):
        bits = {_weights(group).bits for group in _groups(section)}
        if bits != {rule.format.bits for rule in rules}:
            raise section.error("config_groups", "contradicts quant_algo")
    excluded = _patterns(section, "exclude_modules", "ignore")
    return formats_by_part(model, rules, excluded, TARGETED_PARTS), _kv_format(section)


def _stated_group_size(section: ConfigFile) -> int | None:
    stated = section.fields.get("group_size") is not None
    return _one_of(section, "group_size", GROUP_SIZES) if stated else None


def _algorithm(
    section: ConfigFile, group_size: int | None, allowed: tuple[str, ...] = tuple(ALGORITHMS)
) -> Format:
    """Format of an algorithm; `group_size` is that of all layers where the section has none."""
    kind, eight, block, scale = ALGORITHMS[_one_of(section, "quant_algo", allowed)]
    if len(block) == 1:
        block = (_one_of(section, "group_size", GROUP_SIZES, group_size or block[0]),)
    elif section.fields.get("group_size") is not None:
        _one_of(section, "group_size", (0,))
    if section.fields.get("has_zero_point") is not None:
        zeros = _one_of(section, "has_zero_point", (False, True) if kind == "int4" else (False,))
        scale += 4 if zeros else 0
    return _format(kind, block, scale, eight_bit_math=eight)


def _layer_rules(layers: ConfigFile, group_size: int | None) -> list[Rule]:
    """One rule for every format in `quantized_layers`."""
    named: dict[Format, list[Pattern]] = {}
    for name in layers.fields:
        pattern = parse_pattern(name, layers, name[:60])
        layer = layers.nested(name)
        _only(layer, "quant_algo group_size has_zero_point pre_quant_scale")
        named.setdefault(_algorithm(layer, group_size), []).append(pattern)
    return [Rule(new, tuple(patterns)) for new, patterns in named.items()]


METHODS: dict[str, Callable[[ConfigFile, ConfigFile], Quantization]] = {
    "fp8": _read_fp8,
    "mxfp4": _read_mxfp4,
    "gptq": _read_gptq_or_awq,
    "awq": _read_gptq_or_awq,
    "bitsandbytes": _read_bitsandbytes,
    "compressed-tensors": _read_compressed,
    "modelopt": _read_modelopt,
    "modelopt_fp4": _read_modelopt,
}
"""`quant_method` -> what reads it."""
