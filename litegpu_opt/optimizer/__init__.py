"""Search, polish, certify: the geometric program and everything that is read off it."""

from .. import numerics as numerics  # double precision before any JAX value
