"""Methods of quantisation: what each setting of a checkpoint means for the bits of a number.

Bits of a number, with its share of scales and zero points:

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

Neglected scales and permutations (`g_idx`) are below 0.5 % of a matrix of 4096 rows.
"""

import json
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from .config_file import ConfigFile, short
from .formats import BLOCK_PARTS, FORMATS, Format, scaled
from .quantized_modules import Rule, read_patterns


TARGETED_PARTS = (*BLOCK_PARTS, "router", "head")
SIZES = range(1, 2**16)
WITHOUT_EFFECT = frozenset(
    """
    _load_in_4bit _load_in_8bit act_group_aware actorder backend batch_size block_name_to_quantize
    bnb_4bit_compute_dtype bnb_4bit_quant_storage cache_block_outputs checkpoint_format
    damp_auto_increment damp_percent dataset desc_act disable_exllama do_fuse exllama_config fmt
    fuse_max_seq_len global_compression_ratio is_marlin_format llm_int8_enable_fp32_cpu_offload
    llm_int8_threshold max_input_length meta model_file_base_name model_name_or_path model_seqlen
    module_name_preceding_first_block modules_to_fuse mse observer observer_kwargs pack_dtype
    pad_token_id pre_quant_scale producer quant_method quantization_status quantizer run_compressed
    scale_fmt static_groups sym tokenizer true_sequential use_cuda_fp16 use_exllama version
    zero_point zp_dtype
    """.split()
)
"""Settings that change no size; zero points are stored also where they are all the same."""


# --- checked access to one object of a file -----------------------------------------------------


def nested_object(section: ConfigFile, key: str) -> ConfigFile:
    """The object under a key that has to be there."""
    if section.fields.get(key) is None:
        raise section.error(key, "missing")
    return section.nested(key)


def one_of(section: ConfigFile, key: str, allowed: Sequence[Any], default: Any = None) -> Any:
    """A value of the same type as those in `allowed`; `default` is recorded where it is used."""
    value = section.fields.get(key)
    if value is None and default is not None:
        section.assume(f"{section.prefix}{key} = {json.dumps(default)}")
        return default
    if type(value) is not type(allowed[0]) or value not in allowed:
        what = "missing" if value is None else f"{short(value)} is not understood"
        listed = "1 to 65535" if allowed is SIZES else ", ".join(map(str, allowed))
        raise section.error(key, what, listed)
    return value


def _group(section: ConfigFile, *whole: int | None) -> tuple[int, ...]:
    """Numbers that share a scale; empty for the sizes in `whole`, which mean a whole column."""
    size = section.fields.get("group_size")
    return () if size in whole else (one_of(section, "group_size", SIZES),)


def _block(section: ConfigFile, key: str) -> tuple[int, ...]:
    """Rows and columns that share a scale; empty where the file has none."""
    sizes = section.listed(key, SIZES, "two sizes, each 1 to 65535")
    if sizes is not None and len(sizes) != 2:
        raise section.error(key, f"{short(sizes)} is not a block", "two sizes, each 1 to 65535")
    return sizes or ()


def only(section: ConfigFile, *known: str) -> None:
    """Refuse fields that are switched on and neither known to the method nor without effect."""
    for key, value in section.fields.items():
        if key not in WITHOUT_EFFECT.union(known) and value not in (None, False, {}, []):
            raise section.error(key[:60], "not understood here, and may change sizes")


# --- methods ------------------------------------------------------------------------------------


def _format(kind: str, block: Sequence[int], scale_bits: int, eight_bit_math: bool) -> Format:
    """A format by its kind (`int4`, `fp8`) and the numbers that share a scale: (g) or (r, c)."""
    name = kind + ("", "-g{}", "-block{}x{}")[len(block)].format(*block)
    name = _COMMON_NAMES.get(name, name)
    if eight_bit_math != (kind == "fp8"):
        name += "-a8" if eight_bit_math else "-a16"
    bits = int(kind[-1]) + Fraction(scale_bits if block else 0, math.prod(block))
    return Format(name, bits, eight_bit_math)


_COMMON_NAMES = {"fp8-block128x128": "fp8-block128", "fp4-g16": "nvfp4", "fp4-g32": "mxfp4"}


def _fp8(section: ConfigFile) -> list[Rule]:
    one_of(section, "activation_scheme", ("dynamic", "static"), "dynamic")
    return [(_format("fp8", _block(section, "weight_block_size"), 32, True), None)]


def _gptq_or_awq(section: ConfigFile) -> list[Rule]:
    awq = section.fields["quant_method"] == "awq"
    bits = one_of(section, "bits", (4, 8) if awq else (2, 3, 4, 8))
    return [(_format(f"int{bits}", _group(section, -1), 16 + bits, False), None)]


def _bitsandbytes(section: ConfigFile) -> list[Rule]:
    four, eight = (section.flag(f"load_in_{n}bit", default=False) for n in (4, 8))
    if eight == four:
        raise section.error("load_in_4bit", "and load_in_8bit: one has to be true, and not both")
    if eight:
        return [(FORMATS["int8"], None)]
    kind = one_of(section, "bnb_4bit_quant_type", ("nf4", "fp4"), "fp4")
    if section.flag("bnb_4bit_use_double_quant", default=False):
        # 8 bits for 64 numbers, and 32 for 256 of those.
        return [(scaled(f"{kind}-double", 4, scale_bits=8 * 256 + 32, block=64 * 256), None)]
    return [(scaled(kind, 4, scale_bits=32, block=64), None)]


_STORED = (
    *("int-quantized", "float-quantized", "naive-quantized", "pack-quantized", "mixed-precision"),
    *("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"),
)


def _compressed(section: ConfigFile) -> list[Rule]:
    if section.fields.get("sparsity_config") not in (None, {}):
        one_of(section.nested("sparsity_config"), "format", ("dense",))
    stored = one_of(section, "format", _STORED)
    rules = []
    for group in _groups(section):
        only(group, "weights", "targets", "input_activations", "output_activations", "format")
        one_of(group, "format", _STORED, stored)
        targets = read_patterns(group, "targets")
        if not targets:
            raise group.error("targets", "missing")
        for pattern in targets:
            if "embed" in pattern.text.lower():
                raise pattern.error("is converted: a quantised embedding is not understood")
        if group.fields.get("weights") is not None:
            every_linear = any(pattern.text == "Linear" for pattern in targets)
            rules.append((_weights(group), None if every_linear else targets))
    return rules


def _groups(section: ConfigFile) -> list[ConfigFile]:
    groups = nested_object(section, "config_groups")
    return [groups.nested(name) for name in groups.fields]


_BLOCK_DIMENSIONS = {"tensor": 0, "channel": 0, "group": 1, "tensor_group": 1, "block": 2}
_SCALE_BITS = dict(uint8=8, float8_e4m3fn=8, float16=16, bfloat16=16, float32=32)
_WEIGHTS = "num_bits type group_size strategy block_structure symmetric scale_dtype dynamic"


def _weights(group: ConfigFile) -> Format:
    """Format of the weights of a group of compressed-tensors.

    Scales are 16 bits wide, those of blocks 32, and those of 4-bit floats and of groups of 32
    floats (microscaling) 8, unless `scale_dtype` says otherwise.
    """
    weights = nested_object(group, "weights")
    only(weights, *_WEIGHTS.split())
    bits = one_of(weights, "num_bits", (4, 8))
    kind = {"int": "int", "float": "fp"}[one_of(weights, "type", ("int", "float"))]
    block = _block(weights, "block_structure") or _group(weights, -1, None)
    likely = ("channel", "group", "block")[len(block)]
    strategy = one_of(weights, "strategy", tuple(_BLOCK_DIMENSIONS), likely)
    if len(block) != _BLOCK_DIMENSIONS[strategy]:
        shares = "x".join(map(str, block)) or "missing"
        raise weights.error("strategy", f"{strategy}: group_size or block_structure is {shares}")
    scale = 32 if len(block) == 2 else 16
    if kind == "fp" and len(block) == 1 and (bits == 4 or block == (32,)):
        scale = 8
    if block and weights.fields.get("scale_dtype") is not None:
        widths = {f"torch.{name}": width for name, width in _SCALE_BITS.items()}
        scale = widths[one_of(weights, "scale_dtype", tuple(widths))]
    if not weights.flag("symmetric", default=True):
        scale += bits
    eight = group.fields.get("input_activations") is not None
    eight = eight and one_of(group.nested("input_activations"), "num_bits", (4, 8, 16)) == 8
    return _format(f"{kind}{bits}", block, scale, eight)


ALGORITHMS: dict[str, tuple[str, tuple[int, ...], int, bool]] = {
    "FP8": ("fp8", (), 0, True),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", (), 0, True),
    "FP8_PB_WO": ("fp8", (128, 128), 32, False),
    "MXFP8": ("fp8", (32,), 8, True),
    "NVFP4": ("fp4", (16,), 8, False),
    "NVFP4_AWQ": ("fp4", (16,), 8, False),
    "W4A16_NVFP4": ("fp4", (16,), 8, False),
    "W4A8_MXFP4_FP8": ("fp4", (32,), 8, True),
    "W4A16_AWQ": ("int4", (128,), 16, False),
    "W4A8_AWQ": ("int4", (128,), 16, True),
    "W8A16": ("int8", (), 0, False),
    "W8A8_SQ_PER_CHANNEL": ("int8", (), 0, True),
}
"""`quant_algo` of ModelOpt -> kind, numbers that share a scale (a group has this size where the
file has none), bits of a scale, 8-bit activations."""


def _modelopt(section: ConfigFile) -> list[Rule]:
    rules = []
    if section.fields.get("quant_algo") is not None:
        kind, block, scale, eight = ALGORITHMS[one_of(section, "quant_algo", tuple(ALGORITHMS))]
        if len(block) == 1:
            block = (one_of(section, "group_size", SIZES, block[0]),)
        elif section.fields.get("group_size") is not None:
            one_of(section, "group_size", (0,))
        rules.append((_format(kind, block, scale, eight), None))
    if section.fields.get("config_groups") not in (None, {}):
        if {_weights(group).bits for group in _groups(section)} != {new.bits for new, _ in rules}:
            raise section.error("config_groups", "contradicts quant_algo")
    return rules


METHODS: dict[str, tuple[Callable[[ConfigFile], list[Rule]], tuple[str, ...], str]] = {
    "fp8": (_fp8, BLOCK_PARTS, "weight_block_size activation_scheme"),
    "mxfp4": (lambda _: [(FORMATS["mxfp4"], None)], ("experts",), ""),
    "gptq": (_gptq_or_awq, BLOCK_PARTS, "bits group_size lm_head format"),
    "awq": (_gptq_or_awq, BLOCK_PARTS, "bits group_size lm_head format"),
    "bitsandbytes": (
        _bitsandbytes,
        BLOCK_PARTS,
        "load_in_8bit load_in_4bit bnb_4bit_quant_type bnb_4bit_use_double_quant",
    ),
    "compressed-tensors": (_compressed, TARGETED_PARTS, "config_groups format sparsity_config"),
    "modelopt": (_modelopt, TARGETED_PARTS, "quant_algo group_size config_groups"),
    "modelopt_fp4": (_modelopt, TARGETED_PARTS, "quant_algo group_size config_groups"),
}
"""`quant_method` -> what reads it, parts that it may convert, settings with an effect."""
