"""`litegpu validate machine`, `kernels`, `serving`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from .options import Json


Data = Annotated[
    list[Path] | None,
    Parameter(
        name="--data",
        negative="",
        help="Full tables (CSV) instead of the extracts that ship; may be repeated.",
    ),
]
Figures = Annotated[Path | None, Parameter(help="Folder for a parity plot (PNG, SVG and CSV).")]


def machine(*, as_json: Json = False) -> int:
    """Compare the machine model with every chip of the catalogue whose figures are known."""
    from ..catalog import accelerator_names, load_accelerator
    from .cache import enable_compilation_cache
    from .console import show, show_json

    enable_compilation_cache()
    from ..report.validation import validation_json, validation_sections

    content = validation_json([load_accelerator(name) for name in accelerator_names()])
    if as_json:
        show_json(content)
    else:
        show(validation_sections(content))
    return 0


def kernels(*, data: Data = None, as_json: Json = False) -> int:
    """Compare the execution model with measured kernels of shapes that no fit has used."""
    from .cache import enable_compilation_cache
    from .console import show, show_json

    enable_compilation_cache()
    from ..calibration.kernels import read_kernels, shipped_kernels
    from ..report.kernels import kernels_json, kernels_sections

    content = kernels_json(read_kernels(data) if data else shipped_kernels())
    if as_json:
        show_json(content)
    else:
        show(kernels_sections(content))
    return 0


def serving(*, data: Data = None, figures: Figures = None, as_json: Json = False) -> int:
    """Compare times to first token and between tokens with rows that no fit has used.

    Beside the ideal roofline and a roofline with six fitted constants, on the same rows.
    """
    from .cache import enable_compilation_cache
    from .console import show, show_json

    enable_compilation_cache()
    from ..calibration.requests import read_requests, shipped_requests
    from ..report.predictions import predictions_json, predictions_sections

    content = predictions_json(read_requests(data) if data else shipped_requests())
    if figures is not None:
        from ..report.parity import draw_parity

        draw_parity(content["points"], figures)
    if as_json:
        show_json(content)
    else:
        show(predictions_sections(content))
    return 0
