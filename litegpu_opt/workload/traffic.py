"""What is asked of a deployment: request lengths, latency limits, and the model they go to."""

import equinox as eqx
from jax import Array

from ..errors import UserError, unknown_name
from ..numerics import scalar
from .phases import MOST_TOKENS, SERVED
from .precision import Precision
from .transformer import Transformer


NO_LIMIT_MS = 1e12
"""A latency limit that never binds (32 years)."""


class Traffic(eqx.Module):
    """Lengths of a typical request; averages need not be whole."""

    prompt_tokens: Array = eqx.field(converter=scalar)
    output_tokens: Array = eqx.field(converter=scalar)
    """Includes the token that prefill makes."""


class Slo(eqx.Module):
    """Latency limits of the service."""

    ttft_ms: Array = eqx.field(converter=scalar)
    """Time to first token."""
    tbt_ms: Array = eqx.field(converter=scalar)
    """Time between tokens after the first."""


class Workload(eqx.Module):
    """Everything that must be served. Build it from user input with `make_workload`."""

    transformer: Transformer = eqx.field(static=True)
    traffic: Traffic
    slo: Slo
    precision: Precision = eqx.field(static=True)
    pools: str = eqx.field(static=True)
    """`prefill+decode`, or `decode` where prefill is somebody else's business."""

    @property
    def serves_prefill(self) -> bool:
        """Whether there is a prefill phase."""
        return self.pools == "prefill+decode"

    @property
    def serves_decode(self) -> bool:
        """Whether there is a decode phase: prefill makes the first token."""
        return float(self.traffic.output_tokens) > 1.0

    @property
    def served(self) -> tuple[bool, bool]:
        """Both, in the order of `PHASES`."""
        return self.serves_prefill, self.serves_decode


def make_workload(
    transformer: Transformer,
    precision: Precision,
    *,
    prompt_tokens: float,
    output_tokens: float,
    ttft_ms: float = NO_LIMIT_MS,
    tbt_ms: float = NO_LIMIT_MS,
    pools: str = "prefill+decode",
    where: str = "",
) -> Workload:
    """A `Workload` from checked values.

    **Arguments:**

    - `prompt_tokens`, `output_tokens`: 1 to `MOST_TOKENS`. One output token means that nothing is
      decoded, which only `prefill+decode` can serve.
    - `ttft_ms`, `tbt_ms`: above 0 to `NO_LIMIT_MS`, which stands for none.
    - `where`: file that the values come from, for error messages.

    **Raises:** `UserError` with the name of the value.
    """

    def place(key: str) -> str:
        return f"{where}:{key}" if where else key

    lengths = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    limits = {"ttft_ms": ttft_ms, "tbt_ms": tbt_ms}
    for key, value in lengths.items():
        if not _is_number(value) or not 1 <= value <= MOST_TOKENS:
            raise UserError(
                f"{value!r} is no length",
                where=place(key),
                allowed=f"1 to {MOST_TOKENS:.0e} tokens",
            )
    for key, value in limits.items():
        if not _is_number(value) or not 0 < value <= NO_LIMIT_MS:
            raise UserError(
                f"{value!r} is no limit",
                where=place(key),
                allowed=f"above 0 to {NO_LIMIT_MS:.0e} ms",
            )
    if pools not in SERVED:
        raise unknown_name("pools", str(pools), SERVED, where=place("pools"))
    if pools == "decode" and output_tokens <= 1:
        raise UserError(
            f"{output_tokens!r} leaves nothing to decode",
            where=place("output_tokens"),
            allowed="more than 1 token when only decode is served",
        )
    return Workload(
        transformer=transformer,
        traffic=Traffic(prompt_tokens, output_tokens),
        slo=Slo(ttft_ms, tbt_ms),
        precision=precision,
        pools=pools,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
