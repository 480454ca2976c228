"""The catalogue: technologies and accelerators, every value with unit, source and trust."""

from .accelerators import Accelerator, accelerator_names, load_accelerator
from .records import TRUST, Record
from .tables import (
    DEFAULT_ENTRIES,
    HARDWARE_TABLES,
    TABLE_NAMES,
    facts,
    names,
    offered_gb,
    override_records,
    provenance,
    records,
    technology,
    title,
)


__all__ = [
    "DEFAULT_ENTRIES",
    "HARDWARE_TABLES",
    "TABLE_NAMES",
    "TRUST",
    "Accelerator",
    "Record",
    "accelerator_names",
    "facts",
    "load_accelerator",
    "names",
    "offered_gb",
    "override_records",
    "provenance",
    "records",
    "technology",
    "title",
]
