"""Number formats of a deployment."""

from dataclasses import dataclass, fields

from ..errors import UserError, unknown_name


BYTES = {"bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of one value."""


@dataclass(frozen=True)
class Precision:
    """The format of everything that is stored, read or sent.

    The matrices of the blocks use `weights`. Vocabulary matrices, learned positions, norms and
    biases stay in the format of `activations`, as in published FP8 checkpoints (Llama-3.3-70B:
    72,656,371,712 bytes against 67.72 GiB loaded by vLLM, llm-d-benchmark issue 345). With
    8-bit `weights` the linear layers also multiply in 8 bits.
    """

    weights: str
    kv: str
    """KV cache."""
    activations: str
    """Two bytes wide for now: attention multiplies in this format."""
    wire: str
    """Tensors sent between devices."""

    def __post_init__(self):
        for field in fields(self):
            name = getattr(self, field.name)
            if not isinstance(name, str) or name not in BYTES:
                raise unknown_name("number format", str(name), BYTES, where=field.name)
        if BYTES[self.activations] != 2:
            raise UserError(
                f"activations in {self.activations} are not modelled: "
                "attention multiplies in their format",
                where="activations",
                allowed=", ".join(name for name, size in BYTES.items() if size == 2),
            )

    @property
    def weight_bytes(self) -> int:
        """Bytes of one parameter of a block matrix."""
        return BYTES[self.weights]

    @property
    def kv_bytes(self) -> int:
        """Bytes of one cached number."""
        return BYTES[self.kv]

    @property
    def activation_bytes(self) -> int:
        """Bytes of one activation, and of a parameter outside the block matrices."""
        return BYTES[self.activations]

    @property
    def wire_bytes(self) -> int:
        """Bytes of one number on the network."""
        return BYTES[self.wire]
