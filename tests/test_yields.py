"""Yield models: published values, how they hang together, and the harvest beside the exact one."""

import jax
import numpy as np
import pytest
from test_golden_machine import halves, harvest_mixture, with_leaves

from litegpu_opt.catalog import technology
from litegpu_opt.machine.silicon import field_area_mm2, harvested_yield
from litegpu_opt.machine.yields import (
    murphy_yield,
    negative_binomial_yield,
    poisson_yield,
    seeds_yield,
)
from litegpu_opt.numerics import scalar


MODELS = {
    "poisson": poisson_yield,
    "murphy": murphy_yield,
    "seeds": seeds_yield,
    "negative binomial": lambda area, defects: negative_binomial_yield(area, defects, 3.0),
}


@pytest.mark.parametrize(
    ("model", "large", "small"),
    [
        ("poisson", 0.4431, 0.8159),
        ("murphy", 0.4681, 0.8187),
        ("seeds", 1 / 1.814, 1 / 1.2035),
        ("negative binomial", 0.4867, 0.8213),
    ],
)
def test_a_defect_density_per_cm2_on_an_area_in_mm2(model, large, small):
    # 0.814 and 0.2035 defects on 814 and 203.5 mm2 at 0.1 per cm2; taken per mm2, Poisson
    # would give 4.5e-36
    for area, expected in ((814.0, large), (203.5, small)):
        assert float(MODELS[model](scalar(area), scalar(0.1))) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("model", MODELS)
def test_a_clean_wafer_is_all_good_with_finite_slopes(model):
    for area, defects in ((814.0, 0.0), (0.0, 0.1), (1e-9, 0.1)):
        value, slopes = jax.value_and_grad(MODELS[model], argnums=(0, 1))(
            scalar(area), scalar(defects)
        )
        assert float(value) == pytest.approx(1.0, abs=1e-11)
        assert np.all(np.isfinite(slopes))


@pytest.mark.parametrize("model", MODELS)
def test_one_over_yield_is_convex_in_logarithms(model):
    random = np.random.default_rng(3)
    low, high = np.log([1.0, 1e-3]), np.log([3000.0, 3.0])
    a, b = low + (high - low) * random.uniform(size=(2, 20_000, 2))

    def cost(x):
        return -np.log(MODELS[model](np.exp(x[:, 0]), np.exp(x[:, 1])))

    excess = cost(0.5 * (a + b)) - 0.5 * (cost(a) + cost(b))
    assert np.max(excess) <= 1e-12
    assert np.min(excess) < -0.1  # and far from a line somewhere


def test_seeds_and_poisson_are_ends_of_the_negative_binomial():
    areas = np.linspace(1.0, 858.0, 50)
    np.testing.assert_allclose(
        seeds_yield(areas, 0.1), negative_binomial_yield(areas, 0.1, 1.0), rtol=1e-15
    )
    # (1 + x/a)^-a = exp(-x) (1 + x^2/2a + ...)
    np.testing.assert_allclose(
        poisson_yield(areas, 0.1), negative_binomial_yield(areas, 0.1, 1e7), rtol=1e-7
    )


def test_murphy_is_near_a_clustering_of_5_5():
    def error(clustering, most):
        x = np.linspace(0.01, most, 500)
        ratio = negative_binomial_yield(100 * x, 1.0, clustering) / murphy_yield(100 * x, 1.0)
        return float(np.max(np.abs(ratio - 1.0)))

    field = float(field_area_mm2(scalar(33 / 26), technology())) * 0.1 / 100.0
    assert field == pytest.approx(0.858)
    assert error(5.5, field) <= 0.0007
    assert error(5.5, 2.0) <= 0.03
    assert min(error(a, field) for a in (5.3, 5.7)) > error(5.5, field)


@pytest.mark.parametrize("defects", [0.05, 0.07, 0.10])
@pytest.mark.parametrize("repairable", [0.58, 0.8])
@pytest.mark.parametrize("spares", [0, 1])
def test_harvested_yield_of_a_tiny_die(defects, repairable, spares):
    # 20 mm2 hold four SMs. The model has spares without end: a die with one spare is met, one
    # with none is as good as an unharvested one, which the model exceeds.
    tree = with_leaves(technology(), "process", defects_per_cm2=defects, sm_repairable=1.0)
    model = float(harvested_yield(halves(20.0, repairable), tree))
    exact = harvest_mixture(20.0, defects, repairable, 4, spares)
    if spares:
        assert model == pytest.approx(exact, rel=2e-4) and model >= exact
    else:
        assert exact == pytest.approx((1 + 0.2 * defects / 3) ** -3, rel=1e-9)
        # the killed share is all of 20 mm2 instead of what is not repairable
        expected = ((1 + 0.2 * defects / 3) / (1 + 0.2 * defects * (1 - repairable) / 3)) ** 3
        assert model / exact == pytest.approx(expected, rel=1e-9)
        assert repairable != 0.58 or model / exact <= 1.012
