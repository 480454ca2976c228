"""Extracts of measured tables that ship with the package, from the full tables in a folder.

    python experiments/measurement_extracts.py FOLDER

Of every group (device, format, stack, ...) the rows with the smallest hash, so that the choice
does not look at the times.
"""

import csv
import sys
from hashlib import sha256
from pathlib import Path


OUT = Path(__file__).parent.parent / "litegpu_opt" / "catalog" / "measurements"
DEVICES = ("A100-SXM-80GB", "H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM")

UNUSED = ("Aquila", "DeciLM", "Qwen1.5", "Qwen2-7B", "bloom", "gpt-j", "llama-7b", "opt")
"""Models that the catalogue does not have."""

TABLES = {
    "gemm.csv": (
        "gemm.csv",
        ("hardware", "gemm_dtype", "source"),
        ("hardware", "gemm_dtype", "m", "n", "k", "time_us", "source"),
        36,
        lambda row: row["hardware"] in DEVICES and row["gemm_dtype"] in ("bfloat16", "fp8"),
    ),
    "attention.csv": (
        "attention.csv",
        ("hardware", "op", "kv_cache_dtype"),
        (
            "hardware", "op", "attn_dtype", "kv_cache_dtype", "batch_size", "isl", "kv_len",
            "num_heads", "num_key_value_heads", "head_dim", "time_us", "source",
        ),
        32,
        lambda row: row["attn_dtype"] == "bfloat16"
        and (row["op"] == "context_attention" or row["kv_cache_dtype"] == "bfloat16")
        and (row["op"] == "context_attention" or row["num_heads"] == row["num_key_value_heads"]),
    ),
    "collectives.csv": (
        "collectives.csv",
        ("hardware", "impl"),
        ("hardware", "n", "bytes", "op", "impl", "time_us", "source"),
        69,  # all shapes of the library that is fitted
        lambda row: row["hardware"] in DEVICES
        and row["op"] == "all_reduce"
        and ("vLLM_custom_graph" in row["impl"] or row["n"] == "8" and "eager" not in row["impl"]),
    ),
    "layer_ops.csv": (
        "vidur_layer_ops.csv",
        ("hardware",),
        (
            "hardware", "model", "tp", "num_tokens", "attn_pre_proj_ms", "attn_rope_ms",
            "attn_post_proj_ms", "post_attention_layernorm_ms", "mlp_up_proj_ms", "mlp_act_ms",
            "mlp_down_proj_ms", "add_ms", "source",
        ),
        40,
        lambda row: True,
    ),
    "inferencex.csv": (
        "serving_inferencex_agg.csv",
        ("system", "model_path", "backend"),
        (
            "system", "model_path", "precision", "backend", "isl", "osl", "concurrency",
            "batch_size", "tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "ttft_ms",
            "tpot_ms", "measured", "origin", "suggested_split",
        ),
        48,
        lambda row: row["system"] in ("h100_sxm", "h200_sxm", "b200_sxm")
        and row["precision"] == "fp8"
        and any(name in row["model_path"] for name in ("Llama", "DeepSeek", "Qwen3-235B")),
    ),
    "serving.csv": (
        "serving_measurements.csv",
        ("source", "hardware", "model", "framework"),
        (
            "source", "hardware", "model", "tp", "weight_precision", "framework",
            "batch_or_concurrency", "load_type", "input_tokens", "output_tokens", "prefill_ms",
            "e2e_ms", "suggested_split",
        ),
        20,
        lambda row: row["suggested_split"] in ("calib", "holdout")
        and (row["prefill_ms"] or (row["e2e_ms"] and row["hardware"] == "H100"))
        and "L40S" not in row["hardware"]
        and not any(name in row["model"] for name in UNUSED),
    ),
}  # fmt: skip
"""Name in the package -> full table, columns of a group, columns kept, rows of a group, which."""


def extract(folder: Path, name: str) -> None:
    """Write one extract."""
    full, grouped, columns, most, chosen = TABLES[name]
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    with open(folder / full, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if chosen(row):
                groups.setdefault(tuple(row[key] for key in grouped), []).append(row)
    with open(OUT / name, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for key in sorted(groups):
            shapes = [
                name
                for name in columns
                if name not in (*grouped, "time_us", "source", "suggested_split")
            ]
            by_hash = sorted(
                groups[key],
                key=lambda row: sha256(
                    ",".join(row[c] for c in shapes if not c.endswith("_ms")).encode()
                ).digest(),
            )
            writer.writerows(by_hash[:most])


if __name__ == "__main__":
    for table in TABLES:
        extract(Path(sys.argv[1]), table)
