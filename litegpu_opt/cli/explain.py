"""`litegpu explain`."""

from typing import Annotated, Any

from cyclopts import Parameter

from .options import Basis, Json, Serving


def explain(
    metric: Annotated[str, Parameter(help="What to explain, such as die-yield.")],
    *,
    accelerator: Annotated[
        str | None,
        Parameter(
            help="Built-in name (litegpu catalog accelerators) or path of a .toml file "
            "[default: h100-sxm; paper-lite, held against it, for cost-shares]."
        ),
    ] = None,
    basis: Basis = None,
    serving: Annotated[Serving | None, Parameter(name="*")] = None,
    as_json: Json = False,
) -> int:
    """A formula, the same formula with the numbers of an accelerator, line by line, and sources.

    Of the machine: area, shoreline, dies-per-wafer, die-yield, die-cost, unit-cost, unit-price,
    peak, power, tdp, device-hour; cost-shares is a table of what is charged per package, per watt
    and per area. With --model, --tp, --batch, --prompt, --output: ttft, tbt, memory,
    energy-per-token, tokens-per-dollar, and power and device-hour at that load.
    """
    from .cache import enable_compilation_cache

    enable_compilation_cache()
    from ..catalog import load_accelerator
    from ..report.explain import shares
    from ..report.explain.document import explanation_json, explanation_sections, targets_of
    from .console import show, show_json

    if metric == shares.METRIC:
        small = load_accelerator(accelerator or shares.SMALL, "--accelerator")
        large = load_accelerator(shares.LARGE)
        content = shares.shares_json(small, large, basis or "cost")
        sections = shares.shares_sections(content)
    else:
        targets_of(metric, served=serving is not None)
        inputs: dict[str, dict[str, Any]] = {}
        name = accelerator or shares.LARGE
        chip = load_accelerator(name, "--accelerator")
        deployed = serving.deployed(name, basis, inputs) if serving else None
        content = explanation_json(metric, chip, basis or "cost", deployed)
        sections = explanation_sections(content)
    if as_json:
        show_json(content)
    else:
        show(sections)
    return 0
