"""Formulas of the silicon: area, edge, dies per wafer, yield, die cost."""

from ...machine.cost import die_usd
from ...machine.design import Design
from ...machine.silicon import (
    blocks,
    die_link_edge_mm,
    dies_per_wafer,
    edge_available_mm,
    edge_needed_mm,
    field_area_mm2,
    harvested_yield,
    killed_mm2,
)
from ...machine.technology import Technology
from ...machine.yields import murphy_yield, poisson_yield, seeds_yield
from ...numerics import AnyArray
from .formulas import Quantity


SILICON = {
    "sm_area_mm2": Quantity(
        "process.sm_built_per_enabled * design.sm_count / design.dies_per_package * (process.sm_mm2"
        " + process.tensor_mm2_per_kflop_clk * process.flop_per_clock_bf16 / 1000)",
        "mm2",
        "SMs with their spares, tensor units and share of the crossbar",
    ),
    "sram_area_mm2": Quantity(
        "process.sm_built_per_enabled * design.sm_count / design.dies_per_package"
        " * process.sram_mm2_per_mb * process.sram_mb_per_sm",
        "mm2",
        "cache on the die",
    ),
    "memory_phy_area_mm2": Quantity(
        "memory.sites_per_stack * memory.phy_mm2_per_stack * design.memory_stacks"
        " / design.dies_per_package",
        "mm2",
        "memory interfaces and controllers",
    ),
    "network_phy_area_mm2": Quantity(
        "interconnect.phy_mm2_per_gb_s * design.network_gb_s / design.dies_per_package",
        "mm2",
        "network interfaces",
    ),
    "die_link_edge_mm": Quantity(
        "2 * (1000 * design.memory_stacks * memory.stack_tb_s / design.dies_per_package)"
        " * (design.dies_per_package - 1) / design.dies_per_package / package.die_link_gb_s_per_mm",
        "mm",
        "edge of a die for the memory traffic to its neighbours in the package",
    ),
    "die_link_area_mm2": Quantity(
        "package.die_link_mm2_per_mm * die_link_edge_mm", "mm2", "link to the neighbour dies"
    ),
    "block_area_mm2": Quantity(
        "sm_area_mm2 + sram_area_mm2 + memory_phy_area_mm2 + network_phy_area_mm2"
        " + die_link_area_mm2 + process.fixed_mm2",
        "mm2",
        "all blocks of one die; its area must be at least this",
    ),
    "field_area_mm2": Quantity(
        "min(process.field_long_mm * process.field_short_mm,"
        " process.field_long_mm ** 2 / design.aspect_ratio,"
        " process.field_short_mm ** 2 * design.aspect_ratio)",
        "mm2",
        "largest die of this outline in the reticle field",
    ),
    "edge_needed_mm": Quantity(
        "memory.sites_per_stack * memory.edge_mm_per_stack * design.memory_stacks"
        " / design.dies_per_package"
        " + design.network_gb_s / design.dies_per_package / interconnect.edge_gb_s_per_mm"
        " + die_link_edge_mm + process.fixed_edge_mm",
        "mm",
        "die edge for memory, network, neighbours and fixed interfaces",
    ),
    "edge_available_mm": Quantity(
        "process.usable_edge_share * 2 * (sqrt(design.aspect_ratio)"
        " + 1 / sqrt(design.aspect_ratio)) * sqrt(design.die_area_mm2)",
        "mm",
        "usable share of the perimeter of a die",
    ),
    "usable_radius_mm": Quantity(
        "process.wafer_diameter_mm / 2 - process.wafer_edge_mm", "mm", "wafer inside its edge"
    ),
    "pitch_area_mm2": Quantity(
        "(sqrt(design.die_area_mm2) + process.scribe_mm) ** 2", "mm2", "a die with its scribe line"
    ),
    "dies_per_wafer": Quantity(
        "pi * usable_radius_mm ** 2 / pitch_area_mm2"
        " * max(0, 1 - sqrt(2 * pitch_area_mm2) / usable_radius_mm)",
        "",
        "gross dies of a wafer, less those cut by its rim; none beyond it",
    ),
    "killed_mm2": Quantity(
        "sm_area_mm2 * (1 - process.sm_repairable)"
        " + sram_area_mm2 * (1 - process.sram_repairable)"
        " + memory_phy_area_mm2 * (1 - process.memory_phy_repairable)"
        " + network_phy_area_mm2 + die_link_area_mm2 + process.fixed_mm2",
        "mm2",
        "area on which a defect kills the die: blocks less their repairable share",
    ),
    "die_yield": Quantity(
        "(1 + killed_mm2 * process.defects_per_cm2 / (100 * process.clustering))"
        " ** -process.clustering",
        "",
        "negative binomial: dies good enough to sell",
    ),
    "poisson_yield": Quantity(
        "exp(-killed_mm2 * process.defects_per_cm2 / 100)", "", "Poisson, not used: clustering none"
    ),
    "murphy_yield": Quantity(
        "((1 - exp(-killed_mm2 * process.defects_per_cm2 / 100))"
        " / (killed_mm2 * process.defects_per_cm2 / 100)) ** 2",
        "",
        "Murphy, not used: near a clustering of 5.5",
    ),
    "seeds_yield": Quantity(
        "1 / (1 + killed_mm2 * process.defects_per_cm2 / 100)", "", "Seeds, not used: clustering 1"
    ),
    "good_dies_per_wafer": Quantity("dies_per_wafer * die_yield", "", "known-good dies of a wafer"),
    "die_usd": Quantity(
        "process.wafer_usd / good_dies_per_wafer * (1 + process.sort_share)"
        " + process.bump_usd_per_mm2 * design.die_area_mm2",
        "USD",
        "known-good die: its part of the wafer, sorting, bumps",
    ),
    "whole_dies_usd": Quantity(
        "process.wafer_usd / (floor(dies_per_wafer) * die_yield)",
        "USD",
        "not used: bare silicon of a die, with whole dies on a wafer",
    ),
}


def silicon_values(design: Design, technology: Technology) -> dict[str, AnyArray]:
    """From the functions of the model; the rest of `SILICON` is worked out from its text."""
    defects = technology.process.defects_per_cm2
    parts = blocks(design, technology)
    killed = killed_mm2(parts, technology)
    return {
        "sm_area_mm2": parts.sm_mm2,
        "sram_area_mm2": parts.sram_mm2,
        "memory_phy_area_mm2": parts.memory_phy_mm2,
        "network_phy_area_mm2": parts.network_phy_mm2,
        "die_link_edge_mm": die_link_edge_mm(design, technology),
        "die_link_area_mm2": parts.die_link_mm2,
        "block_area_mm2": parts.total_mm2,
        "field_area_mm2": field_area_mm2(design.aspect_ratio, technology),
        "edge_needed_mm": edge_needed_mm(design, technology),
        "edge_available_mm": edge_available_mm(design, technology),
        "dies_per_wafer": dies_per_wafer(design.die_area_mm2, technology),
        "killed_mm2": killed,
        "die_yield": harvested_yield(parts, technology),
        "poisson_yield": poisson_yield(killed, defects),
        "murphy_yield": murphy_yield(killed, defects),
        "seeds_yield": seeds_yield(killed, defects),
        "die_usd": die_usd(design, technology),
    }
