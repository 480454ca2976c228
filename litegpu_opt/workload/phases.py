"""Names of the phases of a request, its bounds, and what a study can ask a design to serve."""

PHASES = ("prefill", "decode")
"""In the order of every axis over pools."""

SERVED = ("prefill+decode", "decode")
"""Values of a workload's `pools`: both phases, or decode alone."""

MOST_TOKENS = 1e9
"""Longest prompt or output that is taken for a length and not for a slip."""
