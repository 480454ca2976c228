"""What a search returns: optima with their certificates, buildable designs, baselines."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..evaluation import Metrics
from ..study import Study
from ..workload.traffic import Workload
from .branches import Choice


@dataclass(frozen=True)
class Certified:
    """A value of the objective, a bound that nothing in the search space can beat, and the distance
    between them.
    """

    value: float
    lower_bound: float
    """Over every branch of the candidate."""

    @property
    def gap(self) -> float:
        """`value/bound - 1`; infinite where nothing could be bounded."""
        if self.lower_bound <= 0.0:
            return math.inf
        return self.value / self.lower_bound - 1.0


@dataclass(frozen=True)
class Starts:
    """How the starts of all branches of one candidate ended."""

    total: int
    converged: int
    """At a KKT point (residual at most 1e-7) of a feasible branch."""
    feasible_branches: int
    infeasible_branches: int
    """Proved to have no feasible point."""
    beaten_branches: int
    """Not solved, but their bound is above the best value found."""
    open_branches: int
    """None of these; their bound still counts."""
    least_agreement: float
    """Smallest share, over the feasible branches, of starts within 1e-6 of the branch's best."""


@dataclass(frozen=True)
class Run:
    """A design with its deployment: values of every variable, and metrics."""

    choice: Choice
    values: dict[str, float]
    """Every variable of `problem.VARIABLES` in its own unit."""
    metrics: Metrics
    usd_per_million_tokens_half_load: float


@dataclass(frozen=True)
class Buildable:
    """The relaxed optimum rounded to what can be made."""

    run: Run
    objective: float
    gap: float
    """Against the lower bound of the whole candidate, for which nothing has to be whole."""
    lattice_lower_bound: float
    """No buildable design of the candidate is below it."""
    lattice_gap: float
    """Against the bound above."""
    branch_gap: float
    """Against the bound of its own branch, with its stacks, their capacity and its ports."""


@dataclass(frozen=True)
class Optimum:
    """The best accelerator of a candidate on one workload."""

    name: str
    run: Run
    soft: Certified
    hard: Certified
    """The hard roofline: its best design in the same space, and its own bound."""
    kkt_residual: float
    multipliers: dict[str, float]
    """Limit -> elasticity: with a use 1 % lower, or a limit 1 % higher, the cost per token falls by
    this many %."""
    sensitivities: dict[str, float]
    """Technology leaf, or number of the workload -> elasticity of the optimal cost per token; empty
    if withheld."""
    slopes_at_zero: dict[str, float]
    """The same for leaves that are 0 and have no elasticity: `d log(cost) / d leaf`."""
    at_box: dict[str, str]
    """Variables that ended at a bound, of the search box or of the study, and which."""
    starts: Starts
    buildable: Buildable | None


@dataclass(frozen=True)
class Shortfall:
    """A limit that keeps a candidate from being feasible, and how far it can be pushed."""

    limit: str
    meaning: str
    unit: str
    allowed: float | None
    """`None` for physics and market, which set other limits to other designs."""
    reachable: float | None
    """Least use with every other limit kept; `None` if no relaxation of this limit alone helps."""
    relaxation: float | None
    """Least use over limit, with every other limit kept; `None` as above."""


@dataclass(frozen=True)
class Infeasible:
    """A candidate, or a baseline, that cannot serve a workload."""

    name: str
    shortfalls: tuple[Shortfall, ...]
    starts: Starts


@dataclass(frozen=True)
class Baseline:
    """An existing accelerator with its best deployment."""

    name: str
    run: Run
    soft: Certified


@dataclass(frozen=True)
class BreakEven:
    """The value of an assumption at which two sides tie, each at its best."""

    parameter: str
    """`"table.field"`."""
    sides: tuple[str, str]
    values: tuple[float, ...]
    """Values of the parameter over the range."""
    ratios: tuple[float, ...]
    """Best objective of the first side over that of the second, at each of these values."""
    crossings: tuple[float, ...]
    """Values at which both tie; none in this range if empty."""


@dataclass(frozen=True)
class Bar:
    """One assumption of one optimum; objectives in their own unit, infinite where infeasible, NaN
    where the assumption cannot have the value.
    """

    name: str
    """`"table.field"`."""
    low: float
    high: float
    at_low: float
    """Best objective with the assumption at `low`."""
    at_high: float
    at_minus: float
    """Best objective with the assumption 10 % lower."""
    at_plus: float


@dataclass(frozen=True)
class PhaseDesigns:
    """The best pair of designs of a candidate, one for each phase."""

    name: str
    prefill: Run
    decode: Run
    cost: Certified
    """Of both together, each with a design cost of its own."""


@dataclass(frozen=True)
class FrontPoint:
    """The best design with one limit at a value."""

    limit: float
    lower_bound: float
    """Infinite where proved infeasible."""
    objective: float
    """Infinite where nothing is feasible."""
    run: Run | None


@dataclass(frozen=True)
class Front:
    """How the best objective of a candidate depends on one limit."""

    name: str
    over: str
    unit: str
    points: tuple[FrontPoint, ...]


@dataclass(frozen=True)
class WorkloadResult:
    """All candidates and baselines on one workload."""

    name: str
    workload: Workload
    optima: tuple[Optimum, ...]
    baselines: tuple[Baseline, ...]
    infeasible: tuple[Infeasible, ...]
    specialised: tuple[PhaseDesigns, ...] = ()
    fronts: tuple[Front, ...] = ()
    break_evens: tuple[BreakEven, ...] = ()
    tornados: Mapping[str, tuple[Bar, ...]] = field(default_factory=dict)
    """Candidate -> its largest assumptions."""


@dataclass(frozen=True)
class OnWorkload:
    """A common design on one workload of a mix."""

    name: str
    share: float
    """Of all output tokens."""
    run: Run
    objective: float
    own: float
    """Objective of the best design of the same candidate for this workload alone."""


@dataclass(frozen=True)
class MixedDesign:
    """One design for all workloads of a mix."""

    objective: Certified
    """Over the mix."""
    workloads: tuple[OnWorkload, ...]


@dataclass(frozen=True)
class Mix:
    """The best common design of a candidate for a mix; `None` where nothing is feasible."""

    mix: str
    name: str
    relaxed: MixedDesign | None
    buildable: MixedDesign | None
    """Its bound is that of all buildable designs."""


@dataclass(frozen=True)
class PanelResult:
    """A finished study."""

    study: Study
    panel: tuple[WorkloadResult, ...]
    mixes: tuple[Mix, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall-clock seconds by stage."""
