"""`litegpu validate machine`."""

from .options import Json


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
