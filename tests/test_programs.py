"""Compiled programs kept on disk: found again, and never trusted when they are not whole."""

import jax.numpy as jnp
import numpy as np
import pytest

from litegpu_opt import programs
from litegpu_opt.optimizer.interior import Duals


@pytest.fixture
def folder(tmp_path):
    programs.keep_programs_in(tmp_path)
    yield tmp_path
    programs.keep_programs_in(None)


def counted():
    """A program, and how often it has been traced so far."""
    traced = []

    @programs.compiled
    def doubled(duals: Duals) -> Duals:
        traced.append(1)
        return Duals(*(2.0 * leaf for leaf in vars(duals).values()))

    return doubled, traced


def duals(size=3):
    return Duals(jnp.arange(float(size)), jnp.ones(2), jnp.zeros(2), jnp.array(0.5))


def test_a_kept_program_gives_the_same_without_being_traced(folder):
    first, _ = counted()
    expected = first(duals())
    again, traced = counted()
    result = again(duals())
    assert traced == []
    assert type(result) is Duals
    pairs = zip(vars(result).values(), vars(expected).values(), strict=True)
    assert all(np.array_equal(kept, new) for kept, new in pairs)
    assert np.array_equal(result.limits, [0.0, 2.0, 4.0])


def test_other_shapes_are_another_program(folder):
    first, _ = counted()
    first(duals(3))
    again, traced = counted()
    assert again(duals(4)).limits.shape == (4,)
    assert traced == [1]
    assert len(list(folder.iterdir())) == 2


def test_other_sources_are_another_program(folder, monkeypatch):
    first, _ = counted()
    first(duals())
    monkeypatch.setattr(programs, "_sources", lambda: "another version of the package")
    again, traced = counted()
    again(duals())
    assert traced == [1]


@pytest.mark.parametrize("damage", [lambda b: b[:-7], lambda b: b"", lambda b: b[:40] + b"\0" * 99])
def test_a_damaged_program_is_traced_again_and_replaced(folder, damage):
    first, _ = counted()
    first(duals())
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    again, traced = counted()
    assert np.array_equal(again(duals()).limits, [0.0, 2.0, 4.0])
    assert traced == [1]
    third, traced = counted()
    third(duals())
    assert traced == []


def test_a_folder_that_vanished_costs_only_time(tmp_path):
    programs.keep_programs_in(tmp_path / "not there")
    try:
        program, traced = counted()
        assert np.array_equal(program(duals()).limits, [0.0, 2.0, 4.0])
        assert traced == [1]
    finally:
        programs.keep_programs_in(None)
