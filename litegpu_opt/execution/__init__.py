"""Where application and machine meet: roofs, collective latencies, phase times and energies."""

from .. import numerics as numerics  # double precision before any JAX value
