"""A model as the catalogue shows it: shape, parameters, bytes, and what its file leaves open."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..workload.formats import PARTS
from ..workload.memory import kv_bytes_per_token, parameter_counts, weight_bytes_per_device
from ..workload.parallelism import Parallelism, tensor_parallel_degrees
from ..workload.precision import Precision
from ..workload.transformer import (
    Attention,
    DenseMlp,
    Experts,
    GroupedAttention,
    LatentAttention,
    Mlp,
    Transformer,
)
from .document import Section, Table, figure


def model_json(transformer: Transformer, weights: str, kv: str) -> dict[str, Any]:
    """Shape, parameters and bytes of a model on one device."""
    precision = Precision(weights, kv, "bf16", "bf16")
    counts = parameter_counts(transformer)
    alone = Parallelism()
    return {
        "name": transformer.name,
        "family": transformer.family,
        "hidden": transformer.hidden,
        "vocab": transformer.vocab,
        "layers": len(transformer.layers),
        "heads": transformer.heads,
        "layer_kinds": [
            {
                "layers": count,
                "attention": _attention(layer.attention),
                "mlp": _mlp(layer.mlp),
                "shape": asdict(layer),
            }
            for layer, count in Counter(transformer.layers).items()
        ],
        "tied_embeddings": transformer.tied_embeddings,
        "position_rows": transformer.position_rows,
        "parameters_total": counts.total,
        "parameters_active": counts.active,
        "parameters_prediction": counts.prediction,
        "weights": {part: precision.of_part(part, transformer).name for part in PARTS},
        "weight_gb": weight_bytes_per_device(transformer, precision, alone) / 1e9,
        "kv": precision.of_cache(transformer).name,
        "kv_bytes_per_token": float(kv_bytes_per_token(transformer, precision, alone)),
        "tensor_parallel": list(tensor_parallel_degrees(transformer, transformer.heads)),
        "assumed": list(transformer.assumed),
    }


def _attention(attention: Attention) -> str:
    match attention:
        case GroupedAttention(heads, kv_heads, head_dim, window):
            seen = "all tokens" if window is None else f"a window of {window:,} tokens"
            return f"{heads} query and {kv_heads} key/value heads of {head_dim}, {seen}"
        case LatentAttention():
            query = attention.query_rank or "none"
            return (
                f"latent: {attention.heads} heads, cached latent {attention.kv_rank} + rotary key "
                f"{attention.rope_dim}, query latent {query}"
            )


def _mlp(mlp: Mlp) -> str:
    gated = "gated" if mlp.gated else "plain"
    match mlp:
        case DenseMlp():
            return f"{gated} of {mlp.width:,}"
        case Experts():
            shared = f", {mlp.shared_width:,} shared" if mlp.shared_width else ""
            return f"{mlp.per_token} of {mlp.count} experts, each {gated} of {mlp.width:,}{shared}"


def model_list_section(shapes: Sequence[Mapping[str, Any]]) -> Section:
    """All models in one table."""
    columns = (
        "model",
        "parameters, B",
        "active, B",
        "layers",
        "hidden",
        "weights, GB",
        "KV, B/token",
    )
    return Section(
        "Models",
        (
            Table(
                columns,
                tuple(
                    (
                        shape["name"],
                        figure(shape["parameters_total"] / 1e9),
                        figure(shape["parameters_active"] / 1e9),
                        str(shape["layers"]),
                        str(shape["hidden"]),
                        figure(shape["weight_gb"]),
                        f"{shape['kv_bytes_per_token']:,.0f}",
                    )
                    for shape in shapes
                ),
            ),
        ),
    )


def model_section(content: Mapping[str, Any]) -> Section:
    """One model."""
    prediction = content["parameters_prediction"]
    rows = (
        ("family", content["family"]),
        ("hidden size, vocabulary", f"{content['hidden']:,}, {content['vocab']:,}"),
        *(
            (f"{kind['layers']} layers", f"{kind['attention']}; MLP {kind['mlp']}")
            for kind in content["layer_kinds"]
        ),
        ("embedding and head", "tied" if content["tied_embeddings"] else "apart"),
        *(
            [("learned positions", f"{content['position_rows']:,} rows")]
            if content["position_rows"]
            else []
        ),
        ("parameters", f"{content['parameters_total']:,}"),
        ("  that a token meets", f"{content['parameters_active']:,}"),
        *([("  of prediction layers, apart", f"{prediction:,}")] if prediction else []),
        ("weights", f"{content['weight_gb']:,.6g} GB; {_formats(content['weights'])}"),
        ("KV cache", f"{content['kv_bytes_per_token']:,.0f} bytes a token in {content['kv']}"),
        ("tensor parallelism", ", ".join(map(str, content["tensor_parallel"]))),
        ("assumed", "; ".join(content["assumed"]) or "nothing"),
        ("source", content["source"]),
    )
    return Section(content["name"], (Table(("", "value"), rows, numeric=False),))


def _formats(weights: Mapping[str, str]) -> str:
    """Parts that share a format, together."""
    by_format: dict[str, list[str]] = {}
    for part, name in weights.items():
        by_format.setdefault(name, []).append(part)
    if len(by_format) == 1:
        return f"all in {next(iter(by_format))}"
    return "; ".join(f"{', '.join(parts)} in {name}" for name, parts in by_format.items())
