"""The catalogue: technologies and accelerators, every value with unit, source and trust."""

from .accelerators import Accelerator, accelerator_names, load_accelerator
from .measurements import issued_share, power_series
from .quantities import FORMATS
from .records import TRUST, Record
from .tables import (
    DEFAULT_ENTRIES,
    HARDWARE_TABLES,
    TABLE_NAMES,
    default_records,
    execution_overrides,
    facts,
    names,
    offered_gb,
    override_records,
    provenance,
    records,
    technology,
    title,
)
from .unmodelled import Unmodelled, load_unmodelled, unmodelled_names


__all__ = [
    "DEFAULT_ENTRIES",
    "FORMATS",
    "HARDWARE_TABLES",
    "TABLE_NAMES",
    "TRUST",
    "Accelerator",
    "Record",
    "Unmodelled",
    "accelerator_names",
    "default_records",
    "execution_overrides",
    "facts",
    "issued_share",
    "load_accelerator",
    "load_unmodelled",
    "names",
    "offered_gb",
    "override_records",
    "power_series",
    "provenance",
    "records",
    "technology",
    "title",
    "unmodelled_names",
]
