"""The exact optimum of a lattice of designs, found by bounding boxes of it instead of visiting it."""

from .search import LatticeOptimum, lattice_optimum


__all__ = ["LatticeOptimum", "lattice_optimum"]
