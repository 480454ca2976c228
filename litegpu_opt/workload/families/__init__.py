"""Model families: how each reads its `config.json`.

A new family is one module here and one line in `FAMILIES`.
"""

from .family import Family
from .gpt import GPT2, OPT
from .llama import LLAMA


FAMILIES: dict[str, Family] = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "opt": OPT,
}
"""`model_type` to family."""
