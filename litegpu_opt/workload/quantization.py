"""The formats that a quantised checkpoint asks for.

They are read from `quantization_config` and from an `hf_quant_config.json`.

Parts: attention, MLP and experts; with MXFP4 the experts only. compressed-tensors and ModelOpt also
convert the LM head unless it is excluded, GPTQ and AWQ with `lm_head: true`, the others never. The
embedding is never converted, nor a head that is tied to it. A router is only converted where it is
named as a target: ModelOpt leaves `*router*` and `*mlp.gate*` by default, several routers are no
linear module, and files that leave them often do not list them (nvidia/DeepSeek-V3.1-NVFP4).
"""

from .config_file import ConfigFile
from .formats import FORMATS, Format
from .quantization_methods import METHODS, nested_object, one_of, only
from .quantized_modules import formats_by_part, read_patterns
from .transformer import Transformer


Quantization = tuple[tuple[tuple[str, Format], ...], Format | None]
"""Part of the model -> format of its matrices, where quantised; format of the KV cache."""

LISTS = "modules_to_not_convert ignored_layers llm_int8_skip_modules exclude_modules ignore".split()
KV_CACHE = ("kv_cache_quant_algo", "kv_cache_scheme")


def read_quantization(
    model: Transformer, config: ConfigFile, beside: ConfigFile | None
) -> Quantization:
    """What a checkpoint's files say about its formats.

    **Arguments:**

    - `model`: the shape that they describe.
    - `config`: the part of the `config.json` with the `quantization_config`, if there is one.
    - `beside`: the `hf_quant_config.json` of the same folder, if there is one.

    **Raises:** `UserError` with file and key, also if the two files differ.
    """
    found = []
    if config.fields.get("quantization_config") not in (None, {}):
        section = config.nested("quantization_config")
        unnamed = section.fields.get("quant_method") is None and "quant_algo" in section.fields
        name = "modelopt" if unnamed else one_of(section, "quant_method", tuple(METHODS))
        found.append(_read(section, name, model))
    if beside is not None:
        only(beside, "quantization")
        found.append(_read(nested_object(beside, "quantization"), "modelopt", model))
        if found[0] != found[-1]:
            differ = f"{_described(found[1])}, but in {config.path}: {_described(found[0])}"
            raise beside.error("quantization", differ)
    return found[0] if found else ((), None)


def _described(quantization: Quantization) -> str:
    parts, kv = quantization
    stated = [f"{part} {item.name}" for part, item in parts] or ["nothing quantised"]
    return ", ".join([*stated, f"KV cache {kv.name}" if kv else "KV cache not quantised"])


def _read(section: ConfigFile, method: str, model: Transformer) -> Quantization:
    rules, parts, fields = METHODS[method]
    only(section, *fields.split(), *LISTS, *KV_CACHE)
    if section.fields.get("lm_head") is not None and section.flag("lm_head", default=False):
        parts += ("head",)
    new = formats_by_part(model, rules(section), read_patterns(section, *LISTS), parts)
    return new, _kv_format(section)


def _kv_format(section: ConfigFile) -> Format | None:
    """Format of the KV cache: an algorithm by its name, or bits and type."""
    found = set()
    for key in KV_CACHE:
        if isinstance(section.fields.get(key), dict):
            scheme = section.nested(key)
            one_of(scheme, "num_bits", (8,))
            found.add({"int": "int8", "float": "fp8"}[one_of(scheme, "type", ("int", "float"))])
        elif section.fields.get(key) is not None:
            found.add(one_of(section, key, ("FP8", "INT8", "NVFP4")).lower())
    if len(found) > 1:
        raise section.error("kv_cache_scheme", "contradicts kv_cache_quant_algo")
    return FORMATS[found.pop()] if found else None
