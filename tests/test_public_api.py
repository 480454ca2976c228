"""What the README promises: names, cheap import, and its Python lines."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import litegpu_opt


README = Path(__file__).parent.parent / "README.md"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", litegpu_opt.__all__)
def test_every_public_name_is_what_it_says(name):
    thing = getattr(litegpu_opt, name)
    assert thing.__name__ == name
    assert getattr(litegpu_opt, name) is thing


def test_verbs_stay_functions_whatever_is_imported_first():
    run(
        "import litegpu_opt.optimizer.panel, litegpu_opt.evaluation\n"
        "from litegpu_opt import evaluate, optimize\n"
        "assert callable(evaluate) and callable(optimize)"
    )


@pytest.mark.parametrize("module", ["optimizer.interior", "machine.power", "serving"])
def test_modules_with_jax_values_are_in_double_precision(module):
    # tests/conftest.py switches it on for this process, so look at another
    code = f"import litegpu_opt.{module}, jax.numpy as jnp; print(jnp.ones(1).dtype)"
    assert run(code) == "float64\n"


def test_the_readme_is_finished():
    assert "@@" not in README.read_text("utf-8")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        litegpu_opt.optimise  # noqa: B018 - the access is the test


def test_importing_the_package_does_not_import_jax():
    assert run("import sys, litegpu_opt; print('jax' in sys.modules)") == "False\n"


def test_the_python_lines_of_the_readme_run():
    [block] = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert len(block.strip().splitlines()) == 5
    printed = run(block)
    dollars = float(printed.split()[0])
    assert 0.01 < dollars < 10
