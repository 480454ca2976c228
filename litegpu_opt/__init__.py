"""litegpu_opt: which accelerator should be built to serve an LLM, and how good is the answer?

    from litegpu_opt import evaluate, load_accelerator, load_study, optimize

Names are loaded when first used, so `import litegpu_opt` does not pay for JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any


__version__ = "0.1.0"

_HOME = {
    "Deployment": "deployment",
    "Design": "machine.design",
    "HardRoof": "execution.roofline",
    "Metrics": "evaluation",
    "Parallelism": "workload.parallelism",
    "Precision": "workload.precision",
    "SoftRoof": "execution.roofline",
    "Technology": "machine.technology",
    "UserError": "errors",
    "Workload": "workload.traffic",
    "evaluate": "evaluation",
    "load_accelerator": "catalog",
    "load_study": "study",
    "make_workload": "workload.traffic",
    "optimize": "optimizer.panel",
    "read_transformer": "workload.huggingface",
    "technology": "catalog",
}

if TYPE_CHECKING:
    from .catalog import load_accelerator, technology
    from .deployment import Deployment
    from .errors import UserError
    from .evaluation import Metrics, evaluate
    from .execution.roofline import HardRoof, SoftRoof
    from .machine.design import Design
    from .machine.technology import Technology
    from .optimizer.panel import optimize
    from .study import load_study
    from .workload.huggingface import read_transformer
    from .workload.parallelism import Parallelism
    from .workload.precision import Precision
    from .workload.traffic import Workload, make_workload

__all__ = [
    "Deployment",
    "Design",
    "HardRoof",
    "Metrics",
    "Parallelism",
    "Precision",
    "SoftRoof",
    "Technology",
    "UserError",
    "Workload",
    "evaluate",
    "load_accelerator",
    "load_study",
    "make_workload",
    "optimize",
    "read_transformer",
    "technology",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
