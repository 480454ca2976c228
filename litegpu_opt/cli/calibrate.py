"""`litegpu calibrate`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..errors import UserError
from .options import Json


def calibrate(
    data: Annotated[
        list[Path],
        Parameter(
            help="Tables of measured kernels (CSV): GEMM, attention, collectives, layer operators."
        ),
    ],
    *,
    out: Annotated[Path, Parameter(help="File (.toml) for --execution.")],
    chip: Annotated[
        str | None, Parameter(help="Use the rows of this accelerator only [default: all rows].")
    ] = None,
    as_json: Json = False,
) -> int:
    """Fit the execution model to measured kernels, and state its errors on those left out.

    Half of the shapes are fitted. Values that no kernel determines stay as they are in
    `calibrated`.
    """
    from .cache import enable_compilation_cache
    from .console import show, show_json

    enable_compilation_cache()
    from ..calibration.kernels import read_kernels
    from ..files import write_atomic
    from ..report.kernels import calibration_json, calibration_sections, calibration_toml

    if out.suffix != ".toml":
        raise UserError(
            f"{out.name!r} is no file for a table", where="--out", allowed="a .toml file"
        )
    rows = [row for row in read_kernels(data) if chip in (None, row.chip)]
    if not rows:
        raise UserError("no rows", where="data", allowed=f"rows of {chip or 'known kernels'}")
    content = calibration_json(rows, [path.name for path in data])
    write_atomic(out, calibration_toml(content))
    if as_json:
        show_json(content)
    else:
        show(calibration_sections(content))
    return 0
