"""Number formats: bits of a number with its share of the scales, and the peak it multiplies at."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Format:
    """A number format."""

    name: str
    bits: Fraction
    """Per number, block scales and zero points included; exact."""
    eight_bit_math: bool = False
    """Matrices in this format multiply 8-bit activations; the others those of 16 bits, to which
    narrower weights are widened on the way."""

    @property
    def bytes(self) -> Fraction:
        """Bytes of one number."""
        return self.bits / 8


def scaled(name: str, bits: int, *, scale_bits: int, block: int, **kind: bool) -> Format:
    """A format with one scale for every `block` numbers: bits + scale_bits/block."""
    return Format(name, bits + Fraction(scale_bits, block), **kind)


FORMATS = {
    item.name: item
    for item in (
        Format("fp32", Fraction(32)),
        Format("bf16", Fraction(16)),
        Format("fp16", Fraction(16)),
        Format("fp8", Fraction(8), eight_bit_math=True),
        scaled("fp8-block128", 8, scale_bits=32, block=128 * 128, eight_bit_math=True),
        Format("int8", Fraction(8)),
        scaled("mxfp4", 4, scale_bits=8, block=32),
        scaled("nvfp4", 4, scale_bits=8, block=16),
    )
}
"""Formats by name. Sources of the blocks: OCP Microscaling specification 1.0 (MXFP4: an 8-bit scale
for 32 numbers), NVIDIA's NVFP4 (an 8-bit scale for 16 numbers), DeepSeek-V3 (arXiv 2412.19437: a
32-bit scale for a tile of 128 x 128)."""

PARTS = ("attention", "mlp", "experts", "router", "embedding", "head")
"""Parts of a model whose matrices share a format."""
BLOCK_PARTS = ("attention", "mlp", "experts")
"""Those that `weights` in a `Precision` names; the others stay in the activations' format."""
