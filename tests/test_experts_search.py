"""Mixtures of experts in a search: bounds of the experts touched, and an optimum between them."""

import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_study import STUDY, fourth_order, load, quiet

from litegpu_opt.execution.roofline import SoftRoof, for_pools
from litegpu_opt.optimizer.assess import sensitivities_at
from litegpu_opt.optimizer.branches import hold, stack, stacked_pools
from litegpu_opt.optimizer.ended import solved
from litegpu_opt.optimizer.experts import (
    CLOSE,
    COARSE,
    above,
    below,
    chord_error,
    divided,
    ranges_of,
)
from litegpu_opt.optimizer.groups import study_groups, study_workloads
from litegpu_opt.optimizer.hard import search_hard
from litegpu_opt.optimizer.lanes import functions_of
from litegpu_opt.optimizer.panel import optimize
from litegpu_opt.optimizer.problem import log_objectives
from litegpu_opt.optimizer.search import divide, search, solve_parts
from litegpu_opt.optimizer.solved import best_of
from litegpu_opt.optimizer.solving import solve
from litegpu_opt.space import POOL_BOX


# a step so short that only a small batch meets it: few experts are touched
MIXTURE = (
    STUDY.replace("llama-3.1-70b", "qwen3-30b-a3b")
    .replace('tbt = "50 ms"', 'tbt = "6 ms"')
    .replace("starts = 3", "starts = 1")
    .replace("tensor_parallel_max = 2", "tensor_parallel_max = 4")
)
MIXTURE = MIXTURE[: MIXTURE.index('[[candidate]]\nname = "reticle"')]
DECODE = list(POOL_BOX["batch_{}"]).index("decode")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return load(tmp_path_factory.mktemp("experts") / "study.toml", MIXTURE)


@pytest.fixture(scope="module")
def groups(study):
    return study_groups(study, study_workloads(study))


@pytest.fixture(scope="module")
def searched(study, groups):
    parts = solve_parts(groups, quiet)
    ended = search(groups, parts, study, quiet)
    divided_groups, divided_ended = divide(groups, ended, study, quiet)
    return parts, ended, divided_groups, divided_ended


def decode_experts(branch):
    """What the decode pool of a branch touches, by the batch, one value per operator."""
    experts = branch.pools.operators.experts
    return lambda batch: jax.vmap(lambda pool: pool.touched(batch))(experts)[DECODE]


@given(
    ends=st.tuples(st.floats(1.0, 5e4), st.floats(1.0, 5e4)).filter(lambda e: e[0] * 1.01 < e[1]),
    share=st.floats(0.0, 1.0),
    touching=st.floats(1.0, 5e4),
)
def test_the_experts_touched_lie_between_chord_and_tangent(groups, ends, share, touching):
    group = groups[0]
    _, branch = group.branches[0]
    decode = group.layout.variables.index("batch_decode")
    lower, upper = np.array(branch.lower), np.array(branch.upper)
    lower[decode], upper[decode] = np.log(ends)
    lanes = stack([replace(branch, lower=lower, upper=upper)])
    x = lanes.middle
    x[:, decode] = math.log(touching)
    first = lambda tree: jax.tree.map(lambda leaf: leaf[0], tree)  # noqa: E731 - the only lane
    inside = jnp.asarray(ends[0] * (ends[1] / ends[0]) ** share)
    exact = np.asarray(decode_experts(branch)(inside))
    chord = np.asarray(decode_experts(first(below(lanes)))(inside))
    tangent = decode_experts(first(above(lanes, x)))
    assert (exact > 1.0).any()
    assert (chord <= exact * (1.0 + 1e-12)).all()
    assert (exact <= np.asarray(tangent(inside)) * (1.0 + 1e-12)).all()
    # and they touch: the chord at its ends, the tangent where it is asked to
    for end in map(jnp.asarray, ends):
        at_end = np.asarray(decode_experts(first(below(lanes)))(end))
        assert at_end == pytest.approx(np.asarray(decode_experts(branch)(end)), rel=1e-9)
    there = jnp.asarray(touching)
    assert np.asarray(tangent(there)) == pytest.approx(
        np.asarray(decode_experts(branch)(there)), rel=1e-9
    )


def test_the_chord_error_is_that_of_a_concave_function(groups):
    # of 128 experts a token goes to 8; between 1 and 50,000 sequences
    pools = groups[0].branches[0][1].pools
    decode = jax.tree.map(lambda leaf: leaf[DECODE], pools)
    logs = np.linspace(0.0, math.log(5e4), 33)
    share = np.log(1.0 - (1.0 - 8 / 128) ** np.exp(logs))
    chord = share[0] + (share[-1] - share[0]) * logs / logs[-1]
    assert chord_error(decode, 1.0, 5e4) == pytest.approx(np.max(share - chord), rel=1e-9)


def test_ranges_cover_the_box_with_good_chords(groups):
    pools = groups[0].branches[0][1].pools
    for number, ranges in enumerate(ranges_of(pools)):
        pool = jax.tree.map(lambda leaf, n=number: leaf[n], pools)
        phase = ("prefill", "decode")[number]
        assert (ranges[0][0], ranges[-1][1]) == POOL_BOX["batch_{}"][phase]
        assert all(a[1] == b[0] for a, b in zip(ranges, ranges[1:], strict=False))
        assert all(chord_error(pool, *ends) <= COARSE for ends in ranges)
    # prompts are long enough to touch every expert
    assert [len(ranges) for ranges in ranges_of(pools)][0] == 1


def test_halves_cover_their_branch(groups):
    group = groups[0]
    branch = group.branches[2][1]
    left, right = divided(branch, branch.middle)
    decode = group.layout.variables.index("batch_decode")
    assert left.lower[decode] == branch.lower[decode]
    assert right.upper[decode] == branch.upper[decode]
    assert left.upper[decode] == right.lower[decode]
    middle, cut = branch.middle[decode], left.upper[decode]
    assert cut != middle
    assert branch.lower[decode] < cut < branch.upper[decode]


def test_the_gap_closes(searched):
    _, before, _, after = searched
    assert before[0].least - before[0].bound.min() > CLOSE
    assert after[0].least - after[0].bound.min() <= CLOSE
    assert after[0].bound.min() >= before[0].bound.min()
    assert after[0].least <= before[0].least + 1e-9


def test_few_experts_are_touched_at_the_optimum(searched):
    """Otherwise this study would not test much."""
    _, _, groups, ended = searched
    best = best_of(groups[0], ended[0])
    experts = best.branch.pools.operators.experts
    touched = decode_experts(best.branch)(jnp.asarray(best.variables["batch_decode"]))
    share = np.asarray(touched)[experts.held[DECODE] > 0] / experts.held[DECODE].max()
    assert 0.2 < share.max() < 0.95


def test_the_optimum_is_that_of_the_true_model(searched):
    _, _, groups, ended = searched
    best = best_of(groups[0], ended[0])
    roofs = for_pools(SoftRoof(best.branch.technology.execution.overlap_exponent))
    values = functions_of(best.branch, roofs)(jnp.asarray(best.x))
    assert float(values[0]) == pytest.approx(best.value, abs=1e-9)
    assert float(values[1:].max()) <= 1e-7


def test_no_batch_is_better(groups, searched):
    """Every decode batch of a grid, exactly: at a held batch the problem is convex."""
    _, _, _, ended = searched
    group = groups[0]
    whole = {choice.pairs: branch for choice, branch in group.branches}
    batches = np.geomspace(3.0, 20.0, 80)
    rows = [
        hold(branch, group.layout, {"batch_decode": float(batch)})
        for branch in whole.values()
        for batch in batches
    ]
    branches = stack(rows)
    outcome = solve(branches, branches.middle, "grid", quiet)
    values = np.where(solved(outcome), outcome.value, np.inf)
    assert np.isfinite(values).sum() > 20
    assert ended[0].bound.min() <= values.min()
    assert ended[0].least <= values.min() + 1e-9
    # the grid is dense enough to come near
    assert values.min() <= ended[0].least + 2e-2


def test_the_hard_roofline_has_its_bound(searched):
    parts, _, groups, ended = searched
    hard = search_hard(groups, ended, parts, quiet)[0]
    assert hard.value < ended[0].least
    assert hard.value - CLOSE <= hard.bound <= hard.value


@pytest.mark.slow
def test_the_whole_study(study):
    [workload] = optimize(study).panel
    [lite] = workload.optima
    assert lite.soft.gap <= 2 * CLOSE
    assert lite.at_box == {}
    assert lite.buildable is not None
    # whole stacks and a batch of a few sequences are far from the relaxed optimum
    assert lite.buildable.objective >= lite.buildable.lattice_lower_bound >= lite.soft.lower_bound
    batch = lite.buildable.run.values["batch_decode"]
    assert batch == round(batch)


def test_a_dense_model_beside_a_mixture_is_the_same(tmp_path):
    text = STUDY[: STUDY.index('[[candidate]]\nname = "reticle"')]
    begin, end = text.index("[[workload]]"), text.index("[[candidate]]")
    dense = text[begin:end]
    mixture = dense.replace("llama-3.1-70b", "qwen3-30b-a3b").replace('"70b"', '"moe"')
    values = []
    for name, workloads in (("alone", dense), ("beside", dense + mixture)):
        study = load(tmp_path / f"{name}.toml", text[:begin] + workloads + text[end:])
        group = study_groups(study, study_workloads(study))[0]
        _, branch = group.branches[0]
        values.append(np.asarray(log_objectives(jnp.asarray(branch.middle), branch)))
    assert values[0] == pytest.approx(values[1], rel=1e-14)


def test_idle_experts_weigh_nothing(groups):
    experts = groups[0].branches[0][1].pools.operators.experts
    idle = eqx.tree_at(lambda e: [e.gb, e.held, e.log_miss_per_seq], experts, [0 * experts.gb] * 3)
    assert float(jnp.max(idle.gb * idle.touched(jnp.asarray(8.0)))) == 0.0


def test_what_a_mixture_is_worth_to_the_workload(searched, groups):
    """Re-solved with other requests; at the optimum the true experts count, not their bounds."""
    _, _, divided_groups, ended = searched
    group, end = divided_groups[0], ended[0]
    best = best_of(group, end)
    multipliers = end.at_best_start(end.lanes.multipliers)[end.best]
    workloads = group.task.workloads
    [(elasticities, _)] = sensitivities_at([best], [multipliers], [workloads])
    pairs = best.choice.pairs
    step, branches = 0.01, []
    for name in ("prompt_tokens", "output_tokens"):
        for steps in (-2, -1, 1, 2):
            there = eqx.tree_at(
                lambda w, name=name: getattr(w.traffic, name),
                workloads[""],
                getattr(workloads[""].traffic, name) * math.exp(steps * step),
            )
            pools = stacked_pools(there, pairs, experts=True)[pairs]
            branches.append(replace(best.branch, pools=pools))
    lanes = stack(branches)
    outcome = solve(lanes, np.stack([best.x] * len(branches)), "re-solved", quiet)
    assert solved(outcome).all()
    slopes = [fourth_order(row, step) for row in np.asarray(outcome.value).reshape(-1, 4)]
    expected = [elasticities[f"workload.{name}_tokens"] for name in ("prompt", "output")]
    assert slopes == pytest.approx(expected, abs=1e-6)
    assert abs(slopes[0]) > 0.01 and abs(slopes[1]) > 0.01
