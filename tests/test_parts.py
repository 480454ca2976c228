"""Bounds of single pools: below every branch that they stand for, so none is lost wrongly."""

import math

import numpy as np
import pytest
from small_study import STUDY, Searched, load, solve

from litegpu_opt.optimizer.groups import study_groups, study_workloads
from litegpu_opt.optimizer.parts import parts_of, splits


# four degrees for each phase, and two outlines for the reticle-sized die
WIDER = STUDY.replace("tensor_parallel_max = 2", "tensor_parallel_max = 8").replace(
    "aspect_ratios = [1.27]", "aspect_ratios = [1.27, 1.6]"
)
NAMES = ("lite", "reticle", "h100-sxm")


class BruteForce:
    """A study in which every branch is solved, whatever its parts say."""

    def __init__(self, study):
        self.searched = Searched(study)
        self.values, self.proved = {}, {}
        for name in NAMES:
            group, _ = self.searched.group(name)
            branches = [branch for _, branch in group.branches]
            middles = [(branch.lower + branch.upper) / 2 for branch in branches]
            self.values[name], outcome = solve(branches, middles, explore=True)
            self.proved[name] = np.asarray(outcome.infeasibility) > 0


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    return BruteForce(load(tmp_path_factory.mktemp("parts") / "study.toml", WIDER))


@pytest.mark.parametrize("name", NAMES)
def test_every_branch_is_solved_or_beaten_or_infeasible(solved, name):
    _, end = solved.searched.group(name)
    starts = end.starts()
    ended = starts.feasible_branches + starts.infeasible_branches + starts.beaten_branches
    assert ended == len(solved.values[name])
    assert starts.open_branches == 0


def test_some_branches_are_beaten(solved):
    beaten = [solved.searched.group(name)[1].starts().beaten_branches for name in NAMES]
    assert sum(beaten) > len(solved.values["lite"]) / 2


@pytest.mark.parametrize("name", NAMES)
def test_the_search_finds_the_least_of_all_branches(solved, name):
    _, end = solved.searched.group(name)
    assert end.least == pytest.approx(solved.values[name].min(), abs=1e-8)
    for own, value, bound in zip(end.value, solved.values[name], end.bound, strict=True):
        assert bound <= value
        # solved twice, the same
        if np.isfinite(own):
            assert own == pytest.approx(value, abs=1e-8)
        # not solved: no better than what was found, or nothing at all
        else:
            assert value >= end.least


@pytest.mark.parametrize("name", NAMES)
def test_bounds_of_the_parts_are_below_every_branch(solved, name):
    searched = solved.searched
    number = next(n for n, group in enumerate(searched.groups) if group.name == name)
    bounds = searched.parts.whole_bounds(searched.groups, searched.parts.end.bound)[number]
    feasible = np.isfinite(solved.values[name])
    assert feasible.any()
    assert np.all(bounds <= solved.values[name])
    # a good one: half of them within a tenth of the value
    assert np.median(solved.values[name][feasible] - bounds[feasible]) < 0.1
    # only what is infeasible is said to be so
    assert not np.any(np.isposinf(bounds) & feasible)


@pytest.mark.parametrize("name", NAMES)
def test_a_part_costs_no_more_than_its_pool_in_any_design(solved, name):
    # each part on its own is at most what the optimum of the whole pays for that pool
    searched = solved.searched
    group, end = searched.group(name)
    number = searched.groups.index(group)
    first = sum(len(parts) for parts in searched.parts.of_groups[:number])
    rows = list(searched.parts.of_groups[number])
    choice, _ = group.branches[end.best]
    bounds = {part: searched.parts.end.bound[first + rows.index(part)] for part in rows}
    usd = [math.exp(bounds[part]) for part in parts_of(choice, group.task)]
    assert len(usd) == 2
    assert sum(usd) <= math.exp(end.least)
    assert min(usd) > 0.05 * math.exp(end.least)


def test_only_a_sum_over_pools_splits(solved, tmp_path):
    group, _ = solved.searched.group("lite")
    assert splits(group.task)
    for objective in (
        "{ usd_per_million_tokens = 2 }",
        "{ joules_per_token = 1, usd_per_million_tokens = 1 }",
    ):
        text = WIDER.replace('basis = "cost"', f'basis = "cost"\nobjective = {objective}')
        study = load(tmp_path / "other.toml", text)
        assert not splits(type(group.task)(group.task.workloads, study.objective))
    alone = load(
        tmp_path / "alone.toml",
        WIDER.replace('"prefill+decode"', '"decode"').replace('ttft = "1 s"', ""),
    )
    assert not splits(study_groups(alone, study_workloads(alone))[0].task)
