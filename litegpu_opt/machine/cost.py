"""Dollars: bill of materials, capital per device, dollars per device-second."""

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from .design import Design
from .power import JOULE_PER_GB_PJ_BIT
from .silicon import blocks, dies_per_wafer, harvested_yield
from .technology import Technology


HOURS_PER_YEAR = 8760.0
SECONDS_PER_HOUR = 3600.0
SECONDS_PER_YEAR = SECONDS_PER_HOUR * HOURS_PER_YEAR
JOULES_PER_KWH = 3.6e6
GBIT_PER_GB = 8.0


class BillOfMaterials(eqx.Module):
    """Cost of one package by line, USD."""

    dies_usd: Array
    memory_usd: Array
    interposer_usd: Array
    substrate_usd: Array
    attach_usd: Array
    test_and_assembly_usd: Array
    scrap_usd: Array
    """Everything in the packages that fail in assembly."""

    @property
    def total_usd(self) -> Array:
        """Sum of the lines."""
        return (
            self.dies_usd
            + self.memory_usd
            + self.interposer_usd
            + self.substrate_usd
            + self.attach_usd
            + self.test_and_assembly_usd
            + self.scrap_usd
        )


def die_usd(design: Design, technology: Technology) -> Array:
    """Known-good die: `C_wafer/(N Y) (1 + sort) + bump A`, with the harvested yield."""
    process = technology.process
    parts = blocks(design, technology)
    good_dies = dies_per_wafer(design.die_area_mm2, technology) * harvested_yield(parts, technology)
    return (
        process.wafer_usd / good_dies * (1.0 + process.sort_share)
        + process.bump_usd_per_mm2 * design.die_area_mm2
    )


def bill_of_materials(design: Design, technology: Technology) -> BillOfMaterials:
    """Package cost, chip-last 2.5D assembly.

    Interposer `c A_int / exp(-D A_int)`, `A_int = share (k A + footprint N_s)`; every die and
    stack is bonded with yield y, and a package that fails is lost whole: scrap is
    `y^-(k + N_s) - 1` of what goes into a package.
    """
    memory, package = technology.memory, technology.package
    dies, stacks = design.dies_per_package, design.memory_stacks
    mounted_mm2 = design.silicon_mm2 + memory.footprint_mm2_per_stack * stacks
    interposer_mm2 = package.interposer_per_area * mounted_mm2
    interposer_defects = package.interposer_defects_per_cm2 * interposer_mm2 / 100.0
    dies_usd = dies * die_usd(design, technology)
    memory_usd = memory.usd_per_stack * stacks + memory.usd_per_gb * design.memory_gb
    interposer_usd = package.interposer_usd_per_mm2 * interposer_mm2 * jnp.exp(interposer_defects)
    substrate_usd = package.substrate_usd_per_mm2 * package.substrate_per_area * interposer_mm2
    attach_usd = package.attach_usd_per_stack * stacks
    test_and_assembly_usd = package.test_usd + package.test_usd_per_mm2 * mounted_mm2
    started_usd = (
        dies_usd + memory_usd + interposer_usd + substrate_usd + attach_usd + test_and_assembly_usd
    )
    failed_per_good = jnp.expm1(-jnp.log(package.bond_yield) * (dies + stacks))
    return BillOfMaterials(
        dies_usd=dies_usd,
        memory_usd=memory_usd,
        interposer_usd=interposer_usd,
        substrate_usd=substrate_usd,
        attach_usd=attach_usd,
        test_and_assembly_usd=test_and_assembly_usd,
        scrap_usd=started_usd * failed_per_good,
    )


class Capital(eqx.Module):
    """What a device costs in a cluster, by line, USD."""

    accelerator_usd: Array
    host_usd: Array
    network_usd: Array
    facility_usd: Array


def provisioned_w(tdp_w: Array, design: Design, technology: Technology) -> Array:
    """IT power provisioned per device, W: TDP with its share of the host, and the far half of
    its links: the other end and the switch.
    """
    return (1.0 + technology.prices.host_power_share) * tdp_w + (
        JOULE_PER_GB_PJ_BIT * technology.far_pj_per_bit * design.network_gb_s
    )


def capital(design: Design, tdp_w: Array, technology: Technology) -> Capital:
    """Accelerator at `BOM/(1 - margin)`; host = a + b TDP + c network; network = link ends and a
    switch port per Gb/s; facility in proportion to the provisioned power.
    """
    prices, link, switch = technology.prices, technology.interconnect, technology.switch
    accelerator_usd = bill_of_materials(design, technology).total_usd / (1.0 - prices.gross_margin)
    usd_per_gbit_s = switch.ends_per_port * link.usd_per_gbit_s + switch.usd_per_gbit_s
    return Capital(
        accelerator_usd=accelerator_usd,
        host_usd=prices.host_usd_per_package
        + prices.host_usd_per_w * tdp_w
        + prices.host_usd_per_gb_s * design.network_gb_s,
        network_usd=GBIT_PER_GB * usd_per_gbit_s * design.network_gb_s,
        facility_usd=prices.facility_usd_per_w * provisioned_w(tdp_w, design, technology),
    )


def recovery_factor(interest: Array, years: Array) -> Array:
    """Share of a capital repaid per year: `r / (1 - (1 + r)^-L)`, and its limit 1/L at r = 0."""
    free = interest == 0.0
    rate = jnp.where(free, 1.0, interest)
    return jnp.where(free, 1.0 / years, rate / -jnp.expm1(-years * jnp.log1p(rate)))


class YearlyCost(eqx.Module):
    """What owning a device costs per year, by line, USD; energy not included."""

    accelerator_usd: Array
    host_usd: Array
    network_usd: Array
    facility_usd: Array
    operations_usd: Array
    spares_usd: Array
    """Capital and operations of the spare devices, which draw no power and need no room of their
    own in the facility: each stands in for one that is out of service."""

    @property
    def usd_per_second(self) -> Array:
        """Dollars per device-second."""
        total = (
            self.accelerator_usd
            + self.host_usd
            + self.network_usd
            + self.facility_usd
            + self.operations_usd
            + self.spares_usd
        )
        return total / SECONDS_PER_YEAR


def yearly_cost(design: Design, tdp_w: Array, technology: Technology) -> YearlyCost:
    """Amortised capital and operations; IT equipment and facility have lives of their own; spares
    are a share s of the IT equipment: `s (crf + opex) C_IT`.
    """
    prices = technology.prices
    lines = capital(design, tdp_w, technology)
    it_rate = recovery_factor(prices.interest, prices.it_life_years)
    facility_rate = recovery_factor(prices.interest, prices.facility_life_years)
    it_usd = lines.accelerator_usd + lines.host_usd + lines.network_usd
    # of IT equipment with its operation, per year
    it_share = it_rate + prices.opex_share
    return YearlyCost(
        accelerator_usd=it_rate * lines.accelerator_usd,
        host_usd=it_rate * lines.host_usd,
        network_usd=it_rate * lines.network_usd,
        facility_usd=facility_rate * lines.facility_usd,
        operations_usd=prices.opex_share * it_usd,
        spares_usd=prices.spare_share * it_share * it_usd,
    )


def usd_per_joule(technology: Technology) -> Array:
    """Electricity at the meter, with the facility's overhead: `c PUE / 3.6e6`."""
    prices = technology.prices
    return prices.electricity_usd_per_kwh * technology.cooling.pue / JOULES_PER_KWH


def nre_usd_per_token(technology: Technology) -> Array:
    """Design and mask cost over all output tokens that the fleet makes in its life.

    On a price basis the margin pays for it (`nre_charged` = 0).
    """
    nre_usd = 1e6 * technology.process.nre_musd * technology.prices.nre_charged
    return nre_usd / (1e15 * technology.prices.fleet_lifetime_tokens_e15)
