"""Model families: how each reads its `config.json`.

A new family, if made of the kinds of layers in `transformer.py`, is one module here. The `Family`
values in the modules of this folder are collected.
"""

from importlib import import_module
from pkgutil import iter_modules

from .family import Family


def _found() -> dict[str, Family]:
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    families = (
        value for module in modules for value in vars(module).values() if isinstance(value, Family)
    )
    by_type = {
        model_type: family
        for family in families
        for model_type in (*family.model_types, *family.wrappers)
    }
    return dict(sorted(by_type.items()))


FAMILIES: dict[str, Family] = _found()
"""`model_type` to family."""
