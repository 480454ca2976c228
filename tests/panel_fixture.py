"""One small search through the real command line, for the tests of screen, JSON and report."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


STUDY = """
name = "small"
seed = 3
starts = 2

[technology]
cooling = ["liquid"]
overrides = { "prices.interest" = 0.09 }

[space]
tensor_parallel_max = 2
aspect_ratios = [1.27]

[[workload]]
name = "70b"
model = "llama-3.1-70b"
weights = "fp8"
kv = "fp8"
prompt_tokens = 1500
output_tokens = 500
ttft = "1 s"
tbt = "50 ms"

[[workload]]
name = "hopeless"
model = "llama-3.1-70b"
weights = "fp8"
kv = "fp8"
prompt_tokens = 1500
output_tokens = 500
ttft = "1 s"
tbt = "0.01 ms"

[[baseline]]
accelerator = "h100-sxm"

[[baseline]]
accelerator = "shrunk.toml"
"""
"""Three candidates; nobody can meet the second workload's time between tokens."""

SHRUNK = """
extends = "h100-sxm"

[design]
die_area = "203.5 mm^2"
"""
"""A chip that cannot be built: the blocks of an H100 on a quarter of its area."""


@dataclass(frozen=True)
class Finished:
    """A run of `litegpu optimize --json --out`."""

    code: int
    stdout: str
    stderr: str
    folder: Path
    study: Path

    @property
    def content(self) -> dict[str, Any]:
        return json.loads(self.stdout)


def run(*arguments: str, cache: Path | str = "off", **environment: str):
    """Run `python -m litegpu_opt` with nothing of the terminal's environment."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "XLA_FLAGS") if key in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "litegpu_opt", *arguments],
        capture_output=True,
        text=True,
        env=kept | {"LITEGPU_CACHE": str(cache)} | environment,
        timeout=300,
    )


def write_study(folder: Path) -> Path:
    """The small study, with the accelerator it names, in a folder."""
    (folder / "shrunk.toml").write_text(SHRUNK)
    study = folder / "small.toml"
    study.write_text(STUDY)
    return study


_DONE = pytest.StashKey[Finished]()


def search(make_folder: pytest.TempPathFactory, config: pytest.Config) -> Finished:
    """Search the small study, once in a session; compiled programs stay for the next one."""
    if _DONE not in config.stash:
        config.stash[_DONE] = _search(make_folder, config)
    return config.stash[_DONE]


def _search(make_folder: pytest.TempPathFactory, config: pytest.Config) -> Finished:
    folder = make_folder.mktemp("search")
    study, out = write_study(folder), folder / "out"
    compiled = config.rootpath / ".pytest_cache" / "compiled"
    done = run("optimize", str(study), "--json", "--out", str(out), cache=compiled)
    return Finished(done.returncode, done.stdout, done.stderr, out, study)
