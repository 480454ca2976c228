"""`litegpu schema`."""

from typing import Annotated, Literal

from cyclopts import Parameter


def schema(
    kind: Annotated[
        Literal["study", "accelerator"], Parameter(help="Kind of file [default: study].")
    ] = "study",
) -> int:
    """Print the JSON Schema of a file: every key with its meaning, unit, range and default."""
    from ..schema import json_schema
    from .console import show_json

    show_json(json_schema(kind))
    return 0
