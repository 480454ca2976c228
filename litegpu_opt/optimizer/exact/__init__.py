"""The exact optimum of a lattice of designs, found by bounding boxes of it, not by visiting it."""

from .search import LatticeOptimum, lattice_optimum


__all__ = ["LatticeOptimum", "lattice_optimum"]
