"""Formulas of the dollars: bill of materials, capital, a device-hour by line."""

from ...machine.cost import (
    HOURS_PER_YEAR,
    JOULES_PER_KWH,
    SECONDS_PER_HOUR,
    bill_of_materials,
    capital,
    nre_usd_per_token,
    provisioned_w,
    recovery_factor,
    usd_per_joule,
    yearly_cost,
)
from ...machine.design import Design
from ...machine.power import JOULE_PER_GB_PJ_BIT, thermal_design_power_w
from ...machine.technology import Technology
from ...numerics import AnyArray
from .formulas import Quantity


PACKAGE = {
    "interposer_mm2": Quantity(
        "package.interposer_per_area * (design.die_area_mm2 * design.dies_per_package"
        " + memory.footprint_mm2_per_stack * design.memory_stacks)",
        "mm2",
        "interposer under dies and stacks",
    ),
    "dies_usd": Quantity("design.dies_per_package * die_usd", "USD", "dies"),
    "memory_usd": Quantity(
        "memory.usd_per_stack * design.memory_stacks + memory.usd_per_gb * design.memory_gb",
        "USD",
        "memory",
    ),
    "interposer_usd": Quantity(
        "package.interposer_usd_per_mm2 * interposer_mm2"
        " * exp(package.interposer_defects_per_cm2 * interposer_mm2 / 100)",
        "USD",
        "interposer over its yield",
    ),
    "substrate_usd": Quantity(
        "package.substrate_usd_per_mm2 * package.substrate_per_area * interposer_mm2",
        "USD",
        "substrate",
    ),
    "attach_usd": Quantity(
        "package.attach_usd_per_stack * design.memory_stacks", "USD", "attaching the memory"
    ),
    "test_and_assembly_usd": Quantity(
        "package.test_usd + package.test_usd_per_mm2 * (design.die_area_mm2"
        " * design.dies_per_package + memory.footprint_mm2_per_stack * design.memory_stacks)",
        "USD",
        "test and assembly",
    ),
    "scrap_usd": Quantity(
        "(dies_usd + memory_usd + interposer_usd + substrate_usd + attach_usd"
        " + test_and_assembly_usd)"
        " * (package.bond_yield ** -(design.dies_per_package + design.memory_stacks) - 1)",
        "USD",
        "everything in the packages that fail in assembly",
    ),
    "unit_cost_usd": Quantity(
        "dies_usd + memory_usd + interposer_usd + substrate_usd + attach_usd"
        " + test_and_assembly_usd + scrap_usd",
        "USD",
        "bill of materials of a package",
    ),
}


def _recovery(interest: str, years: str, rate: float) -> str:
    """The formula of `recovery_factor`, or its limit without interest."""
    return f"{interest} / (1 - (1 + {interest}) ** -{years})" if rate else f"1 / {years}"


def money(interest: float) -> dict[str, Quantity]:
    """Dollars of a device-hour, for an interest rate or none."""
    hours = f"{HOURS_PER_YEAR:g}"
    return {
        "accelerator_capital_usd": Quantity(
            "unit_cost_usd / (1 - prices.gross_margin)", "USD", "accelerator with the margin"
        ),
        "host_capital_usd": Quantity(
            "prices.host_usd_per_package + prices.host_usd_per_w * tdp_w"
            " + prices.host_usd_per_gb_s * design.network_gb_s",
            "USD",
            "share of host and board",
        ),
        "network_capital_usd": Quantity(
            "8 * (switch.ends_per_port * interconnect.usd_per_gbit_s + switch.usd_per_gbit_s)"
            " * design.network_gb_s",
            "USD",
            "link ends and a switch port; 8 Gb/s are 1 GB/s",
        ),
        "provisioned_w": Quantity(
            f"(1 + prices.host_power_share) * tdp_w + {JOULE_PER_GB_PJ_BIT}"
            " * far_pj_per_bit * design.network_gb_s",
            "W",
            "TDP, the host's share, far link ends and switches",
        ),
        "facility_capital_usd": Quantity(
            "prices.facility_usd_per_w * provisioned_w", "USD", "data centre"
        ),
        "it_recovery": Quantity(
            _recovery("prices.interest", "prices.it_life_years", interest),
            "1/year",
            "share of IT capital repaid per year",
        ),
        "facility_recovery": Quantity(
            _recovery("prices.interest", "prices.facility_life_years", interest),
            "1/year",
            "share of the facility repaid per year",
        ),
        "it_capital_usd": Quantity(
            "accelerator_capital_usd + host_capital_usd + network_capital_usd",
            "USD",
            "IT equipment of a device",
        ),
        "accelerator_usd_per_hour": Quantity(
            f"it_recovery * accelerator_capital_usd / {hours}", "USD/h", "accelerator"
        ),
        "host_usd_per_hour": Quantity(f"it_recovery * host_capital_usd / {hours}", "USD/h", "host"),
        "network_usd_per_hour": Quantity(
            f"it_recovery * network_capital_usd / {hours}", "USD/h", "network"
        ),
        "facility_usd_per_hour": Quantity(
            f"facility_recovery * facility_capital_usd / {hours}", "USD/h", "facility"
        ),
        "operations_usd_per_hour": Quantity(
            f"prices.opex_share * it_capital_usd / {hours}", "USD/h", "operations"
        ),
        "spares_usd_per_hour": Quantity(
            f"prices.spare_share * (it_recovery + prices.opex_share) * it_capital_usd / {hours}",
            "USD/h",
            "spare devices",
        ),
        "ownership_usd_per_hour": Quantity(
            "accelerator_usd_per_hour + host_usd_per_hour + network_usd_per_hour"
            " + facility_usd_per_hour + operations_usd_per_hour + spares_usd_per_hour",
            "USD/h",
            "owning a device",
        ),
        "usd_per_joule": Quantity(
            f"prices.electricity_usd_per_kwh * cooling.pue / {JOULES_PER_KWH:.0f}",
            "USD/J",
            "electricity at the meter",
        ),
        "nre_usd_per_token": Quantity(
            "1e6 * process.nre_musd * prices.nre_charged"
            " / (1e15 * prices.fleet_lifetime_tokens_e15)",
            "USD",
            "design cost over all tokens of the fleet",
        ),
    }


AT_TDP = {
    "electricity_usd_per_hour": Quantity(
        "3600 * usd_per_joule * provisioned_w",
        "USD/h",
        "electricity of a device that draws what is provisioned, at most; state a model for less",
    ),
    "device_hour_usd": Quantity(
        "ownership_usd_per_hour + electricity_usd_per_hour", "USD/h", "an owned device"
    ),
}
"""A device-hour without a workload."""


def money_values(design: Design, technology: Technology) -> dict[str, AnyArray]:
    """From the functions of the model; the rest is worked out from its text."""
    prices = technology.prices
    bill = bill_of_materials(design, technology)
    tdp_w = thermal_design_power_w(design, technology)
    spent = capital(design, tdp_w, technology)
    year = yearly_cost(design, tdp_w, technology)
    return {
        **vars(bill),
        "unit_cost_usd": bill.total_usd,
        **{name.replace("_usd", "_capital_usd"): usd for name, usd in vars(spent).items()},
        "provisioned_w": provisioned_w(tdp_w, design, technology),
        "it_recovery": recovery_factor(prices.interest, prices.it_life_years),
        "facility_recovery": recovery_factor(prices.interest, prices.facility_life_years),
        **{f"{name}_per_hour": usd / HOURS_PER_YEAR for name, usd in vars(year).items()},
        "ownership_usd_per_hour": SECONDS_PER_HOUR * year.usd_per_second,
        "usd_per_joule": usd_per_joule(technology),
        "nre_usd_per_token": nre_usd_per_token(technology),
    }
