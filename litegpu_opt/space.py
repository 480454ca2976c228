"""What can be searched, and for what: objectives, variables and their box. No JAX here."""

from .errors import unknown_name


OBJECTIVES = {
    "usd_per_million_tokens": "USD",
    "joules_per_token": "J",
    "sm_seconds_per_token": "SM s",
    "package_seconds_per_token": "s",
}
"""What a search can make small, over all pools: name -> unit."""

RECIPROCALS = {
    "tokens_per_dollar": "usd_per_million_tokens",
    "tokens_per_joule": "joules_per_token",
    "tokens_per_s_per_sm": "sm_seconds_per_token",
    "tokens_per_s_per_package": "package_seconds_per_token",
}
"""What is made large by making an objective small."""

DESIGN_VARIABLES = (
    "die_area_mm2",
    "sm_count",
    "clock_ghz",
    "memory_stacks",
    "memory_gb",
    "network_gb_s",
)
"""Continuous fields of `Design`."""

DESIGN_KEYS = {
    "die_area": ("die_area_mm2", "mm^2"),
    "sm_count": ("sm_count", ""),
    "clock": ("clock_ghz", "GHz"),
    "memory_stacks": ("memory_stacks", ""),
    "memory": ("memory_gb", "GB"),
    "network_per_direction": ("network_gb_s", "GB/s"),
    "tdp": ("tdp_w", "W"),
}
"""Key of a file -> the variable, and its unit."""

DESIGN_BOX = {
    "die_area_mm2": (10.0, 860.0),
    "sm_count": (1.0, 2000.0),
    "clock_ghz": (0.2, 3.0),
    "memory_stacks": (1.0, 64.0),
    "memory_gb": (4.0, 4000.0),
    "network_gb_s": (10.0, 20000.0),
    "tdp_w": (1.0, 10000.0),
}

POOL_BOX = {
    "batch_{}": {"prefill": (1.0, 2000.0), "decode": (1.0, 50000.0)},
    "clock_{}_ghz": {"prefill": (0.2, 3.0), "decode": (0.2, 3.0)},
}
"""Search box. Generous: an optimum at one of these bounds is named, unless it is in `PHYSICAL`."""

PHYSICAL = {
    ("sm_count", "lower"): "one SM",
    ("memory_stacks", "lower"): "one stack",
    ("batch_prefill", "lower"): "one sequence",
    ("batch_decode", "lower"): "one sequence",
}
"""Bounds of the box that nature sets."""


def objective_name(name: str, where: str = "") -> str:
    """The objective that a name, or that of its reciprocal, stands for.

    **Raises:** `UserError` with the nearest name.
    """
    known = RECIPROCALS.get(name, name)
    if known not in OBJECTIVES:
        raise unknown_name("objective", name, (*OBJECTIVES, *RECIPROCALS), where=where)
    return known
