"""JSON Schema of the files that users write: every key with its meaning, unit, range and default.

The same classes check the files. No JAX here.
"""

from typing import Any

from .catalog import DEFAULT_ENTRIES, TABLE_NAMES, records
from .catalog.accelerators import AcceleratorFile
from .errors import unknown_name
from .files import toml_literal
from .study import Study


FILES = {"study": Study, "accelerator": AcceleratorFile}
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(kind: str) -> dict[str, Any]:
    """The schema of one kind of file.

    **Raises:** `UserError` for another kind.
    """
    if kind not in FILES:
        raise unknown_name("kind of file", kind, FILES, where="schema")
    schema = FILES[kind].model_json_schema()
    for table in (schema, *schema["$defs"].values()):
        _describe(table)
        if "overrides" in table["properties"]:
            table["properties"]["overrides"]["properties"] = _catalogue_values()
    return {"$schema": DIALECT} | schema


def _describe(table: dict[str, Any]) -> None:
    """Say in every description what is allowed, and the default; for tables inside as well."""
    required = table.get("required", ())
    for name, key in table["properties"].items():
        key.pop("title", None)
        if key.get("type") == "string" and key.get("default", "") is None:
            key["default"] = "none"
        parts = [key.get("description", "").rstrip("."), key.pop("allowed", "")]
        if name in required:
            parts.append("required")
        elif "default" in key and not isinstance(key["default"], dict):
            unset = key["default"] in (None, "")
            parts.append(f"default: {'none' if unset else toml_literal(key['default'])}")
        if any(parts):  # else it has the description of the table that it refers to
            key["description"] = "; ".join(part for part in parts if part)
        if "properties" in key:
            _describe(key)


def _catalogue_values() -> dict[str, Any]:
    """`table.field` of the technologies, with unit, range and value of the default entry."""
    return {
        f"{table}.{field}": {
            "type": ["number", "string", "object"],
            "description": (
                f"unit: {record.unit or 'none'}; range {record.low:g} to {record.high:g}; "
                f"default: {record.value:g} ({table}.{DEFAULT_ENTRIES[table]})"
            ),
        }
        for table in TABLE_NAMES
        for field, record in records(table, DEFAULT_ENTRIES[table]).items()
    }
