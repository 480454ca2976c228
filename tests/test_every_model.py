"""Case 79: every model and accelerator of the catalogue runs, in both pools."""

import jax
import numpy as np
import pytest

from litegpu_opt import (
    Deployment,
    Parallelism,
    Precision,
    evaluate,
    load_accelerator,
    make_workload,
    read_transformer,
)
from litegpu_opt.workload.huggingface import builtin_models


@pytest.mark.parametrize("name", builtin_models())
def test_model_is_evaluated_with_finite_positive_results(name):
    chip = load_accelerator("h100-sxm")
    checkpoint = Precision("checkpoint", "checkpoint", "bf16", "bf16")
    work = make_workload(read_transformer(name), checkpoint, prompt_tokens=700, output_tokens=300)
    alone = Parallelism()
    metrics = evaluate(
        chip.design(), Deployment(alone, alone, 1.0, 8.0, 1.83, 1.83), chip.technology(), work
    )
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(metrics.services))
    assert float(metrics.usd_per_token) > 0.0
    assert np.all(np.asarray(metrics.services.memory_gb) > 0.0)
