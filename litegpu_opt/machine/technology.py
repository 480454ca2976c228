"""What physics and the market allow: one frozen pytree per catalogue table.

Every leaf is a JAX scalar whose value, range, unit, source and trust stand in
`catalog/technologies/<table>.toml` under the same field name. Units are in the
names; every bandwidth is per direction; GB = 1e9 bytes.
"""

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ..numerics import scalar


def leaf() -> Array:
    """A numeric field of a technology table."""
    return eqx.field(converter=scalar)


class Process(eqx.Module):
    """Logic process and the floorplan of a die built in it."""

    # wafer and yield
    wafer_usd: Array = leaf()
    wafer_diameter_mm: Array = leaf()
    wafer_edge_mm: Array = leaf()
    scribe_mm: Array = leaf()
    defects_per_cm2: Array = leaf()
    clustering: Array = leaf()
    sort_share: Array = leaf()
    bump_usd_per_mm2: Array = leaf()
    nre_musd: Array = leaf()
    # reticle field and die edge
    field_long_mm: Array = leaf()
    field_short_mm: Array = leaf()
    usable_edge_share: Array = leaf()
    fixed_edge_mm: Array = leaf()
    # blocks
    sm_mm2: Array = leaf()
    tensor_mm2_per_kflop_clk: Array = leaf()
    sram_mm2_per_mb: Array = leaf()
    sram_mb_per_sm: Array = leaf()
    fixed_mm2: Array = leaf()
    sm_built_per_enabled: Array = leaf()
    sm_repairable: Array = leaf()
    sram_repairable: Array = leaf()
    memory_phy_repairable: Array = leaf()
    # rates
    flop_per_clock_bf16: Array = leaf()
    flop_per_clock_fp8: Array = leaf()
    reference_clock_ghz: Array = leaf()
    max_clock_ghz: Array = leaf()
    # power
    voltage_slope: Array = leaf()
    voltage_floor: Array = leaf()
    idle_w_per_mm2: Array = leaf()
    pj_per_sm_clock: Array = leaf()
    pj_per_flop_bf16: Array = leaf()
    pj_per_flop_fp8: Array = leaf()
    operand_pj_per_bit: Array = leaf()


class Memory(eqx.Module):
    """Memory beside the die or on the board; a stack is what one memory site drives."""

    stack_tb_s: Array = leaf()
    stack_min_gb: Array = leaf()
    stack_max_gb: Array = leaf()
    edge_mm_per_stack: Array = leaf()
    phy_mm2_per_stack: Array = leaf()
    sites_per_stack: Array = leaf()
    footprint_mm2_per_stack: Array = leaf()
    usd_per_stack: Array = leaf()
    usd_per_gb: Array = leaf()
    pj_per_bit: Array = leaf()


class Interconnect(eqx.Module):
    """Scale-up link; prices and energies are per end."""

    edge_gb_s_per_mm: Array = leaf()
    phy_mm2_per_gb_s: Array = leaf()
    pj_per_bit: Array = leaf()
    usd_per_gbit_s: Array = leaf()
    hop_us: Array = leaf()
    """Latency of both ends and the way between them."""
    floor_gb_s: Array = leaf()
    port_gb_s: Array = leaf()
    largest_domain: Array = leaf()
    """Devices that such links join."""


class Switch(eqx.Module):
    """What joins the links of a scale-up domain, or their direct joining; per port."""

    usd_per_gbit_s: Array = leaf()
    pj_per_bit: Array = leaf()
    hop_us: Array = leaf()
    ends_per_port: Array = leaf()
    """Link ends for each port of a device: two to a packet switch, else one of its own."""
    largest_domain: Array = leaf()
    """Devices that it joins."""


class Package(eqx.Module):
    """Substrate, interposer, assembly, and the link between dies of one package."""

    interposer_per_area: Array = leaf()
    interposer_usd_per_mm2: Array = leaf()
    interposer_defects_per_cm2: Array = leaf()
    substrate_per_area: Array = leaf()
    substrate_usd_per_mm2: Array = leaf()
    bond_yield: Array = leaf()
    attach_usd_per_stack: Array = leaf()
    test_usd: Array = leaf()
    test_usd_per_mm2: Array = leaf()
    die_link_gb_s_per_mm: Array = leaf()
    """The one bandwidth that counts both directions together, as UCIe is quoted."""
    die_link_mm2_per_mm: Array = leaf()
    die_link_pj_per_bit: Array = leaf()


class Cooling(eqx.Module):
    """What a cooler can carry away, and the facility overhead that goes with it."""

    sink_k_per_w: Array = leaf()
    """From the base of the cooler to the air or coolant that comes in, per package."""
    spreading_k_mm2_per_w: Array = leaf()
    """From the junction to the base: die, interface and spreading."""
    max_junction_rise_k: Array = leaf()
    """Hottest junction allowed, less the air or coolant that comes in."""
    limit_package_w: Array = leaf()
    pue: Array = leaf()


class Prices(eqx.Module):
    """Board, host, data centre, electricity and money."""

    host_usd_per_package: Array = leaf()
    host_usd_per_w: Array = leaf()
    host_usd_per_gb_s: Array = leaf()
    host_power_share: Array = leaf()
    facility_usd_per_w: Array = leaf()
    electricity_usd_per_kwh: Array = leaf()
    it_life_years: Array = leaf()
    facility_life_years: Array = leaf()
    interest: Array = leaf()
    opex_share: Array = leaf()
    spare_share: Array = leaf()
    """Spare devices owned per device in service."""
    gross_margin: Array = leaf()
    load_factor: Array = leaf()
    nre_charged: Array = leaf()
    fleet_lifetime_tokens_e15: Array = leaf()


class Rating(eqx.Module):
    """Clock and utilisation at which the thermal design power is rated, in two kinds of phase."""

    rated_clock_share: Array = leaf()
    """Clock at which the TDP is drawn over the design's clock."""
    compute_phase_fp8: Array = leaf()
    compute_phase_memory: Array = leaf()
    memory_phase_compute: Array = leaf()
    memory_phase_memory: Array = leaf()


class Execution(eqx.Module):
    """How much of the peaks real software reaches, and its fixed times.

    On hardware that does not exist every leaf keeps its value. What that means: shares of a rate
    (efficiencies, `pass_slowdown`) follow the rate; times in us (`launch_us` to `sequence_us`,
    `request_ms`) do not shrink with the die, which is what small dies in large groups lose most to;
    the keys of `attention_extra_keys` belong to the tiles of an SM and stay with an SM of the same
    rate; time per hop and per root of a message follow hop and bandwidth.
    """

    compute_efficiency_bf16: Array = leaf()
    compute_efficiency_fp8: Array = leaf()
    attention_efficiency: Array = leaf()
    memory_efficiency: Array = leaf()
    network_efficiency: Array = leaf()
    attention_extra_keys: Array = leaf()
    """Keys that every query of a prompt costs beyond those it sees: tiles that are not full."""
    pass_slowdown: Array = leaf()
    """Time of separate elementwise passes over that of their bytes at the peak; 0 where they are
    part of the kernels beside them."""
    fixed_time_factor: Array = leaf()
    """Fixed times of a software stack over those of kernels measured on their own."""
    launch_us: Array = leaf()
    """Of any kernel."""
    launch_us_per_k: Array = leaf()
    """Of a matrix product, for every 1024 products that are summed into a result."""
    attention_us: Array = leaf()
    """Of an attention call, beyond a kernel's."""
    pass_us: Array = leaf()
    """Of a separate elementwise pass."""
    sequence_us: Array = leaf()
    """Of a step for each of its sequences: sampling and the host."""
    request_ms: Array = leaf()
    """Of a request before its first token: server, tokeniser, scheduler."""
    collective_us: Array = leaf()
    collective_us_per_step: Array = leaf()
    reference_hop_us: Array = leaf()
    """Latency of a hop, link and switch, where the time per step was measured."""
    collective_us_per_sqrt_mb: Array = leaf()
    reference_network_gb_s: Array = leaf()
    """Bandwidth of the device where the time per root of a message was measured: it goes with the
    root of the bandwidth as well."""
    overlap_exponent: Array = leaf()
    memory_usable_share: Array = leaf()
    power_capped: Array = leaf()
    """1 where a phase slows down to stay within the TDP, 0 where power does not limit it."""


class Technology(eqx.Module):
    """A complete set of assumptions; any combination of catalogue tables is one."""

    process: Process
    memory: Memory
    interconnect: Interconnect
    switch: Switch
    package: Package
    cooling: Cooling
    prices: Prices
    rating: Rating
    execution: Execution

    @property
    def far_pj_per_bit(self) -> Array:
        """Energy of a bit beyond the device: the other end of its link, and the switch."""
        return self.interconnect.pj_per_bit + self.switch.pj_per_bit

    @property
    def relative_hop(self) -> Array:
        """Latency of a hop over that of the network on which collectives were measured."""
        return (self.interconnect.hop_us + self.switch.hop_us) / self.execution.reference_hop_us

    @property
    def largest_domain(self) -> Array:
        """Devices that one scale-up domain can join: what the links and the switch both can."""
        return jnp.minimum(self.interconnect.largest_domain, self.switch.largest_domain)


TABLES: dict[str, type[eqx.Module]] = {
    "process": Process,
    "memory": Memory,
    "interconnect": Interconnect,
    "switch": Switch,
    "package": Package,
    "cooling": Cooling,
    "prices": Prices,
    "rating": Rating,
    "execution": Execution,
}
"""Table name -> its class; the catalogue has one TOML file per table."""
