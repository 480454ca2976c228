"""How a model is served, as options that commands share: `litegpu evaluate`, `litegpu explain`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, Token, convert

from ..errors import UserError
from ..units import shown
from ..workload.phases import MOST_TOKENS


if TYPE_CHECKING:
    from ..report.serving import Deployed


LARGEST_BATCH = 10**9
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?")
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


def length(_: Any, tokens: Sequence[Token]) -> float:
    """The converter of a number of tokens: an average need not be whole."""
    text = tokens[0].value
    if _DECIMAL.fullmatch(text) and 1.0 <= float(text) <= MOST_TOKENS:
        return float(text)
    raise UserError(
        f"{shown(text)} is not accepted",
        where=tokens[0].keyword or "",
        allowed=f"a number, 1 to {MOST_TOKENS:.0e}",
    )


def choice(kind: Any, tokens: Sequence[Token]) -> Any:
    """The converter of an option with choices: `none` is not a word for its default."""
    if tokens[0].value.lower() in ("none", "null"):
        raise UserError(
            f"{shown(tokens[0].value)} is not accepted",
            where=tokens[0].keyword or "",
            allowed=", ".join(kind.__args__),
        )
    return convert(kind, tokens)


def execution_table(_: Any, tokens: Sequence[Token]) -> str:
    """The converter of an execution table: an entry of the catalogue, or a file."""
    from ..catalog import names

    text = tokens[0].value
    if text not in names("execution") and not text.endswith(".toml"):
        raise UserError(
            f"{shown(text)} is not accepted",
            where=tokens[0].keyword or "",
            allowed=f"{', '.join(names('execution'))}, or a .toml file",
        )
    return text


def degree(meaning: str) -> Parameter:
    """An option for a degree of parallelism, the same in both pools."""
    return Parameter(help=f"{meaning} [default: 1].", converter=whole(1, LARGEST_BATCH))


WeightFormat = Literal[
    "checkpoint", "bf16", "fp16", "fp8", "fp8-block128", "int8", "mxfp4", "nvfp4"
]
CacheFormat = Literal["checkpoint", "bf16", "fp16", "fp8", "int8"]
Collective = Literal["ring", "in-network", "one-shot", "two-shot"]
Basis = Annotated[
    Literal["cost", "price"] | None,
    Parameter(help="Bill of materials or selling prices [default: cost].", converter=choice),
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="One JSON object on stdout.")]


_ABSORB = {"auto": None, "absorbed": True, "expanded": False}


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A model, its traffic, and how it is run."""

    model: Annotated[
        str, Parameter(help="Built-in name (litegpu catalog models) or path of a config.json.")
    ]
    tp: Annotated[
        int,
        Parameter(
            help="Devices that split every layer, in both pools.", converter=whole(1, LARGEST_BATCH)
        ),
    ]
    batch: Annotated[
        int,
        Parameter(help="Sequences of a group, 1 or more.", converter=whole(1, LARGEST_BATCH)),
    ]
    prompt: Annotated[
        float, Parameter(help="Prompt tokens of a request, 1 to 1e9.", converter=length)
    ]
    output: Annotated[
        float, Parameter(help="Output tokens of a request, 1 to 1e9.", converter=length)
    ]
    dp: Annotated[
        int | None, degree("Replicas that share the batch, and the experts if --ep is above 1")
    ] = None
    pp: Annotated[int | None, degree("Pipeline stages")] = None
    ep: Annotated[
        int | None, degree("Ranks over which the experts are spread; divides tp times dp")
    ] = None
    kv_parallel: Annotated[
        int | None, degree("Ranks that share the cache of a sequence, of those that hold the same")
    ] = None
    microbatches: Annotated[
        int | None, degree("Parts of a batch that follow each other through the stages")
    ] = None
    collective: Annotated[
        Collective | None,
        Parameter(help="Algorithm of the collectives [default: ring].", converter=choice),
    ] = None
    latent: Annotated[
        Literal["auto", "absorbed", "expanded"] | None,
        Parameter(
            help="Latent attention on latents or on the keys and values made of them "
            "[default: auto, absorbed in decode only].",
            converter=choice,
        ),
    ] = None
    weights: Annotated[
        WeightFormat | None,
        Parameter(help="Number format of the weights [default: checkpoint].", converter=choice),
    ] = None
    kv: Annotated[
        CacheFormat | None,
        Parameter(help="Number format of the KV cache [default: checkpoint].", converter=choice),
    ] = None
    activations: Annotated[
        Literal["bf16", "fp16"] | None,
        Parameter(help="Number format of the activations [default: bf16].", converter=choice),
    ] = None
    wire: Annotated[
        Literal["bf16", "fp16", "fp8", "int8", "fp32"] | None,
        Parameter(help="Number format on the network [default: bf16].", converter=choice),
    ] = None
    execution: Annotated[
        str | None,
        Parameter(
            help="ideal: peak rates, hard roofline, no latencies; calibrated, ampere, blackwell: "
            "fitted to H100, A100, B200; or a .toml file of litegpu calibrate [default: "
            "calibrated].",
            converter=execution_table,
        ),
    ] = None
    batch_prefill: Annotated[
        int | None,
        Parameter(
            help="Sequences of a prefill group [default: one for each part of a batch, dp times "
            "microbatches].",
            converter=whole(1, LARGEST_BATCH),
        ),
    ] = None
    tp_prefill: Annotated[
        int | None,
        Parameter(
            help="Devices that split every layer in the prefill pool [default: as --tp].",
            converter=whole(1, LARGEST_BATCH),
        ),
    ] = None
    clock_prefill: Annotated[
        str | None,
        Parameter(
            help='Clock of prefill, such as "1.2 GHz" [default: the chip\'s, or what its TDP '
            "allows]."
        ),
    ] = None
    clock_decode: Annotated[
        str | None,
        Parameter(help="Clock of decode [default: the chip's, or what its TDP allows]."),
    ] = None
    ttft: Annotated[
        str | None, Parameter(help='Limit on the time to first token, such as "1 s" [none].')
    ] = None
    tbt: Annotated[
        str | None, Parameter(help='Limit on the time between tokens, such as "50 ms" [none].')
    ] = None

    def deployed(
        self, accelerator: str, basis: str | None, inputs: dict[str, dict[str, Any]]
    ) -> "Deployed":
        """Everything read and checked, for an accelerator by name or path.

        **Arguments:**

        - `inputs`: filled with name -> value, unit and origin of every option.
        """
        from ..catalog import load_accelerator
        from ..report.serving import deploy
        from ..workload.huggingface import read_transformer
        from ..workload.parallelism import Parallelism
        from ..workload.precision import Precision
        from ..workload.traffic import NO_LIMIT_MS, make_workload

        def stated(name: str, value: Any, default: Any = None, unit: str = "") -> Any:
            """A value or its default, noted with its origin."""
            chosen = default if value is None else value
            origin = "default" if value is None else "flag"
            inputs[name] = {"value": chosen, "unit": unit, "origin": origin}
            return chosen

        def given(name: str, default: Any = None, unit: str = "") -> Any:
            return stated(name, getattr(self, name), default, unit)

        def limit(name: str) -> float:
            text = given(name, unit="ms")
            value = None if text is None else _quantity(f"--{name}", text, "ms")
            inputs[name]["value"] = value
            return NO_LIMIT_MS if value is None else value

        def clock(phase: str) -> float | None:
            name = f"clock_{phase}"
            text = given(name, unit="GHz")
            value = None if text is None else _quantity(f"--clock-{phase}", text, "GHz")
            inputs[name]["value"] = value
            return value

        transformer = read_transformer(given("model"), "--model")
        chip = load_accelerator(stated("accelerator", accelerator), "--accelerator")
        parallelism = Parallelism(
            tp=given("tp"),
            **{name: given(name, 1) for name in ("dp", "pp", "ep", "kv_parallel")},
            microbatches=given("microbatches", 1),
            collective=given("collective", "ring"),
            absorb_latent=_ABSORB[given("latent", "auto")],
        )
        tp_prefill = given("tp_prefill", self.tp)
        batch = given("batch")
        batch_prefill = given("batch_prefill", parallelism.dp * parallelism.microbatches)
        workload = make_workload(
            transformer,
            Precision(
                weights=given("weights", "checkpoint"),
                kv=given("kv", "checkpoint"),
                activations=given("activations", "bf16"),
                wire=given("wire", "bf16"),
            ),
            prompt_tokens=given("prompt", unit="tokens"),
            output_tokens=given("output", unit="tokens"),
            ttft_ms=limit("ttft"),
            tbt_ms=limit("tbt"),
        )
        return deploy(
            chip,
            workload,
            prefill=replace(parallelism, tp=tp_prefill),
            decode=parallelism,
            batch_prefill=batch_prefill,
            batch_decode=batch,
            clocks_ghz=(clock("prefill"), clock("decode")),
            execution=given("execution", "calibrated"),
            basis=stated("basis", basis, "cost"),
        )


def _quantity(option: str, text: str, unit: str) -> float | None:
    from ..fields import limit

    try:
        return limit(unit)(text)
    except UserError as error:
        raise UserError(error.what, where=option, allowed=error.allowed) from None
