"""Tables of a study file: technologies, space, workloads, candidates, baselines."""

from typing import Annotated

from pydantic import Field, model_validator

from ..errors import UserError
from ..fields import (
    checked,
    limit,
    one_of,
    plain_text,
    several,
    whole,
)
from ..files import Table, invalid
from ..workload.phases import SERVED
from ..workload.precision import Precision
from .fields import (
    WRITTEN_BOUNDS,
    Entries,
    Milliseconds,
    Name,
    Ratios,
    SquareMillimetres,
    Tokens,
    entry_of,
    number_format,
    objective_limits,
    technology_overrides,
    variable_bounds,
    written_in,
)


class StudyTechnology(Table):
    """Catalogue entries; where several are named, each combination is a branch of the search."""

    process: Annotated[Entries, checked(several(entry_of("process")))] = ("n4",)
    """Silicon process of the compute die."""
    memory: Annotated[Entries, checked(several(entry_of("memory")))] = ("hbm3e",)
    """Memory stacks."""
    interconnect: Annotated[Entries, checked(several(entry_of("interconnect")))] = ("cpo",)
    """Links between packages."""
    switch: Annotated[Entries, checked(several(entry_of("switch")))] = ("nvswitch",)
    """What joins the links."""
    package: Annotated[Entries, checked(several(entry_of("package")))] = ("interposer",)
    """How dies and stacks are joined."""
    cooling: Annotated[Entries, checked(several(entry_of("cooling")))] = ("liquid", "air")
    """What carries the heat away."""
    execution: Annotated[str, checked(entry_of("execution"))] = "calibrated"
    """Efficiency factors and fixed times."""
    overrides: Annotated[dict[str, float], checked(technology_overrides)] = {}
    """Catalogue values that are replaced, in every branch."""


class StudySpace(Table):
    """Bounds of the discrete choices."""

    tensor_parallel_max: Annotated[int, checked(whole(1, 1024))] = 64
    """Largest tensor-parallel degree of a group."""
    aspect_ratios: Ratios = (1.0, 1.27, 1.6, 2.0)
    """Long side of a die over its short side."""


class StudyWorkload(Table):
    """A model, its traffic and its limits. Formats and lengths have no safe default."""

    name: Name
    """Name of the workload in the results."""
    model: Annotated[str, checked(plain_text)]
    """Built-in name, or path of a `config.json`."""
    weights: str = number_format("weights")
    """Number format of the weights."""
    kv: str = number_format("kv")
    """Number format of the KV cache."""
    activations: str = number_format("activations", "bf16")
    """Number format of the activations."""
    wire: str = number_format("wire", "bf16")
    """Number format on the network."""
    prompt_tokens: Tokens
    """Prompt of a request, tokens."""
    output_tokens: Tokens
    """Answer of a request, tokens, with the one that prefill makes."""
    ttft_ms: Milliseconds = Field(None, alias="ttft")
    """Limit on the time to first token."""
    tbt_ms: Milliseconds = Field(None, alias="tbt")
    """Limit on the time between tokens."""
    pools: Annotated[str, checked(one_of("pools", lambda: SERVED))] = "prefill+decode"
    """Phases that are served."""
    limits: Annotated[dict[str, float], checked(objective_limits)] = {}
    """Most that is allowed per output token, while another objective is searched."""

    @model_validator(mode="after")
    def _consistent(self) -> "StudyWorkload":
        if self.pools == "decode" and self.ttft_ms is not None:
            what = "a decode pool makes no first token"
            raise invalid(UserError(what, where="ttft", allowed='"none"'))
        try:
            self.precision()
        except UserError as error:
            raise invalid(error) from None
        return self

    def precision(self) -> Precision:
        """The number formats."""
        return Precision(self.weights, self.kv, self.activations, self.wire)


class StudyCandidate(Table):
    """A class of accelerators of which the best is sought."""

    name: Name
    """Name of the candidate in the results."""
    die_area_max_mm2: SquareMillimetres = Field(None, alias="die_area_max")
    """Largest die; without it only the reticle field limits the die."""
    dies_per_package: Annotated[tuple[int, ...], checked(several(whole(1, 8)))] = (1,)
    """Compute dies in one package."""
    tdp_max_w: Annotated[float | None, checked(limit("W")), written_in("W")] = Field(
        None, alias="tdp_max"
    )
    """Most power of a package; without it only cooling and package limit it."""
    unit_cost_max_usd: Annotated[float | None, checked(limit("USD")), written_in("USD")] = Field(
        None, alias="unit_cost_max"
    )
    """Most that a package may cost to make."""
    bounds: Annotated[dict[str, tuple[float, float]], checked(variable_bounds), WRITTEN_BOUNDS] = {}
    """Least and most of a design variable; one value fixes it."""


class StudyBaseline(Table):
    """An existing accelerator to compare with."""

    accelerator: Annotated[str, checked(plain_text)]
    """Built-in name, or path of a TOML file."""


CANDIDATES = tuple(
    StudyCandidate.model_validate(candidate)
    for candidate in (
        {"name": "lite", "die_area_max": "214.5 mm^2", "dies_per_package": [1]},
        {"name": "reticle", "dies_per_package": [1]},
        {"name": "multi-die", "dies_per_package": [2, 4]},
    )
)
BASELINES = (StudyBaseline(accelerator="h100-sxm"),)
