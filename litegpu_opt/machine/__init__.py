"""The accelerator: what is chosen, what physics and the market allow, and what follows."""

from .. import numerics as numerics  # double precision before any JAX value
