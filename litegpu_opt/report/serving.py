"""One accelerator, one model, one deployment: checked, and evaluated."""

from dataclasses import dataclass

import equinox as eqx

from ..catalog import Accelerator, Record
from ..deployment import Deployment, check_batch
from ..errors import UserError
from ..evaluation import Metrics, evaluate, throttled
from ..execution.roofline import HardRoof, Roof, SoftRoof
from ..machine.technology import Technology
from ..numerics import scalar
from ..workload.parallelism import Parallelism, check_parallelism
from ..workload.traffic import Workload


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
    parallelism: Parallelism,
    batch_prefill: float,
    batch_decode: float,
    execution: str,
    basis: str,
) -> Deployed:
    """An accelerator that serves a workload, both pools alike, at its own clock or below it where
    its TDP asks for that.

    **Raises:** `UserError` for a way of parallelism that the model or the accelerator cannot have.
    """
    check_parallelism(workload.transformer, parallelism, "--{}")
    if parallelism.devices > accelerator.largest_group:
        raise UserError(
            f"{parallelism.devices} devices are more than one scale-up domain of "
            f"{accelerator.name} joins",
            where="--tp" if parallelism.devices == parallelism.tp else "--tp --dp --pp",
            allowed=f"1 to {accelerator.largest_group}",
        )
    check_batch(batch_prefill, parallelism, "--batch-prefill")
    check_batch(batch_decode, parallelism, "--batch")
    clock_ghz = scalar(accelerator.design_values["clock_ghz"])
    technology = accelerator.technology(execution=execution, prices=basis)
    ideal = execution == "ideal"
    roof = HardRoof() if ideal else SoftRoof(technology.execution.overlap_exponent)
    deployment = Deployment(
        prefill=parallelism,
        decode=parallelism,
        batch_prefill=scalar(batch_prefill),
        batch_decode=scalar(batch_decode),
        clock_prefill_ghz=clock_ghz,
        clock_decode_ghz=clock_ghz,
    )
    return Deployed(
        accelerator=accelerator,
        workload=workload,
        deployment=deployment
        if ideal
        else throttled(accelerator.design(), deployment, technology, workload, roof),
        technology=technology,
        constants=accelerator.provenance(execution=execution, prices=basis),
        roof=roof,
    )
