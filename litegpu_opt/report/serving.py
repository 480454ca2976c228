"""One accelerator, one model, one deployment: checked, and evaluated."""

from dataclasses import dataclass, replace

import equinox as eqx

from ..catalog import Accelerator, Record, execution_overrides
from ..deployment import Deployment, check_batch
from ..errors import UserError
from ..evaluation import Metrics, evaluate, throttled
from ..execution.roofline import HardRoof, Roof, SoftRoof
from ..machine.technology import Technology
from ..numerics import scalar
from ..workload.parallelism import Parallelism, check_parallelism
from ..workload.phases import PHASES
from ..workload.traffic import Workload


SAME_CLOCK = 1e-6
"""Relative excess that is still the clock of the chip."""


@dataclass(frozen=True)
class Deployed:
    """What `evaluate` takes, and where its technology comes from."""

    accelerator: Accelerator
    workload: Workload
    deployment: Deployment
    technology: Technology
    constants: dict[str, Record]
    """`"table.field"` -> record of the technology."""
    roof: Roof

    def metrics(self) -> Metrics:
        """Time, energy, cost and limits."""
        return eqx.filter_jit(evaluate)(
            self.accelerator.design(),
            self.deployment,
            self.technology,
            self.workload,
            roof=self.roof,
        )


def deploy(
    accelerator: Accelerator,
    workload: Workload,
    *,
    prefill: Parallelism,
    decode: Parallelism,
    batch_prefill: float,
    batch_decode: float,
    clocks_ghz: tuple[float | None, float | None],
    execution: str,
    basis: str,
) -> Deployed:
    """An accelerator that serves a workload.

    **Arguments:**

    - `execution`: entry of the catalogue, or path of a `.toml` file of `litegpu calibrate`.
    - `clocks_ghz`: of prefill and decode; the chip's own, or below it where its TDP asks for that,
      where there is none.

    **Raises:** `UserError` for a way of parallelism that the model or the accelerator cannot have.
    """
    for way in {prefill, decode}:
        check_parallelism(workload.transformer, way, "--{}")
        if way.devices > accelerator.largest_group:
            raise UserError(
                f"{way.devices} devices are more than one scale-up domain of "
                f"{accelerator.name} joins",
                where="--tp" if way.devices == way.tp else "--tp --dp --pp",
                allowed=f"1 to {accelerator.largest_group}",
            )
    check_batch(batch_prefill, prefill, "--batch-prefill")
    check_batch(batch_decode, decode, "--batch")
    full_ghz = accelerator.design_values["clock_ghz"]
    for phase, clock_ghz in zip(PHASES, clocks_ghz, strict=True):
        if clock_ghz is not None and clock_ghz > full_ghz * (1.0 + SAME_CLOCK):
            raise UserError(
                f"{clock_ghz:g} GHz is above the clock of {accelerator.name}",
                where=f"--clock-{phase}",
                allowed=f"at most {full_ghz:g} GHz",
            )
    entry, overrides = execution, {}
    if execution.endswith(".toml"):
        entry, overrides = "calibrated", execution_overrides(execution)
    technology = accelerator.technology(overrides, execution=entry, prices=basis)
    ideal = execution == "ideal"
    roof = HardRoof() if ideal else SoftRoof(technology.execution.overlap_exponent)
    deployment = Deployment(
        prefill=prefill,
        decode=decode,
        batch_prefill=scalar(batch_prefill),
        batch_decode=scalar(batch_decode),
        clock_prefill_ghz=scalar(full_ghz),
        clock_decode_ghz=scalar(full_ghz),
    )
    if not ideal:
        deployment = throttled(accelerator.design(), deployment, technology, workload, roof)
    asked = {
        f"clock_{phase}_ghz": scalar(clock_ghz)
        for phase, clock_ghz in zip(PHASES, clocks_ghz, strict=True)
        if clock_ghz is not None
    }
    return Deployed(
        accelerator=accelerator,
        workload=workload,
        deployment=replace(deployment, **asked),
        technology=technology,
        constants=accelerator.provenance(overrides, execution=entry, prices=basis),
        roof=roof,
    )
