"""Number formats of a deployment."""

from dataclasses import dataclass, fields

from ..errors import UserError, unknown_name
from .formats import BLOCK_PARTS, FORMATS, Format
from .transformer import Transformer


CHECKPOINT = "checkpoint"
"""As the model's own files say; what they do not quantise is in the activations' format."""

_ALLOWED = {
    "weights": (CHECKPOINT, *(name for name in FORMATS if name != "fp32")),
    "kv": (CHECKPOINT, "bf16", "fp16", "fp8", "int8"),
    "activations": ("bf16", "fp16"),
    "wire": ("bf16", "fp16", "fp8", "int8", "fp32"),
}


def allowed_formats(what: str) -> tuple[str, ...]:
    """Names that a field of `Precision` can have."""
    return _ALLOWED[what]


@dataclass(frozen=True)
class Precision:
    """The format of everything that is stored, read or sent.

    `weights` names the format of the matrices of the blocks (attention, MLP, experts), as in
    published FP8 checkpoints (Llama-3.3-70B: 72,656,371,712 bytes against 67.72 GiB loaded by
    vLLM, llm-d-benchmark issue 345). Routers, vocabulary matrices, learned positions, norms and
    biases stay in the format of `activations`. `checkpoint` takes every part as the file has it.
    """

    weights: str
    kv: str
    """KV cache."""
    activations: str
    """16 bits wide: attention multiplies in this format."""
    wire: str
    """Tensors sent between devices."""

    def __post_init__(self):
        for field in fields(self):
            name, allowed = getattr(self, field.name), _ALLOWED[field.name]
            if not isinstance(name, str) or name not in allowed:
                if field.name == "activations" and name in FORMATS:
                    raise UserError(
                        f"activations in {name} are not modelled: "
                        "attention multiplies in their format",
                        where=field.name,
                        allowed=", ".join(allowed),
                    )
                raise unknown_name("number format", str(name), allowed, where=field.name)

    def of_part(self, part: str, transformer: Transformer) -> Format:
        """Format of the matrices of one of `PARTS`."""
        if self.weights == CHECKPOINT:
            return dict(transformer.quantized).get(part, FORMATS[self.activations])
        return FORMATS[self.weights if part in BLOCK_PARTS else self.activations]

    def of_cache(self, transformer: Transformer) -> Format:
        """Format of the KV cache."""
        if self.kv == CHECKPOINT:
            return transformer.kv_format or FORMATS[self.activations]
        return FORMATS[self.kv]

    @property
    def of_activations(self) -> Format:
        """Format of activations, and of every parameter that is no matrix."""
        return FORMATS[self.activations]

    @property
    def of_wire(self) -> Format:
        """Format of numbers on the network."""
        return FORMATS[self.wire]
