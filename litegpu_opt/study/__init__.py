"""The study: what is asked, of which candidates, in which technologies. No JAX here."""

from .file import load_study, resolved_toml, study_hash, study_transformers, sweep_content
from .questions import FRONT_LIMITS, StudyBreakEven, StudyFront, StudyMix
from .study import Study
from .sweep import StudySweep
from .tables import (
    StudyBaseline,
    StudyCandidate,
    StudySpace,
    StudyTechnology,
    StudyWorkload,
)


__all__ = [
    "FRONT_LIMITS",
    "Study",
    "StudyBaseline",
    "StudyBreakEven",
    "StudyCandidate",
    "StudyFront",
    "StudyMix",
    "StudySpace",
    "StudySweep",
    "StudyTechnology",
    "StudyWorkload",
    "load_study",
    "resolved_toml",
    "study_hash",
    "study_transformers",
    "sweep_content",
]
