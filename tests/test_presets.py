"""Every preset of the catalogue runs: models, accelerators, technologies, studies."""

import jax
import numpy as np
import pytest

from litegpu_opt import (
    Deployment,
    Parallelism,
    Precision,
    catalog,
    evaluate,
    load_accelerator,
    make_workload,
    read_transformer,
)
from litegpu_opt.files import embedded
from litegpu_opt.optimizer.groups import study_workloads
from litegpu_opt.study import load_study
from litegpu_opt.workload.huggingface import builtin_models


CHECKPOINT = Precision("checkpoint", "checkpoint", "bf16", "bf16")


def runs(chip, model, technology):
    work = make_workload(read_transformer(model), CHECKPOINT, prompt_tokens=700, output_tokens=300)
    alone, clock = Parallelism(), chip.design_values["clock_ghz"]
    deployment = Deployment(alone, alone, 1.0, 8.0, clock, clock)
    metrics = evaluate(chip.design(), deployment, technology, work)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(metrics.services))
    assert float(metrics.usd_per_token) > 0.0
    assert np.all(np.asarray(metrics.services.memory_gb) > 0.0)


@pytest.mark.parametrize("name", builtin_models())
def test_every_model_runs(name):
    chip = load_accelerator("h100-sxm")
    runs(chip, name, chip.technology())


@pytest.mark.parametrize("name", catalog.accelerator_names())
def test_every_accelerator_runs(name):
    chip = load_accelerator(name)
    runs(chip, "llama-3.2-1b", chip.technology())


@pytest.mark.parametrize(
    ("table", "entry"),
    [(table, entry) for table in catalog.TABLE_NAMES for entry in catalog.names(table)],
)
def test_every_technology_runs(table, entry):
    chip = load_accelerator("h100-sxm")
    runs(chip, "llama-3.2-1b", catalog.technology(**{table: entry}))


def test_the_embedded_study_can_be_searched():
    """That it is, is the main job, which runs with every change."""
    assert [item.name for item in embedded("studies").iterdir()] == ["panel.toml"]
    assert len(study_workloads(load_study())) == 3
