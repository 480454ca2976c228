"""Landscapes: every point of a grid of designs and deployments, reduced on the device."""

from .. import numerics as numerics  # double precision before any JAX value
