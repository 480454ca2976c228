"""The execution model fitted to measurements, and held against those that no fit has seen."""

from .. import numerics as numerics  # double precision before any JAX value
