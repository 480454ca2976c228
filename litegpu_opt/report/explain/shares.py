"""What is charged per package, per watt, per area: the shares that decide between small and large
dies, with their alternatives.
"""

from collections.abc import Mapping
from typing import Any

from ...catalog import Accelerator, Record, records
from ...machine.cost import SECONDS_PER_HOUR, provisioned_w, usd_per_joule, yearly_cost
from ...machine.power import thermal_design_power_w
from ..document import Section, Table, figure


METRIC = "cost-shares"
SMALL, LARGE = "paper-lite", "h100-sxm"

CHARGED = {
    "prices.host_usd_per_package": "package",
    "package.test_usd": "package",
    "package.attach_usd_per_stack": "stack",
    "prices.host_usd_per_w": "W of TDP",
    "prices.facility_usd_per_w": "W of IT",
    "package.test_usd_per_mm2": "mm2 mounted",
    "package.interposer_usd_per_mm2": "mm2 of interposer",
    "prices.host_usd_per_gb_s": "GB/s",
    "interconnect.usd_per_gbit_s": "Gb/s, by end",
    "switch.usd_per_gbit_s": "Gb/s, by port",
}
"""Value -> what it is charged per."""

ALTERNATIVES = {
    "host 1,000 USD per package": ("prices", "host-per-package", "host_usd_per_package"),
    "host nothing per W": ("prices", "host-without-power", "host_usd_per_w"),
    "Ethernet switch": ("switch", "ethernet", "usd_per_gbit_s"),
}
"""Name -> table and entry of the catalogue that hold the other value, and the value."""

SIDES = ("small", "large")

Overrides = Mapping[str, Record | float]


def usd_per_hour(chip: Accelerator, basis: str, overrides: Overrides | None = None) -> float:
    """An owned device that draws what is provisioned, USD per hour."""
    design, technology = chip.design(), chip.technology(overrides, prices=basis)
    tdp_w = thermal_design_power_w(design, technology)
    drawn_w = provisioned_w(tdp_w, design, technology)
    owned = yearly_cost(design, tdp_w, technology).usd_per_second
    return float(SECONDS_PER_HOUR * (owned + usd_per_joule(technology) * drawn_w))


def shares_json(small: Accelerator, large: Accelerator, basis: str) -> dict[str, Any]:
    """Every such charge, what it is of a device-hour of both chips, and what its range does to the
    ratio of small devices with the SMs of a large one to that large one.
    """
    chips = small, large
    devices = large.design_values["sm_count"] / small.design_values["sm_count"]

    def case(overrides: Overrides | None = None) -> dict[str, float]:
        hours = [usd_per_hour(chip, basis, overrides) for chip in chips]
        return {"small": hours[0], "large": hours[1], "ratio": devices * hours[0] / hours[1]}

    typical = case()
    constants = [chip.provenance(prices=basis) for chip in chips]
    rows = []
    for name, per in CHARGED.items():
        without = case({name: 0.0})
        stated = [own[name] for own in constants]
        rows.append(
            {
                "name": name,
                "per": per,
                "small": _stated(stated[0]),
                "large": _stated(stated[1]),
                "usd_per_hour": {chip: typical[chip] - without[chip] for chip in SIDES},
                "ratio_at": {
                    end: devices
                    * usd_per_hour(small, basis, {name: getattr(stated[0], end)})
                    / usd_per_hour(large, basis, {name: getattr(stated[1], end)})
                    for end in ("low", "high")
                },
            }
        )
    alternatives = {
        title: case({f"{table}.{field}": records(table, entry)[field]})
        for title, (table, entry, field) in ALTERNATIVES.items()
    }
    return {
        "metric": METRIC,
        "basis": basis,
        "small": small.name,
        "large": large.name,
        "small_devices": devices,
        "charges": rows,
        "alternatives": {"as in the catalogue": typical} | alternatives,
    }


def _stated(record: Record) -> dict[str, Any]:
    return {
        "value": record.value,
        "low": record.low,
        "high": record.high,
        "unit": record.unit,
        "trust": record.trust,
    }


def shares_sections(content: Mapping[str, Any]) -> list[Section]:
    """What the screen shows."""
    small, large = content["small"], content["large"]
    devices = figure(content["small_devices"])
    return [
        Section(
            f"What is charged per package, per watt, per area: {content['basis']} basis",
            (
                f"In the columns of {small} and {large}: USD per hour of an owned device that "
                f"draws what is provisioned. The ratio is that of {devices} {small} to one "
                f"{large}, which have as many SMs, at the low and at the high value. Dies and "
                "memory are mounted on the interposer.",
                _charges(content),
            ),
        ),
        Section("Alternatives, USD per device-hour", (_alternatives(content),)),
    ]


def _charges(content: Mapping[str, Any]) -> Table:
    return Table(
        (
            "",
            "per",
            "low / typical / high",
            "unit",
            "trust",
            *(content[chip] for chip in SIDES),
            "ratio at them",
        ),
        tuple(
            (
                row["name"],
                row["per"],
                _ranges(row),
                row["small"]["unit"],
                row["small"]["trust"],
                *(figure(row["usd_per_hour"][chip], 3) for chip in SIDES),
                " / ".join(figure(row["ratio_at"][end], 3) for end in ("low", "high")),
            )
            for row in content["charges"]
        ),
        numeric=False,
    )


def _ranges(row: Mapping[str, Any]) -> str:
    """Low, typical and high value; of the small chip and of the large one where they differ."""
    ranges = (
        " / ".join(figure(row[chip][key]) for key in ("low", "value", "high")) for chip in SIDES
    )
    return "; ".join(dict.fromkeys(ranges))


def _alternatives(content: Mapping[str, Any]) -> Table:
    return Table(
        ("", content["small"], content["large"], "ratio"),
        tuple(
            (name, *(figure(row[key]) for key in ("small", "large", "ratio")))
            for name, row in content["alternatives"].items()
        ),
    )
