"""What cannot be served: proofs of infeasibility, and the smallest limit that would do."""

import pytest
from small_study import Searched, load

from litegpu_opt.catalog import records
from litegpu_opt.optimizer.panel import optimize


STUDY = """
[technology]
cooling = ["liquid"]

[space]
tensor_parallel_max = {degree}
aspect_ratios = [1.27]

[[workload]]
name = "{model}"
model = "llama-3.1-{model}"
weights = "fp8"
kv = "fp8"
prompt_tokens = 1500
output_tokens = 500
ttft = "{ttft} s"
tbt = "{tbt} ms"

[[candidate]]
name = "lite"
die_area_max = "214.5 mm^2"
"""


@pytest.fixture
def study(tmp_path):
    def make(model, *, degree, tbt=50.0, ttft=1.0, stack_gb=None):
        text = STUDY.format(model=model, degree=degree, tbt=repr(tbt), ttft=repr(ttft))
        if stack_gb is not None:
            text = text.replace(
                'cooling = ["liquid"]',
                f'cooling = ["liquid"]\noverrides = {{ "memory.stack_max_gb" = {stack_gb!r} }}',
            )
        return load(tmp_path / "study.toml", text)

    return make


def test_every_branch_is_solved_or_proved_infeasible_or_beaten(study):
    # 406 GB of weights on quarter dies: small groups cannot hold them, large ones can
    group, lite = Searched(study("405b", degree=16)).group("lite")
    starts = lite.starts()
    assert starts.open_branches == 0
    assert starts.infeasible_branches > 5
    assert starts.feasible_branches > 0
    assert (
        starts.feasible_branches + starts.infeasible_branches + starts.beaten_branches
        == len(group.branches)
        > starts.feasible_branches + 5
    )
    for (choice, _), bound, value in zip(group.branches, lite.bound, lite.value, strict=True):
        assert bound <= value
        # weights and cache of one die at tp 1 are at least 406 GB; the largest die has room for
        # five stacks of 48 GB on its edges
        if min(min(pair) for pair in choice.pairs) == 1:
            assert bound == float("inf")


def test_the_smallest_relaxation_is_enough_and_less_is_not(study):
    result = optimize(study("70b", degree=2, tbt=5.0)).panel[0]
    assert not result.optima
    [lite] = [entry for entry in result.infeasible if entry.name == "lite"]
    reach = {item.limit: item for item in lite.shortfalls}
    assert reach["tbt"].allowed == 5.0
    # neither a larger die nor a longer first token makes two quarter dies fast enough
    assert reach["ttft"].reachable is None
    least = reach["tbt"].reachable
    assert least is not None and least > 5.0

    def feasible(tbt):
        return any(
            item.name == "lite"
            for item in optimize(study("70b", degree=2, tbt=tbt)).panel[0].optima
        )

    assert feasible(1.001 * least)
    assert not feasible(0.999 * least)


def test_the_smallest_relaxation_of_physical_limits_helps_and_less_does_not(study):
    """One quarter die cannot hold 405B; with larger stacks, or fewer bytes, it could."""
    asked = study("405b", degree=1, tbt=500.0, ttft=60.0)
    plain = optimize(asked).panel[0].infeasible[0]
    assert {item.limit for item in plain.shortfalls} == {"die_area_max", "ttft", "tbt"}
    assert all(item.relaxation is None for item in plain.shortfalls)
    [lite] = [
        entry
        for entry in optimize(asked, explain_infeasible=True).panel[0].infeasible
        if entry.name == "lite"
    ]
    factors = {item.limit: item.relaxation for item in lite.shortfalls}
    assert factors.keys() > {item.limit for item in plain.shortfalls}
    # more room for stacks, or more in a stack; a larger cache or clock alone does not help
    helpful = {limit for limit, factor in factors.items() if factor is not None}
    assert helpful == {"die_edge", "stack_capacity_max"}
    assert factors["die_edge"] > 1.0 and factors["stack_capacity_max"] > 1.0

    def feasible(factor):
        stack_gb = records("memory", "hbm3e")["stack_max_gb"].value
        larger = study("405b", degree=1, tbt=500.0, ttft=60.0, stack_gb=factor * stack_gb)
        return Searched(larger).group("lite")[1].best is not None

    assert feasible(1.001 * factors["stack_capacity_max"])
    assert not feasible(0.999 * factors["stack_capacity_max"])
