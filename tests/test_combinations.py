"""Any combination of catalogue entries is one `Technology`; all of them are one vmapped call."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from litegpu_opt import catalog
from litegpu_opt.catalog import HARDWARE_TABLES, names, technology
from litegpu_opt.errors import UserError
from litegpu_opt.machine.cost import bill_of_materials, yearly_cost
from litegpu_opt.machine.design import Design
from litegpu_opt.machine.power import thermal_design_power_w
from litegpu_opt.machine.silicon import blocks
from litegpu_opt.machine.technology import TABLES, Technology
from litegpu_opt.space import DESIGN_BOX, DESIGN_VARIABLES


ASKED = {
    "process": {"n7", "n4", "n3", "n2"},
    "memory": {"hbm2e", "hbm3", "hbm3e", "hbm4", "hbm-co", "gddr6", "gddr7", "lpddr5x"},
    "interconnect": {"nvlink4", "nvlink5", "pluggable", "cpo", "cpo-next", "microled"},
    "switch": {"nvswitch", "ethernet", "ocs", "mesh"},
    "package": {"organic", "interposer", "bridge"},
    "cooling": {"air", "liquid"},
}
ENTRIES = {table: names(table) for table in HARDWARE_TABLES}
COMBINATIONS = list(itertools.product(*(range(len(of_table)) for of_table in ENTRIES.values())))


@pytest.mark.parametrize("table", HARDWARE_TABLES)
def test_entries_that_a_chip_may_be_built_of(table):
    assert set(names(table)) >= ASKED[table]


@pytest.fixture(scope="module")
def combined():
    """Every combination, as one pytree with a leading axis."""
    default = technology()
    rows = dict(zip(HARDWARE_TABLES, np.array(COMBINATIONS).T, strict=True))
    tables = {}
    for table in TABLES:
        if table in rows:
            each = [getattr(technology(None, **{table: entry}), table) for entry in ENTRIES[table]]
            assert len({jax.tree.structure(one) for one in each}) == 1
            leaves = jax.tree.map(lambda *leaf: jnp.stack(leaf), *each)
            tables[table] = jax.tree.map(lambda leaf, at=rows[table]: leaf[at], leaves)
        else:
            tables[table] = jax.tree.map(
                lambda leaf: jnp.broadcast_to(leaf, (len(COMBINATIONS),)), getattr(default, table)
            )
    return Technology(**tables)


def figures(x, tree, dies):
    """Logarithms of cost, power and area of a design at logarithms x."""
    values = dict(zip(DESIGN_VARIABLES, jnp.exp(x), strict=True))
    design = Design(**values, aspect_ratio=1.27, dies_per_package=dies)
    tdp_w = thermal_design_power_w(design, tree)
    return jnp.log(
        jnp.stack(
            [
                bill_of_materials(design, tree).total_usd,
                yearly_cost(design, tdp_w, tree).usd_per_second,
                tdp_w,
                blocks(design, tree).total_mm2,
            ]
        )
    )


LOWER, UPPER = np.log([DESIGN_BOX[name] for name in DESIGN_VARIABLES]).T
SPREAD = np.random.default_rng(4).uniform(size=(2, len(COMBINATIONS), len(LOWER)))
ENDS = LOWER + (UPPER - LOWER) * SPREAD
DIES = np.resize([1.0, 2.0, 4.0], len(COMBINATIONS))


def test_all_combinations_are_one_call_with_finite_figures_and_slopes(combined):
    assert len(COMBINATIONS) > 10_000
    both = jax.jit(jax.vmap(lambda *point: (figures(*point), jax.jacrev(figures)(*point))))
    values, slopes = both(ENDS[0], combined, DIES)
    assert values.shape == (len(COMBINATIONS), 4)
    assert np.isfinite(values).all() and np.isfinite(slopes).all()
    assert both._cache_size() == 1
    # a batched lane is what the same combination gives alone
    for lane in range(0, len(COMBINATIONS), len(COMBINATIONS) // 7):
        chosen = {
            table: ENTRIES[table][at]
            for table, at in zip(HARDWARE_TABLES, COMBINATIONS[lane], strict=True)
        }
        alone = figures(ENDS[0][lane], technology(**chosen), DIES[lane])
        np.testing.assert_allclose(values[lane], alone, rtol=1e-12)


def test_all_combinations_are_convex_in_logarithms(combined):
    """Along one chord of the search box each."""
    batched = jax.jit(jax.vmap(figures))
    low, high, middle = (
        np.asarray(batched(x, combined, DIES)) for x in (*ENDS, (ENDS[0] + ENDS[1]) / 2)
    )
    assert (middle <= (low + high) / 2 + 1e-12).all()


def test_later_processes_are_denser_thriftier_and_dearer():
    trees = [technology(process=name).process for name in ("n7", "n4", "n3", "n2")]
    for field in ("sm_mm2", "tensor_mm2_per_kflop_clk", "pj_per_sm_clock", "pj_per_flop_bf16"):
        values = [float(getattr(tree, field)) for tree in trees]
        assert values == sorted(values, reverse=True) and len(set(values)) == 4, field
    for field in ("wafer_usd", "nre_musd"):
        values = [float(getattr(tree, field)) for tree in trees]
        assert values == sorted(values) and len(set(values)) == 4, field
    # logic shrinks by more than a quarter from 5 nm to 2 nm, memory by a tenth, the pads not at all
    _, n4, _, n2 = trees
    assert float(n2.tensor_mm2_per_kflop_clk) < 0.75 * float(n4.tensor_mm2_per_kflop_clk)
    assert 0.85 < float(n2.sram_mm2_per_mb / n4.sram_mm2_per_mb) < 1.0
    assert float(n2.fixed_mm2) == float(n4.fixed_mm2)


def test_prices_of_whole_stacks():
    """USD per stack of the sources: HBM4 560 for 36 GB; HBM3e at 12 a GB."""
    for entry, gb, usd in (("hbm4", 36, 560), ("hbm3e", 36, 432)):
        m = catalog.records("memory", entry)
        assert m["usd_per_stack"].value + gb * m["usd_per_gb"].value == pytest.approx(usd, rel=0.01)
    # less capacity at the same bandwidth: dearer a GB, cheaper a GB/s
    m = catalog.records("memory", "hbm-co")
    stack_usd = m["usd_per_stack"].value + 12 * m["usd_per_gb"].value
    assert stack_usd / 12 > 432 / 36 and stack_usd / m["stack_tb_s"].value < 432 / 1.0


def test_every_offered_capacity_is_within_the_stack():
    for entry in names("memory"):
        m, offered = catalog.records("memory", entry), catalog.offered_gb(entry)
        ends = (m["stack_min_gb"].value, m["stack_max_gb"].value)
        assert (min(offered), max(offered)) == ends, entry


def test_what_is_known_beyond_the_model_is_no_leaf():
    assert catalog.facts("interconnect", "nvlink5")["reach_m"].unit == "m"
    assert not any(
        "reach_m" in catalog.records("interconnect", name) for name in names("interconnect")
    )
    with pytest.raises(UserError, match="unknown technology value"):
        catalog.override_records({"interconnect.reach_m": 3})


def test_copper_ends_within_a_rack_and_optics_do_not():
    reach = {
        name: catalog.facts("interconnect", name)["reach_m"].value for name in names("interconnect")
    }
    assert max(reach[name] for name in ("nvlink3", "nvlink4", "nvlink5", "pcie4")) <= 3
    assert min(reach[name] for name in ("pluggable", "cpo", "cpo-next", "microled")) >= 50
