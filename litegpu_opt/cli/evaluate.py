"""`litegpu evaluate`, and the kinds of option that the commands share."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token, convert
from cyclopts.validators import Number

from ..errors import UserError
from ..units import shown


LARGEST_BATCH = 10**9
_WHOLE = re.compile(r"[+-]?[0-9]+")
_LONGEST_WHOLE = 20
"""More characters are out of every range, and `int` refuses thousands of them."""


def whole(low: int, high: int) -> Callable[[Any, Sequence[Token]], int]:
    """The converter of an option: a whole number, written in decimal digits alone."""

    def read(_: Any, tokens: Sequence[Token]) -> int:
        text = tokens[0].value
        if _WHOLE.fullmatch(text) and len(text) <= _LONGEST_WHOLE and low <= int(text) <= high:
            return int(text)
        raise UserError(
            f"{shown(text)} is not accepted",
            where=tokens[0].keyword or "",
            allowed=f"a whole number, {low} to {high}",
        )

    return read


def choice(kind: Any, tokens: Sequence[Token]) -> Any:
    """The converter of an option with choices: `none` is not a word for its default."""
    if tokens[0].value.lower() in ("none", "null"):
        raise UserError(
            f"{shown(tokens[0].value)} is not accepted",
            where=tokens[0].keyword or "",
            allowed=", ".join(kind.__args__),
        )
    return convert(kind, tokens)


Json = Annotated[bool, Parameter(name="--json", negative="", help="One JSON object on stdout.")]
Format = Literal["bf16", "fp16", "fp8"]
Positive = Number(gte=1)


def evaluate(
    *,
    model: Annotated[
        str, Parameter(help="Built-in name (litegpu catalog models) or path of a config.json.")
    ],
    accelerator: Annotated[
        str, Parameter(help="Built-in name (litegpu catalog accelerators) or path of a .toml file.")
    ],
    tp: Annotated[
        int,
        Parameter(help="Devices of a group, in both pools.", converter=whole(1, LARGEST_BATCH)),
    ],
    batch: Annotated[
        int,
        Parameter(help="Sequences of a group, 1 or more.", converter=whole(1, LARGEST_BATCH)),
    ],
    prompt: Annotated[
        float, Parameter(help="Prompt tokens of a request, 1 or more.", validator=Positive)
    ],
    output: Annotated[
        float, Parameter(help="Output tokens of a request, 1 or more.", validator=Positive)
    ],
    weights: Annotated[
        Format | None,
        Parameter(help="Number format of the weights [default: bf16].", converter=choice),
    ] = None,
    kv: Annotated[
        Format | None,
        Parameter(help="Number format of the KV cache [default: bf16].", converter=choice),
    ] = None,
    activations: Annotated[
        Format | None,
        Parameter(help="Number format of the activations [default: bf16].", converter=choice),
    ] = None,
    wire: Annotated[
        Format | None,
        Parameter(help="Number format on the network [default: bf16].", converter=choice),
    ] = None,
    execution: Annotated[
        Literal["ideal", "calibrated"] | None,
        Parameter(
            help="ideal: peak rates, hard roofline, no latencies [default: calibrated].",
            converter=choice,
        ),
    ] = None,
    batch_prefill: Annotated[
        int | None,
        Parameter(
            help="Sequences of a prefill group [default: 1].", converter=whole(1, LARGEST_BATCH)
        ),
    ] = None,
    ttft: Annotated[
        str | None, Parameter(help='Limit on the time to first token, such as "1 s" [none].')
    ] = None,
    tbt: Annotated[
        str | None, Parameter(help='Limit on the time between tokens, such as "50 ms" [none].')
    ] = None,
    basis: Annotated[
        Literal["cost", "price"] | None,
        Parameter(help="Bill of materials or selling prices [default: cost].", converter=choice),
    ] = None,
    breakdown: Annotated[
        bool, Parameter(negative="", help="Add the time of every operator.")
    ] = False,
    as_json: Json = False,
) -> int:
    """One accelerator, one model, one deployment: time, cost, energy, memory.

    Both pools run at the accelerator's clock. A deployment that breaks a limit is reported as not
    feasible, with exit code 0.
    """
    from .cache import enable_compilation_cache

    enable_compilation_cache()
    from ..catalog import load_accelerator
    from ..report.evaluation import evaluation_json, evaluation_sections
    from ..workload.huggingface import read_transformer
    from ..workload.precision import Precision
    from ..workload.traffic import NO_LIMIT_MS, make_workload
    from .console import show, show_json

    inputs: dict[str, dict[str, Any]] = {}

    def given(name: str, value: Any, default: Any = None, unit: str = "") -> Any:
        """The value of an option, noted with its origin."""
        origin = "default" if value is None else "flag"
        chosen = default if value is None else value
        inputs[name] = {"value": chosen, "unit": unit, "origin": origin}
        return chosen

    def limit(name: str, text: str | None) -> float:
        value = given(name, None if text is None else _milliseconds(f"--{name}", text), unit="ms")
        return NO_LIMIT_MS if value is None else value

    transformer = read_transformer(given("model", model))
    chip = load_accelerator(given("accelerator", accelerator), "--accelerator")
    degree = given("tp", tp)
    decode_batch = given("batch", batch)
    prefill_batch = given("batch_prefill", batch_prefill, 1)
    workload = make_workload(
        transformer,
        Precision(
            weights=given("weights", weights, "bf16"),
            kv=given("kv", kv, "bf16"),
            activations=given("activations", activations, "bf16"),
            wire=given("wire", wire, "bf16"),
        ),
        prompt_tokens=given("prompt", prompt, unit="tokens"),
        output_tokens=given("output", output, unit="tokens"),
        ttft_ms=limit("ttft", ttft),
        tbt_ms=limit("tbt", tbt),
    )
    content = evaluation_json(
        chip,
        workload,
        tp=degree,
        batch_prefill=prefill_batch,
        batch_decode=decode_batch,
        execution=given("execution", execution, "calibrated"),
        basis=given("basis", basis, "cost"),
        breakdown=breakdown,
    ) | {"inputs": inputs, "assumed": list(transformer.assumed)}
    if as_json:
        show_json(content)
    else:
        show(evaluation_sections(content))
    return 0


def _milliseconds(option: str, text: str) -> float | None:
    from ..fields import limit

    try:
        return limit("ms")(text)
    except UserError as error:
        raise UserError(error.what, where=option, allowed=error.allowed) from None
