"""One small study that many tests search, and its parts."""

import math

import numpy as np

from litegpu_opt.optimizer.branches import stack
from litegpu_opt.optimizer.groups import study_groups, study_workloads
from litegpu_opt.optimizer.lanes import solve_lanes
from litegpu_opt.optimizer.panel import optimize
from litegpu_opt.optimizer.search import search, solve_parts
from litegpu_opt.study import load_study


STUDY = """
name = "small"
seed = 0
starts = 3
basis = "cost"

[technology]
process = "n4"
memory = "hbm3e"
interconnect = "cpo"
switch = "nvswitch"
package = "interposer"
cooling = ["liquid"]
execution = "calibrated"

[space]
tensor_parallel_max = 2
aspect_ratios = [1.27]

[[workload]]
name = "70b"
model = "llama-3.1-70b"
weights = "fp8"
kv = "fp8"
activations = "bf16"
wire = "bf16"
prompt_tokens = 1500
output_tokens = 500
ttft = "1 s"
tbt = "50 ms"
pools = "prefill+decode"

[[candidate]]
name = "lite"
die_area_max = "214.5 mm^2"
dies_per_package = [1]

[[candidate]]
name = "reticle"
die_area_max = "none"
dies_per_package = [1]

[[baseline]]
accelerator = "h100-sxm"
"""


def load(path, text=STUDY):
    """The study of a text."""
    path.write_text(text, encoding="utf-8")
    return load_study(path)


def quiet(*_):
    """No progress wanted."""


def solve(branches, starts, *, sharpness=0.0, explore=False):
    """`solve_lanes` of a list of branches: values, infinite where not solved, and the outcome."""
    outcome = solve_lanes(stack(branches), np.stack(starts), sharpness=sharpness, explore=explore)
    good = (outcome.residual <= 1e-7) & (outcome.relaxation <= 1e-7)
    return np.where(good, outcome.value, np.inf), outcome


def fourth_order(values, step):
    """Slope from values at -2, -1, 1 and 2 steps; the error is of the fourth order in the step."""
    least, less, more, most = values
    return (8 * (more - less) - (most - least)) / (12 * step)


class Searched:
    """A study of which only the relaxed optima are sought."""

    def __init__(self, study):
        self.groups = study_groups(study, study_workloads(study))
        self.parts = solve_parts(self.groups, quiet)
        self.ended = search(self.groups, self.parts, study, quiet)
        self._numbers = {group.name: n for n, group in enumerate(self.groups)}

    def group(self, name):
        """A group, and how it ended."""
        number = self._numbers[name]
        return self.groups[number], self.ended[number]

    def best(self, name):
        """Branch of the optimum, its logarithms, logarithm of its objective, and the bound of all
        branches.
        """
        group, end = self.group(name)
        x = end.at_best_start(end.lanes.x)[end.best]
        return group.branches[end.best][1], x, end.least, float(end.bound.min())


class Small:
    """A solved study, and its problems."""

    def __init__(self, study):
        self.study = study
        self.result = optimize(study)
        [self.panel] = self.result.panel
        self.groups = {group.name: group for group in study_groups(study, study_workloads(study))}

    def optimum(self, name):
        """The optimum of a candidate."""
        return next(optimum for optimum in self.panel.optima if optimum.name == name)

    def problem(self, name):
        """Branch of the optimum, its logarithms, logarithm of its objective, and the bound's."""
        optimum = self.optimum(name)
        group = self.groups[name]
        branch = dict(group.branches)[optimum.run.choice]
        x = np.log([optimum.run.values[variable] for variable in group.layout.variables])
        return branch, x, math.log(optimum.soft.value), math.log(optimum.soft.lower_bound)
