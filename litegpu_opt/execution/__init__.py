"""Where application and machine meet: roofs, collective latencies, phase times and energies."""
