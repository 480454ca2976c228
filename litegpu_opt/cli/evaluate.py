"""`litegpu evaluate`."""

from typing import Annotated, Any

from cyclopts import Parameter

from .options import Basis, Json, Serving


def evaluate(
    *,
    serving: Annotated[Serving, Parameter(name="*")],
    accelerator: Annotated[
        str, Parameter(help="Built-in name (litegpu catalog accelerators) or path of a .toml file.")
    ],
    breakdown: Annotated[
        bool, Parameter(negative="", help="Add the time of every operator.")
    ] = False,
    basis: Basis = None,
    as_json: Json = False,
) -> int:
    """One accelerator, one model, one deployment: time, cost, energy, memory.

    Both pools run at the accelerator's clock. A deployment that breaks a limit is reported as not
    feasible, with exit code 0.
    """
    from .cache import enable_compilation_cache

    enable_compilation_cache()
    from ..report.evaluation import evaluation_json, evaluation_sections
    from .console import show, show_json

    inputs: dict[str, dict[str, Any]] = {}
    deployed = serving.deployed(accelerator, basis, inputs)
    content = evaluation_json(deployed, breakdown=breakdown) | {
        "inputs": inputs,
        "assumed": list(deployed.workload.transformer.assumed),
    }
    if as_json:
        show_json(content)
    else:
        show(evaluation_sections(content))
    return 0
