"""The JSON Schema of the files that users write."""

import tomllib

import pytest

from litegpu_opt import catalog
from litegpu_opt.catalog.accelerators import AcceleratorFile
from litegpu_opt.errors import UserError
from litegpu_opt.files import embedded
from litegpu_opt.schema import FILES, json_schema
from litegpu_opt.study import Study


def leaves(schema):
    """Path and schema of every key of a file that is no table."""
    definitions = schema["$defs"]

    def of(table, path):
        for name, key in table["properties"].items():
            here = f"{path}.{name}".lstrip(".")
            inside = [key, key.get("items", {}), *key.get("allOf", [])]
            reference = next((each["$ref"] for each in inside if "$ref" in each), None)
            if reference:
                yield from of(definitions[reference.rpartition("/")[2]], here)
            elif "properties" in key:
                yield from of(key, here)
            else:
                yield here, key

    return dict(of(schema, ""))


@pytest.mark.parametrize("kind", FILES)
def test_every_key_says_what_is_allowed_and_its_default(kind):
    found = leaves(json_schema(kind))
    assert len(found) > 80
    for path, key in found.items():
        assert "allowed" not in key and "title" not in key, path
        assert key["description"], path
        if path.startswith("technology.overrides."):
            words = ("unit: ", "range ", "default: ")
            assert all(word in key["description"] for word in words), path


def test_units_ranges_and_defaults_of_a_study():
    found = leaves(json_schema("study"))
    assert found["starts"]["description"] == (
        "Random starts of each branch; a whole number, 1 to 64; default: 2"
    )
    assert (found["starts"]["minimum"], found["starts"]["maximum"]) == (1, 64)
    tbt = found["workload.tbt"]
    assert tbt["type"] == "string" and tbt["default"] == "none"
    assert "ms, above zero, with its unit" in tbt["description"]
    assert found["workload.prompt_tokens"]["description"].endswith("; required")
    assert "mm^2" in found["candidate.bounds.die_area"]["description"]
    assert "USD, above zero" in found["candidate.unit_cost_max"]["description"]
    assert "W, above zero" in found["candidate.tdp_max"]["description"]
    assert "tokens_per_dollar" in found["objective"]["description"]
    assert "J (joules_per_token)" in found["workload.limits"]["description"]
    assert "one of ethernet, host, mesh, " in found["technology.switch"]["description"]
    record = catalog.records("memory", "hbm3e")["usd_per_gb"]
    assert found["technology.overrides.memory.usd_per_gb"]["description"] == (
        f"unit: USD/GB; range {record.low:g} to {record.high:g}; default: {record.value:g} "
        "(memory.hbm3e)"
    )


def test_units_and_ranges_of_an_accelerator():
    found = leaves(json_schema("accelerator"))
    assert "a quantity in mm^2" in found["design.die_area"]["description"]
    assert "10 to 10000 mm^2" in found["design.die_area"]["description"]
    assert "a whole number, 1 to 16" in found["design.dies_per_package"]["description"]
    assert "a quantity in FLOP" in found["flop_per_clock.fp4"]["description"]
    assert "one direction" in found["design.network_per_direction"]["description"]


@pytest.mark.parametrize(
    ("kind", "folder"), [("study", "studies"), ("accelerator", "accelerators")]
)
def test_schema_has_every_key_of_the_files_that_ship(kind, folder):
    found = leaves(json_schema(kind))

    def paths(content, path=""):
        for name, value in content.items():
            here = f"{path}.{name}".lstrip(".")
            if here in found:
                continue
            assert isinstance(value, dict | list), f"{here} is not in the schema"
            for row in value if isinstance(value, list) else [value]:
                paths(row, here)

    for item in embedded(folder).iterdir():
        paths(tomllib.loads(item.read_text("utf-8")))


def test_schema_is_of_the_classes_that_check():
    assert FILES == {"study": Study, "accelerator": AcceleratorFile}
    with pytest.raises(UserError, match="unknown kind of file 'studdy', did you mean study?"):
        json_schema("studdy")
