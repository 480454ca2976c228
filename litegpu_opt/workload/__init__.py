"""What must be served: the model, its traffic and limits, and the operator counts they imply.

Importing this package, `transformer`, `precision`, `memory` or `huggingface` does not import JAX.
"""
