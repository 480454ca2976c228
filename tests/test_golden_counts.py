"""Pinned parameter, byte and operation counts: the catalogue, dense models, pipelines, pools.

Experts, latent attention, windows and collectives have files of their own. Many of the tests are of
faults that users of other tools met; values follow from the arithmetic shown at each test. A
failure of the parameter tests points at `families/` or `catalog/models`, of the byte tests at
`memory.py`, of the rest at `operators/` and `counts.py`.
"""

import json
import operator
import re
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from litegpu_opt.catalog import load_accelerator, technology
from litegpu_opt.deployment import Deployment
from litegpu_opt.errors import UserError
from litegpu_opt.evaluation import evaluate
from litegpu_opt.execution.phase import moved_gb, operator_times
from litegpu_opt.execution.roofline import HardRoof
from litegpu_opt.files import embedded
from litegpu_opt.limits import LIMIT_NAMES
from litegpu_opt.machine.rates import Rates
from litegpu_opt.numerics import scalar
from litegpu_opt.serving import batch_times_ms
from litegpu_opt.workload.collectives import Exchange
from litegpu_opt.workload.counts import (
    OperatorCounts,
    decode_counts,
    operator_names,
    prefill_counts,
)
from litegpu_opt.workload.huggingface import builtin_models, model_aliases, read_transformer
from litegpu_opt.workload.memory import (
    kv_bytes_per_token,
    parameter_counts,
    weight_bytes_per_device,
)
from litegpu_opt.workload.operators import stage_layers, stages
from litegpu_opt.workload.parallelism import (
    Parallelism,
    check_parallelism,
    tensor_parallel_degrees,
)
from litegpu_opt.workload.pool import build_pools
from litegpu_opt.workload.precision import Precision
from litegpu_opt.workload.traffic import NO_LIMIT_MS, make_workload
from litegpu_opt.workload.transformer import DenseMlp, GroupedAttention, Layer, Transformer


BF16 = Precision("bf16", "bf16", "bf16", "bf16")
FP8 = Precision("fp8", "fp8", "bf16", "bf16")
CHECKPOINT = Precision("checkpoint", "checkpoint", "bf16", "bf16")
ALONE = Parallelism()
PHASES = [(prefill_counts, False), (decode_counts, True)]

# Total, and the parameters that a token meets where that is less.
PARAMETERS = {
    "bloom-176b": 176_247_271_424,
    "deepseek-v2": (235_741_434_880, 21_375_800_320),
    "deepseek-v2-lite": (15_706_484_224, 2_661_150_208),
    "deepseek-v3": (671_026_419_200, 37_552_297_472),
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    # 80 (248 * 64 h + 9 h^2 + 4h) + 65024 h + 2h with h = 14848
    "falcon-180b": 178_557_088_768,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
    # h = 2816, 16 heads: 25 layers of 256 with 8 key/value heads, 5 of 512 with 2, whose keys are
    # their values: 25 (2 * 16 * 256 h + 2 * 8 * 256 h + 512)
    # + 5 (2 * 16 * 512 h + 2 * 512 h + 1024) + 30 (3 h (128 * 704 + 2112) + 128 h + 128 + 8 h)
    # + 262144 h + h; of 128 experts 8 active
    "gemma-4-26b-a4b": (25_233_141_760, 3_822_530_560),
    # h = 5120, attention 2 * 96 * 128 h + 2 * 8 * 128 h + 112 * 128 + 256, norms 2h in each of
    # 3 (3 * 12288 h) + 89 (161 * 3 * 1536 h + 160 h + 160) + 2 * 151552 h + h; 8 of 160 active
    "glm-4.5": (352_797_829_024, 33_632_266_144),
    # h = 4096, the same without the 256: 1 (3 * 10944 h) + 45 (129 * 3 * 1408 h + 128 h + 128);
    # PrimeIntellect's INTELLECT-3, this model without its prediction layer: the same total
    "glm-4.5-air": (106_852_251_264, 13_424_129_664),
    # 96 (12 h^2 + 13 h) + 50257 h + 2048 h + 2h with h = 12288
    "gpt-3-175b": 174_604_259_328,
    "gpt-oss-20b": (20_914_757_184, 4_187_440_704),  # model card: 3.61 B without the embedding
    "gpt-oss-120b": (116_829_156_672, 5_711_982_912),  # model card: 5.13 B without it
    # h = 7168, attention 1536 h + 1536 * 64 * 192 + 576 h + 512 * 64 * 256 + 64 * 128 h + 2048,
    # norms 2h in each of 1 (3 * 18432 h) + 60 (385 * 3 * 2048 h + 384 h + 384) + 2 * 163840 h + h;
    # report: 32.6 B active
    "kimi-k2": (1_026_408_232_448, 32_861_500_928),
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,  # arXiv 2407.21783: 8.03 B
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-70b-fp8": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-small-24b": 23_572_403_200,
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248),
    "mixtral-8x22b": (140_620_634_112, 39_152_031_744),
    # 768 more rows in each vocabulary matrix
    "mixtral-8x22b-instruct": (140_630_071_296, 39_161_468_928),
    "opt-175b": 174_604_468_224,  # tied, biases, 2050 positions
    "phi-3-mini-4k": 3_821_079_552,
    "phi-3-mini-128k": 3_821_079_552,
    "phi-3-medium-4k": 13_960_238_080,
    "phi-3-medium-128k": 13_960_238_080,
    # 28 (29,364,736 + (64 * 2560 + 20480) 3h + 64 h + 3h) + 2 * 151936 h + h with h = 3584
    "qwen2-57b-a14b": (57_408_658_944, 14_249_270_784),
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704),
    "qwen3-32b": 32_762_123_264,
    "qwen3-235b-a22b": (235_093_634_560, 22_190_763_520),
}

# Where the name has no size, or a rounder one than the model card.
ADVERTISED = {
    "deepseek-v2": 236e9,
    "deepseek-v2-lite": 15.7e9,
    "deepseek-v3": 671e9,
    "falcon-40b": 41.8e9,
    "gemma-4-26b-a4b": 25.2e9,
    "glm-4.5": 355e9,
    "glm-4.5-air": 106e9,
    "gpt-oss-20b": 21e9,
    "gpt-oss-120b": 117e9,
    "kimi-k2": 1.04e12,
    "llama-2-7b": 6.74e9,
    "llama-3.2-1b": 1.23e9,
    "llama-3.2-3b": 3.21e9,
    "mistral-7b-v0.1": 7.3e9,
    "mixtral-8x7b": 46.7e9,
    "mixtral-8x22b": 141e9,
    "mixtral-8x22b-instruct": 141e9,
    "phi-3-mini-4k": 3.8e9,
    "phi-3-mini-128k": 3.8e9,
    "phi-3-medium-4k": 14e9,
    "phi-3-medium-128k": 14e9,
}


def llama(hidden=8192, ffn=28_672, heads=64, kv_heads=8, layers=80, vocab=128_256, **fields):
    """A Llama-like transformer, by default Llama-3.1-70B."""
    layer = Layer(GroupedAttention(heads, kv_heads, hidden // heads), DenseMlp(ffn, gated=True))
    values = dict(
        name="llama", family="llama", hidden=hidden, vocab=vocab, layers=(layer,) * layers,
        norm_parameters=hidden, tied_embeddings=False,
    )  # fmt: skip
    return Transformer(**(values | fields))


LLAMA_70B = llama()


def workload(model=LLAMA_70B, prompt=8191.0, output=2.0, precision=BF16, **options):
    """A prompt of 8191 and 2 output tokens: the decode context S + T/2 is 8192."""
    return make_workload(model, precision, prompt_tokens=prompt, output_tokens=output, **options)


def total(counts, field):
    """Sum over the phase of one field, repeats included."""
    return float(np.sum(np.asarray(counts.repeats * getattr(counts, field))))


def rows(model, p, decode, counts, field):
    """Operator -> one field."""
    names = operator_names(model, p, decode=decode)
    return dict(zip(names, np.asarray(getattr(counts, field)).tolist(), strict=True))


def operators_of(model, p=ALONE, *, decode=True):
    """Name -> operator of the first stage."""
    return {o.name: o for _, o in stages(model, p, decode=decode)[0]}


def write(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return path


# --- parameters ---------------------------------------------------------------------------------


def test_every_built_in_model_has_a_pinned_parameter_count():
    assert set(builtin_models()) == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_built_in_model_has_its_published_parameter_count(name):
    """Published totals of every preset."""
    expected = PARAMETERS[name]
    model = read_transformer(name)
    counts = parameter_counts(model)
    assert model.name == name
    assert (counts.total, counts.active) == (
        expected if isinstance(expected, tuple) else (expected, expected)
    )


@pytest.mark.parametrize("name", PARAMETERS)
def test_advertised_size_is_met_within_three_percent(name):
    """A preset of 12 B held the shape of 2 B."""
    advertised = ADVERTISED.get(name) or 1e9 * float(re.findall(r"-(\d+)b", name)[0])
    assert abs(parameter_counts(read_transformer(name)).total / advertised - 1) < 0.03


# Totals of checkpoints with more in them, as the hub shows them, less what is counted once here or
# not at all: the tied matrix of Falcon; vision tower and projector, 1152 h + 1152, of Gemma 3; the
# prediction layer of GLM-4.5 with its own two vocabulary matrices.
VISION = 416_866_032
PREDICTION = {
    # a layer of either, three norms, and both inputs to one
    "glm-4.5": 136_329_472 + 10_240 + 3_799_285_920 + 3 * 5120 + 2 * 5120**2,
    "glm-4.5-air": 109_066_240 + 8_192 + 2_232_418_432 + 3 * 4096 + 2 * 4096**2,
}
PUBLISHED = {
    "llama-2-7b": 6.74e9,
    "llama-2-70b": 69e9,
    "llama-3-70b": 70.6e9,
    "llama-3.1-70b-fp8": 70.6e9,
    "mixtral-8x22b-instruct": 141e9,
    "gemma-3-12b": 12_187_325_040 - VISION - 1152 * 3840 - 1152,
    "gemma-3-27b": 27_432_406_640 - VISION - 1152 * 5376 - 1152,
    "gemma-4-26b-a4b": 25.2e9,
    "falcon-7b": 7_217_189_760 - 65_024 * 4544,
    "falcon-40b": 41_835_970_560 - 65_024 * 8192,
    "falcon-180b": 179_522_565_120 - 65_024 * 14_848,
    "bloom-176b": 176_247_271_424,
    "opt-175b": 175e9,
    "gpt-3-175b": 175e9,
    "deepseek-v3": 671e9,
    "glm-4.5": 358_337_791_296 - PREDICTION["glm-4.5"] - 2 * 151_552 * 5120,
    "glm-4.5-air": 110_468_824_832 - PREDICTION["glm-4.5-air"] - 2 * 151_552 * 4096,
    "gpt-oss-20b": 20.91e9,
    "gpt-oss-120b": 116.83e9,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_published_total_is_met_within_half_a_percent(name):
    """Against the list of sources: it has the count, and either says that the hub shows the same or
    the published total stands above.
    """
    text = embedded("models", "SOURCES.md").read_text("utf-8")
    table = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    (row,) = [cells for cells in table if len(cells) > 5 and cells[1] == name]
    count = parameter_counts(read_transformer(name)).total
    assert row[4] == f"{count:,}"
    if row[5].endswith("= hub"):
        assert name not in PUBLISHED
    else:
        assert count == pytest.approx(PUBLISHED[name], rel=0.005)
    if isinstance(PUBLISHED.get(name), int):
        assert count == PUBLISHED[name]


# Aliases whose numbers are not those of the model: the shape is the same, or they name none.
ALIASES_WITHOUT_NUMBERS = {
    "meta-llama/llama-3.3-70b-instruct": "llama-3.1-70b",
    "llama3-405b": "llama-3.1-405b",
    "microsoft/phi-3.5-mini-instruct": "phi-3-mini-128k",
    "phi-3-mini": "phi-3-mini-128k",
    "phi-3-medium": "phi-3-medium-128k",
    "bigscience/bloom": "bloom-176b",
    "bloom": "bloom-176b",
    "deepseek-ai/deepseek-r1": "deepseek-v3",
    "deepseek-r1": "deepseek-v3",
}


@pytest.mark.parametrize("alias", model_aliases())
def test_alias_has_the_numbers_of_the_model_that_it_gives(alias):
    """GenZ's alias of Llama-3.1-70B gave Llama-2-70B."""
    name = model_aliases()[alias]
    assert read_transformer(alias) == read_transformer(name)
    assert read_transformer(alias.upper()).name == name

    def numbers(text):
        return set(re.findall(r"\d+(?:\.\d+)?[bk]?", text))

    if alias in ALIASES_WITHOUT_NUMBERS:
        assert name == ALIASES_WITHOUT_NUMBERS[alias]
    else:
        assert numbers(name) and numbers(name) <= numbers(alias)


def test_llama_3_1_70b_by_hub_id_has_its_own_vocabulary():
    """1,577,058,304 parameters more than Llama-2-70B."""
    model = read_transformer("meta-llama/Meta-Llama-3.1-70B")
    assert (model.vocab, parameter_counts(model).total) == (128_256, 70_553_706_496)
    older = parameter_counts(read_transformer("meta-llama/Llama-2-70b-hf")).total
    assert 70_553_706_496 - older == 1_577_058_304


def test_gated_mlp_has_three_matrices():
    """3 * 8192 * 28672; per layer of Llama-2-7B 4 h^2 + 3 h f + 2 h."""
    found = operators_of(LLAMA_70B)
    assert found["up"].held + found["down"].held == 3 * 8192 * 28_672 == 704_643_072
    small = llama(hidden=4096, ffn=11_008, heads=32, kv_heads=32, layers=32, vocab=32_000)
    layer = 4 * 4096**2 + 3 * 4096 * 11_008 + 2 * 4096
    assert parameter_counts(small).total == 32 * layer + 2 * 32_000 * 4096 + 4096 == 6_738_415_616


def test_gpt_3_has_a_plain_mlp():
    """96 * 12 h^2; a gated default would give 231,928,233,984."""
    found = operators_of(read_transformer("gpt-3-175b"))
    layer = sum(found[name].held for name in ("qkv", "output", "up", "down"))
    assert 96 * layer == 96 * 12 * 12_288**2 == 173_946_175_488


@pytest.mark.parametrize("tp", [1, 8])
def test_norms_are_two_a_layer_and_whole_on_every_rank(tp):
    """(2 * 80 + 1) * 8192 = 1,318,912 parameters."""
    (stage,) = stages(LLAMA_70B, Parallelism(tp=tp), decode=True)
    assert sum(repeats * o.vectors for repeats, o in stage) == 1_318_912


def test_tied_head_is_stored_once_and_multiplied_all_the_same():
    """At the vocabulary of Gemma-2-27B: 2 * 256000 * 4608 FLOPs a token either way."""
    shape = dict(hidden=4608, heads=36, kv_heads=4, ffn=64, layers=1, vocab=256_000)
    tied, untied = (llama(tied_embeddings=flag, **shape) for flag in (True, False))
    assert parameter_counts(untied).total - parameter_counts(tied).total == 256_000 * 4608
    for model in (tied, untied):
        found = operators_of(model)
        assert found["lm_head"].flop_per_token == 2_359_296_000
        assert found["embedding"].flop_per_token == found["embedding"].read == 0
        flop = rows(model, ALONE, True, decode_counts(workload(model), ALONE), "tflop_bf16_per_seq")
        assert flop["lm_head"] * 1e12 == pytest.approx(2_359_296_000, rel=1e-12)
    gemma = read_transformer("gemma-2-27b")
    assert operators_of(gemma)["lm_head"].flop_per_token == 2_359_296_000
    assert operators_of(gemma)["lm_head"].held == 0


def test_opt_by_its_own_key_names(tmp_path):
    """ffn_dim, no key/value heads."""
    path = write(
        tmp_path, model_type="opt", hidden_size=12288, word_embed_proj_dim=12288, ffn_dim=49152,
        max_position_embeddings=2048, num_attention_heads=96, num_hidden_layers=96,
        vocab_size=50272, activation_function="relu", torch_dtype="float16",
    )  # fmt: skip
    model = read_transformer(path)
    assert model.first.attention.kv_heads == 96
    assert parameter_counts(model).total == 174_604_468_224
    assert "tie_word_embeddings = true" in model.assumed


@pytest.mark.parametrize(
    "keys",
    [
        dict(n_embed=14336, num_attention_heads=112),
        dict(hidden_size=14336, n_head=112),
    ],
)
def test_bloom_by_both_spellings(tmp_path, keys):
    """n_layer, no width of the MLP and no key/value heads: 4 h, and one per head."""
    path = write(
        tmp_path, model_type="bloom", n_layer=70, vocab_size=250880, layer_norm_epsilon=1e-5, **keys
    )
    model = read_transformer(path)
    assert model.layers[0].mlp == DenseMlp(4 * 14336, gated=False, bias=True)
    assert parameter_counts(model).total == 176_247_271_424


def test_text_model_inside_a_multimodal_file(tmp_path):
    """V = 262208 and the tied head are defaults of the family, and echoed."""
    text = dict(
        model_type="gemma3_text", head_dim=128, hidden_size=5376, intermediate_size=21504,
        num_attention_heads=32, num_hidden_layers=62, num_key_value_heads=16,
        query_pre_attn_scalar=168, sliding_window=1024, sliding_window_pattern=6,
        rope_scaling=dict(factor=8.0, rope_type="linear"),
    )  # fmt: skip
    vision = dict(hidden_size=1152, intermediate_size=4304, num_hidden_layers=27,
                  model_type="siglip_vision_model")  # fmt: skip
    path = write(tmp_path, model_type="gemma3", text_config=text, vision_config=vision)
    model = read_transformer(path)
    assert (model.vocab, model.tied_embeddings) == (262_208, True)
    assert parameter_counts(model).total == 27_009_346_304
    echoed = " ".join(model.assumed)
    assert "262208" in echoed and "tie_word_embeddings" in echoed


# --- weight bytes and capacity ------------------------------------------------------------------


def test_weights_of_one_of_eight_devices_include_vocabulary_and_full_norms():
    """8,556,380,160 in the layers, 2 * 1,050,673,152/8 around them, norms in full."""
    expected = 8_556_380_160 + 2 * 1_050_673_152 // 8 + 1_318_912
    assert expected == 8_820_367_360
    assert weight_bytes_per_device(LLAMA_70B, BF16, Parallelism(tp=8)) == 2 * expected
    for name in ("llama-3-70b", "llama-3.1-70b"):
        model = read_transformer(name)
        assert weight_bytes_per_device(model, BF16, Parallelism(tp=8)) == 2 * expected


def test_fp8_checkpoint_keeps_vocabulary_and_norms_in_two_bytes():
    """67.67 GiB against 67.72 GiB that vLLM measured, not 141.1 GB."""
    expected = 68_451_041_280 + 2 * 2 * 1_050_673_152 + 2 * 1_318_912
    assert expected == 72_656_371_712
    assert weight_bytes_per_device(LLAMA_70B, FP8, ALONE) == expected
    stored = read_transformer("llama-3.1-70b-fp8")
    assert weight_bytes_per_device(stored, CHECKPOINT, ALONE) == expected
    assert kv_bytes_per_token(stored, CHECKPOINT, ALONE) == 163_840
    assert weight_bytes_per_device(stored, BF16, ALONE) == 2 * 70_553_706_496


def _memory(batch, tp, model=LLAMA_70B, memory_gb=80.0, prompt=7900, output=100):
    """Use and limit of the decode pool's memory on H100s, GB."""
    h100 = load_accelerator("h100-sxm")
    design = eqx.tree_at(lambda d: d.memory_gb, h100.design(), scalar(memory_gb))
    p = Parallelism(tp=tp)
    served = workload(model, prompt, output)
    metrics = evaluate(design, Deployment(p, p, 1, batch, 1.83, 1.83), h100.technology(), served)
    row = LIMIT_NAMES.index("memory_decode")
    return float(metrics.uses[row]), float(metrics.limits[row])


def test_the_largest_batch_that_fits_and_the_bytes_that_one_more_lacks():
    """8000 tokens of 40,960 B a sequence in 72e9 B beside the weights: 165."""
    weights = weight_bytes_per_device(LLAMA_70B, BF16, Parallelism(tp=8))
    sequence = 8000 * kv_bytes_per_token(LLAMA_70B, BF16, Parallelism(tp=8))
    assert (weights, sequence) == (17_640_734_720, 327_680_000)
    assert (72 * 10**9 - weights) // sequence == 165
    used, usable = _memory(165, tp=8)
    assert used < usable == pytest.approx(72, rel=1e-12)
    used, usable = _memory(166, tp=8)
    shortfall = weights + 166 * sequence - 72 * 10**9
    assert shortfall == 35_614_720
    assert (used - usable) * 1e9 == pytest.approx(shortfall, abs=1)


def test_a_model_that_does_not_fit_has_a_shortfall_and_raises_nothing():
    """141.11 GB on one device of 80 GB lack 61.11 GB, all of the memory usable."""
    used, usable = _memory(1, tp=1, memory_gb=80 / 0.9)
    assert usable == pytest.approx(80, rel=1e-12)
    assert used >= 141.107
    assert used - usable >= 61.107


def test_the_reserve_is_a_share_of_the_whole_memory():
    """80 GB, 20 GB of weights, share 0.9: 80 * 0.9 - 20 = 52 GB for the cache, and not
    (80 - 20) * 0.9 = 54 GB.
    """
    # 2 V h + h + 4 h e + 3 h f + 2 h parameters with h = 1000, e = f = 1
    layer = Layer(GroupedAttention(1, 1, 1), DenseMlp(1, gated=True))
    model = llama(hidden=1000, heads=1, vocab=4_999_995, layers=1)
    model = replace(model, layers=(layer,))
    assert weight_bytes_per_device(model, BF16, ALONE) == 20 * 10**9
    # 4 B a token and sequence
    batch = 52e9 / (4 * 8000)
    used, usable = _memory(batch, tp=1, model=model)
    assert usable == pytest.approx(72, rel=1e-12)
    assert used == pytest.approx(usable, rel=1e-9)


# --- cache --------------------------------------------------------------------------------------


def test_kv_cache_counts_key_value_heads():
    """4096 * 2 * 80 * 8 * 128 * 2; 2 * 32 * 32 * 128 * 2."""
    assert 4096 * kv_bytes_per_token(LLAMA_70B, BF16, ALONE) == 1_342_177_280
    small = read_transformer("llama-2-7b")
    assert kv_bytes_per_token(small, BF16, ALONE) == 524_288


@pytest.mark.parametrize(
    ("tp", "of_all"), [(8, 327_680), (16, 655_360), (32, 1_310_720), (64, 2_621_440)]
)
def test_key_value_heads_replicate_beyond_their_number(tp, of_all):
    """40,960 bytes per token on every device, and their projections in full."""
    p = Parallelism(tp=tp)
    assert kv_bytes_per_token(LLAMA_70B, BF16, p) == of_all / p.devices == 40_960
    pools = build_pools(workload(), Parallelism(tp=8), p)
    assert float(pools.kv_gb_per_seq[1]) == pytest.approx(40_960 * 8193 / 1e9, rel=1e-12)
    assert operators_of(LLAMA_70B, p)["qkv"].held == 8192 * (64 // tp + 2) * 128


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        # Mistral-Small-24B, Qwen3-235B and the case of ai-dynamo/dynamo 14431
        (dict(num_hidden_layers=40, num_key_value_heads=8, head_dim=128, hidden_size=5120,
              num_attention_heads=32), 163_840),
        (dict(num_hidden_layers=94, num_key_value_heads=4, head_dim=128, hidden_size=4096,
              num_attention_heads=64), 192_512),
        (dict(num_hidden_layers=1, num_key_value_heads=8, head_dim=256, hidden_size=3584,
              num_attention_heads=16), 8_192),
    ],
)  # fmt: skip
def test_head_dim_is_read_where_the_file_states_it(tmp_path, shape, expected):
    path = write(tmp_path, model_type="llama", intermediate_size=16384, vocab_size=1000, **shape)
    assert kv_bytes_per_token(read_transformer(path), BF16, ALONE) == expected


@pytest.mark.parametrize(
    ("name", "expected"), [("mistral-small-24b", 163_840), ("qwen3-235b-a22b", 192_512)]
)
def test_head_dim_of_built_in_models(name, expected):
    assert kv_bytes_per_token(read_transformer(name), BF16, ALONE) == expected


# --- operations ---------------------------------------------------------------------------------


def test_lm_head_counts_multiply_and_add_for_every_sequence():
    """2 * 32 * 8192 * 128256 FLOPs, logits of 32 * 128256 * 2 bytes."""
    head = operators_of(LLAMA_70B)["lm_head"]
    assert 32 * head.flop_per_token == 67_243_081_728
    assert 32 * 2 * (head.moved_per_token - 8192) == 8_208_384
    counts = decode_counts(workload(), ALONE)
    traffic = rows(LLAMA_70B, ALONE, True, counts, "traffic_gb_per_seq")["lm_head"]
    assert 32 * (1e9 * traffic - 8192 * 2) == pytest.approx(8_208_384, rel=1e-12)


def test_prefill_attention_is_causal_and_the_head_runs_for_the_last_token():
    """4 (S(S + 1)/2) * 64 * 128 * 80 = 8.7972e13; 1.1215e15 and 2.101e9 beside it."""
    counts = prefill_counts(workload(prompt=8192.0), ALONE)
    attention = total(counts, "tflop_attention_per_seq") * 1e12
    assert attention == pytest.approx(4 * (8192 * 8193 // 2) * 64 * 128 * 80, rel=1e-12)
    assert attention == pytest.approx(8.7972e13, rel=1e-5)
    head = rows(LLAMA_70B, ALONE, False, counts, "tflop_bf16_per_seq")["lm_head"] * 1e12
    assert head == pytest.approx(2 * 128_256 * 8192, rel=1e-12)
    linear = total(counts, "tflop_bf16_per_seq") * 1e12 - head
    assert linear == pytest.approx(2 * 68_451_041_280 * 8192, rel=1e-12)
    # 152.8 ms on eight devices of 989.4 TFLOP/s
    assert (linear + attention + head) / (8 * 989.4e12) == pytest.approx(0.1528, abs=5e-5)


def test_decode_attention_sees_the_whole_cache():
    """4 * 8192 * 8192 * 80 FLOPs for 2,684,354,560 bytes of cache: 8 FLOP/B."""
    counts = decode_counts(workload(), ALONE)
    flop = total(counts, "tflop_attention_per_seq") * 1e12
    assert flop == pytest.approx(4 * 8192 * 8192 * 80, rel=1e-12)
    traffic = rows(LLAMA_70B, ALONE, True, counts, "traffic_gb_per_seq")["attention"]
    queries_and_result = 2 * 64 * 128 * 2
    cache = 80 * (traffic * 1e9 - queries_and_result)
    assert cache == pytest.approx(2_684_354_560, rel=1e-12)
    assert flop / cache == pytest.approx(8.0, rel=1e-12)


def test_decode_step_reads_all_weights_but_the_input_embedding():
    """139,006,066,688 bytes, 41.49 ms at 3.35 TB/s; of the embedding one row."""
    counts = decode_counts(workload(), ALONE)
    weights = total(counts, "weight_gb")
    assert weights * 1e9 == pytest.approx(139_006_066_688, rel=1e-12)
    assert weights / 3.35 == pytest.approx(41.49, abs=5e-3)
    assert rows(LLAMA_70B, ALONE, True, counts, "weight_gb")["embedding"] == 0
    # the row that is read, and written on
    row = rows(LLAMA_70B, ALONE, True, counts, "traffic_gb_per_seq")["embedding"]
    assert row * 1e9 == pytest.approx(2 * 16_384, rel=1e-12)


def test_query_heads_cost_flops_and_no_cache():
    """Twice the heads over the same key/value heads."""
    once, twice = (
        replace(LLAMA_70B, layers=(Layer(GroupedAttention(q, 8, 128), DenseMlp(64, True)),))
        for q in (64, 128)
    )
    assert kv_bytes_per_token(once, BF16, ALONE) == kv_bytes_per_token(twice, BF16, ALONE)
    before, after = (operators_of(model)["attention"] for model in (once, twice))
    assert after.cached_per_context == before.cached_per_context == 2 * 8 * 128
    assert after.flop_per_pair == 2 * before.flop_per_pair == 2 * 4 * 64 * 128


def test_decode_bound_by_memory_gains_what_the_memory_gains():
    """1.1 times the bandwidth gives exactly 1.1 times the throughput, with no fixed
    times. That more never hurts is in test_invariants.py.
    """
    h100 = load_accelerator("h100-sxm")
    deployment = Deployment(ALONE, ALONE, 1, 1, 1.83, 1.83)
    usual = h100.technology(execution="ideal")
    faster = eqx.tree_at(lambda t: t.memory.stack_tb_s, usual, 1.1 * usual.memory.stack_tb_s)
    before, after = (
        evaluate(h100.design(), deployment, tree, workload(), roof=HardRoof())
        for tree in (usual, faster)
    )
    assert float(after.tokens_per_s / before.tokens_per_s) == pytest.approx(1.1, rel=1e-12)


def test_a_small_operator_by_hand():
    """2048 * 8 * 128 * 2 B at 1.8 TB/s take 2.330 us, 65,536 FLOPs at 838 TFLOP/s
    0.0000782 us: 29,796 to 1.
    """
    fields = dict.fromkeys(OperatorCounts.__dataclass_fields__, jnp.zeros(1)) | dict(
        repeats=jnp.ones(1),
        tflop_bf16_per_seq=jnp.array([65_536e-12]),
        traffic_gb_per_seq=jnp.array([2048 * 8 * 128 * 2e-9]),
        experts=None,
    )
    counts = OperatorCounts(**fields)
    rates = Rates(scalar(838), scalar(1676), scalar(1.8), scalar(450))
    times = operator_times(counts, scalar(1), rates, technology(execution="ideal").execution)
    memory_us, compute_us = 1e3 * float(times.memory_ms[0]), 1e3 * float(times.compute_ms[0])
    assert memory_us == pytest.approx(2.330, abs=5e-4)
    assert compute_us == pytest.approx(0.0000782, abs=5e-8)
    assert memory_us / compute_us == pytest.approx(29_796, abs=0.5)


def test_eight_bit_weights_move_the_linear_layers_only():
    p = Parallelism(tp=8)
    wide, narrow = (decode_counts(workload(precision=q), p) for q in (BF16, FP8))
    head = rows(LLAMA_70B, p, True, wide, "tflop_bf16_per_seq")["lm_head"]
    assert total(narrow, "tflop_bf16_per_seq") == head
    assert total(narrow, "tflop_fp8_per_seq") + head == pytest.approx(
        total(wide, "tflop_bf16_per_seq"), rel=1e-12
    )
    bytes_wide, bytes_narrow = (rows(LLAMA_70B, p, True, c, "weight_gb") for c in (wide, narrow))
    assert bytes_narrow["lm_head"] == bytes_wide["lm_head"]
    assert bytes_narrow["up"] * 2 == bytes_wide["up"]


# --- every operator by hand ---------------------------------------------------------------------

# On one of two devices: h = 16, q = 2, k = 1, e = 8, f = 12, V = 51 (of 101, padded), two norms of
# 32 parameters; two bytes a number, one byte in the cache and on the wire; S = 5, T = 4, L = 7.
# name: FLOPs, weight bytes, traffic bytes, message bytes, wire bytes (in-network: 3/2, gather: 1/2)
PREFILL_BY_HAND = {
    "embedding": (0, 0, 320, 80, 120),
    "qkv": (5120, 1088, 5 * (32 + 32 + 16), 0, 0),
    "attention": (960, 0, 320 + 80, 0, 0),
    "output": (2560, 544, 320, 80, 120),
    "up": (3840, 816, 280, 0, 0),
    "down": (1920, 416, 280, 80, 120),
    "elementwise": (0, 128, 1280, 0, 0),
    "lm_head": (1632, 1696, 134, 101, 50.5),
}
DECODE_BY_HAND = {
    "embedding": (0, 0, 64, 16, 24),
    "qkv": (1024, 1088, 80, 0, 0),
    "attention": (448, 0, 64 + 112, 0, 0),
    "output": (512, 544, 64, 16, 24),
    "up": (768, 816, 56, 0, 0),
    "down": (384, 416, 56, 16, 24),
    "elementwise": (0, 128, 256, 0, 0),
    "lm_head": (1632, 1696, 134, 101, 50.5),
}
BY_HAND = Transformer(
    name="by-hand", family="none", hidden=16, vocab=101, norm_parameters=32, tied_embeddings=True,
    layers=(Layer(GroupedAttention(4, 1, 8, input_bias=True, output_bias=True),
                  DenseMlp(24, gated=True, bias=True)),) * 3,
)  # fmt: skip


@pytest.mark.parametrize(
    ("phase", "decode", "expected"),
    [(prefill_counts, False, PREFILL_BY_HAND), (decode_counts, True, DECODE_BY_HAND)],
)
@pytest.mark.parametrize("dp", [1, 3])
def test_every_operator_equals_the_hand_count(phase, decode, expected, dp):
    """With three replicas, one of them has a third of a sequence of the group."""
    precision = Precision(weights="bf16", kv="fp8", activations="fp16", wire="fp8")
    p = Parallelism(tp=2, dp=dp, collective="in-network")
    assert kv_bytes_per_token(BY_HAND, precision, p) == 2 * 3 * 8
    counts = phase(workload(BY_HAND, 5, 4, precision), p)
    assert operator_names(BY_HAND, p, decode=decode) == tuple(expected)

    def per_sequence(field, scale):
        found = rows(BY_HAND, p, decode, counts, field)
        return {name: pytest.approx(dp * scale * value, rel=1e-12) for name, value in found.items()}

    columns = [
        dict(zip(expected, column, strict=True)) for column in zip(*expected.values(), strict=True)
    ]
    flop, weight, traffic, message, wire = columns
    attention = {name: n * (name == "attention") for name, n in flop.items()}
    assert attention == per_sequence("tflop_attention_per_seq", 1e12)
    linear = {name: n * (name != "attention") for name, n in flop.items()}
    assert linear == per_sequence("tflop_bf16_per_seq", 1e12)
    assert weight == per_sequence("weight_gb", 1e9 / dp)
    assert traffic == per_sequence("traffic_gb_per_seq", 1e9)
    assert message == per_sequence("message_mb_per_seq", 1e6)
    assert wire == per_sequence("wire_gb_per_seq", 1e9)
    for name in expected:
        gathers = 1 if name == "lm_head" else 2
        row = {f: rows(BY_HAND, p, decode, counts, f)[name] for f in ("steps", "launches")}
        assert row["steps"] == (gathers if message[name] else 0)
        assert row["launches"] == (2 if name == "elementwise" else 1)
        times = rows(BY_HAND, p, decode, counts, "repeats")[name]
        assert times == (1 if name in ("embedding", "lm_head") else 3)


def test_layer_with_attention_beside_the_mlp_sums_once():
    """One norm and one all-reduce of h for both; h = 6, a norm of 12 parameters. Where each has a
    norm of its own, the second finds what is summed and reads and writes 6 numbers.
    """
    attention = GroupedAttention(4, 1, 3)
    model = llama(hidden=6, heads=2, vocab=11, layers=1, norm_parameters=12)
    beside, own, after = (
        replace(model, layers=(Layer(attention, DenseMlp(10, False), norms, parallel),))
        for norms, parallel in ((1, True), (2, True), (2, False))
    )
    p = Parallelism(tp=2)
    both = operators_of(beside, p)
    assert both["output"].exchange == Exchange()
    assert both["down"].exchange == Exchange(1, 2, 6, 6)
    norm = both["elementwise"]
    assert (norm.launches, norm.vectors, norm.moved_per_token) == (1, 12, 4 * 6)
    usual = operators_of(after, p)
    assert usual["output"].exchange == usual["down"].exchange == Exchange(1, 2, 6, 6)
    norms = usual["elementwise"]
    assert (norms.launches, norms.vectors, norms.moved_per_token) == (2, 24, 2 * 4 * 6)
    norms = operators_of(own, p)["elementwise"]
    assert (norms.launches, norms.vectors, norms.moved_per_token) == (2, 24, (4 + 2) * 6)
    assert parameter_counts(after).total - parameter_counts(beside).total == 12
    same = ("embedding", "qkv", "attention", "up", "down", "lm_head")
    assert all(both[name] == usual[name] for name in same)


def test_bloom_has_a_norm_after_its_embedding():
    """h = 6: two more vectors of 6, held and read, the matrix held alone."""
    with_norm = llama(
        hidden=6, heads=2, kv_heads=2, ffn=5, vocab=11, layers=1, norm_parameters=12,
        embedding_norm=True, tied_embeddings=True, position_rows=7,
    )  # fmt: skip
    embedding = operators_of(with_norm)["embedding"]
    assert (embedding.held, embedding.read, embedding.vectors) == ((11 + 7) * 6, 0, 12)
    without = replace(with_norm, embedding_norm=False)
    assert parameter_counts(with_norm).total - parameter_counts(without).total == 12
    assert operators_of(without)["embedding"].vectors == 0


def test_norms_of_heads_biases_and_sinks_are_vectors():
    """Two of six query heads and one key/value head of 3 on a device: 12 input biases, two norms
    of 3, 7 output biases, one sink per query head.
    """
    attention = GroupedAttention(
        6, 3, 3, input_bias=True, output_bias=True, head_norms=True, sinks=True
    )
    model = llama(hidden=7, heads=1, vocab=11, layers=1)
    model = replace(model, layers=(Layer(attention, DenseMlp(3, gated=False)),))
    found = operators_of(model, Parallelism(tp=3))
    assert found["qkv"].vectors == (2 + 2 * 1) * 3 + 2 * 3
    assert found["output"].vectors == 7
    assert found["attention"].vectors == 2


# --- tensor-parallel degrees --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heads", "tp", "valid"),
    [(64, 3, (1, 2, 4, 8, 16, 32, 64)), (52, 8, (1, 2, 4, 13, 26, 52))],
)
def test_degree_that_does_not_divide_the_heads_is_refused(heads, tp, valid):
    """Refused with the field and the degrees that do."""
    model = llama(hidden=heads * 16, heads=heads, kv_heads=4, ffn=heads * 32, layers=1)
    assert tensor_parallel_degrees(model, 1000) == valid
    assert tensor_parallel_degrees(model, 8) == tuple(n for n in valid if n <= 8)
    with pytest.raises(UserError) as caught:
        check_parallelism(model, Parallelism(tp=tp), "--{}")
    message = str(caught.value)
    assert message.startswith("--tp: ") and f"num_attention_heads {heads}" in message
    assert message.endswith("allowed: " + ", ".join(map(str, valid)))


def test_degree_that_does_not_divide_the_mlp_is_refused():
    model = llama(ffn=4096 + 4, layers=1)
    with pytest.raises(UserError, match=r"feed-forward width 4100 .*allowed: 1, 2, 4$"):
        check_parallelism(model, Parallelism(tp=8))


@pytest.mark.parametrize("name", ["tp", "dp", "pp", "ep", "kv_parallel", "microbatches"])
@pytest.mark.parametrize("value", [0, -8, True, 8.0, "8", None])
def test_degrees_are_whole_numbers(name, value):
    with pytest.raises(UserError, match=f"^{name}: .* is not a positive whole number"):
        Parallelism(**{name: value})


@pytest.mark.parametrize("way", [dict(tp=3), dict(tp=128), dict(pp=81), dict(ep=2)])
def test_no_bytes_and_no_pool_for_an_impossible_way(way):
    p = Parallelism(**way)
    for count in (weight_bytes_per_device, kv_bytes_per_token):
        with pytest.raises(UserError):
            count(LLAMA_70B, BF16, p)
    with pytest.raises(UserError, match=f"^decode.{next(iter(way))}: "):
        build_pools(workload(), ALONE, p)
    with pytest.raises(UserError, match=f"^prefill.{next(iter(way))}: "):
        build_pools(workload(), p, ALONE)


# --- pipelines ----------------------------------------------------------------------------------

# A layer: h = 6, two heads of 3 over one: 6 (2 + 2) 3 + 6 * 6; MLP 3 * 6 * 5; norms 12.
LAYER = 72 + 36 + 90 + 12
SHORT = llama(hidden=6, heads=2, kv_heads=1, ffn=5, layers=5, vocab=101)
TABLE = 101 * 6


@pytest.mark.parametrize(
    ("layers", "pp", "split"),
    [(5, 1, [5]), (5, 2, [3, 2]), (7, 3, [3, 2, 2]), (8, 3, [3, 3, 2]), (4, 4, [1, 1, 1, 1])],
)
def test_layers_of_the_stages(layers, pp, split):
    """As even as can be; the head is in the last, which has the fewer."""
    one = SHORT.first
    model = replace(SHORT, layers=tuple(replace(one, norms=n) for n in range(1, layers + 1)))
    found = stage_layers(model, pp)
    assert [len(stage) for stage in found] == split
    assert sum(found, ()) == model.layers


@pytest.mark.parametrize(
    ("pp", "tied", "expected"),
    [
        (1, False, 5 * LAYER + 2 * TABLE + 6),
        (1, True, 5 * LAYER + TABLE + 6),
        # embedding and three layers; the last has two, the head and its norm
        (2, False, max(TABLE + 3 * LAYER, 2 * LAYER + TABLE + 6)),
        # a tied matrix is in the first and in the last
        (2, True, max(TABLE + 3 * LAYER, 2 * LAYER + TABLE + 6)),
        (4, False, TABLE + 2 * LAYER),
        (5, True, TABLE + LAYER + 6),
    ],
)
def test_weights_of_the_fullest_stage(pp, tied, expected):
    model = replace(SHORT, tied_embeddings=tied)
    assert weight_bytes_per_device(model, BF16, Parallelism(pp=pp)) == 2 * expected


@pytest.mark.parametrize(("pp", "layers"), [(1, 5), (2, 3), (3, 2), (4, 2), (5, 1)])
def test_cache_of_the_fullest_stage(pp, layers):
    """2 * 1 * 3 numbers a token and layer."""
    p = Parallelism(pp=pp)
    assert kv_bytes_per_token(SHORT, BF16, p) == 2 * 6 * layers
    pools = build_pools(workload(SHORT, 9, 3), p, p)
    for held, tokens in zip(pools.kv_gb_per_seq, (9, 12), strict=True):
        assert float(held) * 1e9 == pytest.approx(2 * 6 * layers * tokens, rel=1e-12)


@pytest.mark.parametrize("decode", [False, True])
def test_a_stage_hands_its_results_on(decode):
    """Six numbers a token to one peer, whatever the ranks of a stage; no kernel for it."""
    for way in (dict(), dict(tp=2), dict(dp=3)):
        # feed-forward columns that two ranks can share
        model = llama(hidden=6, heads=2, kv_heads=1, ffn=4, layers=5, vocab=101)
        first, _ = stages(model, Parallelism(pp=2, **way), decode=decode)
        found = {o.name: (repeats, o) for repeats, o in first}
        repeats, hand_on = found["hand_on"]
        assert (repeats, hand_on.launches) == (1, 0)
        assert hand_on.exchange == Exchange(1, 1, 6, 6)
    assert "hand_on" not in operators_of(SHORT, ALONE, decode=decode)


IN_A_LAYER = ("qkv", "attention", "output", "up", "down", "elementwise")


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize(
    ("layers", "pp", "kinds"),
    [
        # stages of a kind and their layers
        (5, 1, [(1, 5)]),
        (5, 2, [(1, 3), (1, 2)]),
        (7, 3, [(1, 3), (1, 2), (1, 2)]),
        (8, 4, [(1, 2), (2, 2), (1, 2)]),
        (9, 5, [(1, 2), (3, 2), (1, 1)]),
        (11, 4, [(1, 3), (2, 3), (1, 2)]),
        (10, 4, [(1, 3), (1, 3), (1, 2), (1, 2)]),
    ],
)
def test_stages_that_are_alike_stand_once(layers, pp, kinds, decode):
    """The first has the embedding, the last the head, all others hand their results on."""
    model = replace(SHORT, layers=layers * (SHORT.first,))
    p = Parallelism(pp=pp)
    counts = (decode_counts if decode else prefill_counts)(workload(model, 9, 3), p)
    last = len(kinds) - 1
    names, repeats, stage, share = [], [], [], []
    for kind, (count, depth) in enumerate(kinds):
        begin = ["embedding"] if kind == 0 else []
        own = [*begin, *IN_A_LAYER, "lm_head" if kind == last else "hand_on"]
        names += own
        repeats += [depth if name in IN_A_LAYER else 1 for name in own]
        stage += len(own) * [kind]
        share += len(own) * [count / pp]
    assert operator_names(model, p, decode=decode) == tuple(names)
    assert counts.repeats.tolist() == repeats
    assert counts.stages.tolist() == [count for count, _ in kinds]
    assert counts.stage.tolist() == [[float(own == n) for own in stage] for n in range(last + 1)]
    assert counts.device_share.tolist() == pytest.approx(share, rel=1e-15)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("phase", "decode"), PHASES)
@pytest.mark.parametrize("pp", [2, 3, 4, 5])
def test_stages_together_do_the_work_of_one_device(pp, phase, decode, tied):
    """Head and embedding included, whatever the shares of the layers; a stage sends 6 numbers of 2
    bytes a token on. S = 9.
    """
    served = workload(replace(SHORT, tied_embeddings=tied), 9, 3)
    alone, chain = phase(served, ALONE), phase(served, Parallelism(pp=pp))
    for field in ("launches", "tflop_bf16_per_seq", "tflop_attention_per_seq", "weight_gb",
                  "traffic_gb_per_seq"):  # fmt: skip
        mean = float(jnp.sum(chain.device_share * chain.repeats * getattr(chain, field)))
        assert pp * mean == pytest.approx(total(alone, field), rel=1e-12)
    sent = float(jnp.sum(chain.device_share * chain.repeats * chain.wire_gb_per_seq)) * 1e9
    assert pp * sent == pytest.approx((pp - 1) * (1 if decode else 9) * 6 * 2, rel=1e-12)


@pytest.mark.parametrize(
    ("m", "keeps", "through", "step"),
    [(1, 6, 17, 17), (2, 12, 23, 17), (3, 18, 29, 18), (4, 24, 35, 24), (5, 30, 41, 30)],
)
def test_times_of_a_batch(m, keeps, through, step):
    """Four stages of 3, 4, 4 and 6 ms: 17 ms for one microbatch, and 6 for each that follows. In
    steady state prefill is kept for 6 m; a decode step waits for its microbatches or its stages.
    """
    model = replace(SHORT, layers=8 * (SHORT.first,))
    p = Parallelism(pp=4, microbatches=m)
    pools = build_pools(workload(model, 9, 3), p, p)
    assert pools.waits_for_itself.tolist() == [0, 1]
    assert pools.microbatches.tolist() == [m, m]
    assert pools.devices.tolist() == [4, 4]
    names = operator_names(model, p, decode=True)
    first, middle, last = (
        dict(embedding=1, down=2),
        dict(qkv=1.5, up=0.5, hand_on=2),
        dict(attention=1, lm_head=5),
    )
    # eight operators in the first stage, seven in those between, seven in the last
    kinds = 8 * [first] + 7 * [middle] + 7 * [last]
    times = [kind.get(name, 0) for kind, name in zip(kinds, names, strict=True)]
    prefill, decode = (jax.tree.map(operator.itemgetter(n), pools) for n in (0, 1))
    assert [float(ms) for ms in batch_times_ms(prefill, jnp.array(times))] == [
        keeps,
        through - keeps,
    ]
    assert [float(ms) for ms in batch_times_ms(decode, jnp.array(times))] == [step, 0]


@pytest.mark.parametrize("m", [1, 3])
def test_times_of_a_batch_in_a_single_stage(m):
    """Also where the other pool has stages, and kinds of them that this one lacks."""
    for other in (ALONE, Parallelism(pp=4)):
        p = Parallelism(microbatches=m)
        pools = build_pools(workload(SHORT, 9, 3), p, other)
        assert pools.microbatches.tolist() == [m, 1]
        pool = jax.tree.map(operator.itemgetter(0), pools)
        idle = len(pool.operators.repeats) - 8
        times = jnp.array([1.0, 0, 0, 0, 0.5, 0, 0, 2] + idle * [0.0])
        assert [float(ms) for ms in batch_times_ms(pool, times)] == [3.5 * m, 0]


def parts_ms(served, phase, decode, batch, execution):
    """Embedding, one layer and head on a whole device: ms of `batch` sequences."""
    counts = phase(served, ALONE)
    rates = Rates(*(scalar(x) for x in (132 * 4.096 * 1.83, 2 * 132 * 4.096 * 1.83, 3.35, 450)))
    found = operator_times(counts, scalar(batch), rates, execution).total_ms(HardRoof())
    names = operator_names(served.transformer, ALONE, decode=decode)
    ms = dict(zip(names, np.asarray(found).tolist(), strict=True))
    embedding, head = ms.pop("embedding"), ms.pop("lm_head")
    return embedding, sum(ms.values()) / len(served.transformer.layers), head


def metrics_of(served, p, batch, tree):
    """Both pools alike on H100s."""
    design = load_accelerator("h100-sxm").design()
    deployment = Deployment(p, p, batch, batch, 1.83, 1.83)
    return evaluate(design, deployment, tree, served, roof=HardRoof())


def test_time_of_a_pipeline_by_hand():
    """Two microbatches of 12 sequences through stages of 27, 27 and 26 layers. Each token of them
    is handed on as 16,384 B: 1.16 times 3.8769 us, 3.46 us a root of a megabyte, and 0.734 * 450
    GB/s. Before the first token the server takes 19.1 ms.
    """
    tree = load_accelerator("h100-sxm").technology({"execution.power_capped": 0.0})
    served = workload(LLAMA_70B, 1500, 500)
    services = metrics_of(served, Parallelism(pp=3, microbatches=2), 24, tree).services
    times = []
    for tokens, (phase, decode) in zip((12 * 1500, 12), PHASES, strict=True):
        embedding, layer, head = parts_ms(served, phase, decode, 12, tree.execution)
        mb = tokens * 16_384 / 1e6
        hand_on = 1e-3 * (1.16 * (3.8 + 0.0769) + 3.46 * mb**0.5) + mb / (0.734 * 450)
        times.append((embedding + 27 * layer + hand_on, 27 * layer + hand_on, 26 * layer + head))
    # prefill: the first stage has the longest time; 12 heads are less than a layer of 18,000 tokens
    first, second, last = times[0]
    assert first > second > last
    handover = 24 * 1500 * 27 * 4096 / (0.734 * 450e9) * 1e3
    assert float(services.time_ms[0]) == pytest.approx(2 * first, rel=1e-12)
    assert float(services.latency_ms[0]) == pytest.approx(
        2 * first + second + last + handover + 19.1, rel=1e-12
    )
    # decode: two microbatches do not fill three stages
    assert 2 * max(times[1]) < sum(times[1])
    for found in (services.time_ms[1], services.latency_ms[1]):
        assert float(found) == pytest.approx(sum(times[1]), rel=1e-12)


def test_the_head_sets_the_pace_of_gpt_oss_in_eight_stages():
    """Eight microbatches of one sequence, bound by memory, in bf16. Of 36 layers the last stage has
    four, two with a window, and a head of 201,088 x 2880; it reads 1.7 times what the first does.
    """
    served = workload(read_transformer("gpt-oss-120b"))
    tree = load_accelerator("h100-sxm").technology(execution="ideal")
    h, q, kv = 2880, 64 * 64, 2 * 8 * 64
    weights = (
        h * (q + kv) + q + kv  # queries, keys and values with their biases
        + 64  # a sink for each head
        + q * h + h
        + h * 128 + 128  # router
        + 4 * (3 * h * h + 3 * h)  # four experts: gate and up, down, and their biases
        + 2 * h  # norms
    )  # fmt: skip
    moved = (
        (h + q) + kv  # with the new keys and values
        + 2 * q
        + (q + h)
        + (h + 128)
        + 2 * 4 * 2 * h  # into and out of both matrices of four experts
        + 5 * h  # their results and the sum
        + 2 * 4 * h
    )  # fmt: skip
    read = weights + moved
    near, far = read + 128 * kv, read + 8192 * kv
    head = h * 201_088 + h + h + 201_088
    last_ms = 2 * (2 * near + 2 * far + head) / 3.35e9
    hand_on_ms = h * 2 / 450e6
    first_ms = 2 * (2 * h + 3 * near + 2 * far) / 3.35e9 + hand_on_ms
    # five layers begin with a window or without one
    five_ms = 2 * (2 * near + 3 * far) / 3.35e9 + hand_on_ms
    four_ms = 2 * (2 * near + 2 * far) / 3.35e9 + hand_on_ms
    through_ms = first_ms + 2 * five_ms + (five_ms - 2 * (far - near) / 3.35e9)
    through_ms += 3 * four_ms + last_ms
    assert last_ms == pytest.approx(1.7 * first_ms, rel=0.01)
    for m, step_ms in ((8, 8 * last_ms), (1, through_ms)):
        p = Parallelism(pp=8, microbatches=m)
        services = metrics_of(served, p, m, tree).services
        assert float(services.time_ms[1]) == pytest.approx(step_ms, rel=1e-12)
        assert float(services.latency_ms[1]) == pytest.approx(step_ms, rel=1e-12)


@pytest.mark.parametrize("m", [1, 4])
def test_prefill_in_stages_is_as_busy_as_on_one_device(m):
    """Four stages of 20 layers cost four times the slowest of them, with no bubbles: 0.1 % more
    than a device of its own for each part, as the head is in one of them: its 2.1 GB take longer
    than an embedding and the 0.2 GB that a stage hands on.
    """
    tree = load_accelerator("h100-sxm").technology(execution="ideal")
    served = workload(LLAMA_70B, 1500, 500)
    embedding, layer, head = parts_ms(served, prefill_counts, False, 8, tree.execution)
    alone = metrics_of(served, ALONE, 8, tree).services
    chain = metrics_of(served, Parallelism(pp=4, microbatches=m), 8 * m, tree).services
    one_ms = embedding + 80 * layer + head
    hand_on = 8 * 1500 * 16_384 / 450e6
    assert head == pytest.approx(0.63, rel=0.01) and head > embedding + hand_on
    slowest = 20 * layer + head
    ratio = float(chain.device_seconds_per_token[0] / alone.device_seconds_per_token[0])
    assert ratio == pytest.approx(4 * slowest / one_ms, rel=1e-12)
    assert ratio == pytest.approx(1 + 3 * 0.63 / 1722, abs=1e-4)


@pytest.mark.parametrize(("pp", "m"), [(3, 1), (3, 2), (4, 1), (4, 2)])
def test_a_pipeline_draws_the_energy_of_its_stages(pp, m):
    """All of them together: that of one device, and 5 pJ/bit for what is handed on, 13 at the far
    end. With nothing drawn at rest. The cache of a prompt is sent once.
    """
    tree = load_accelerator("h100-sxm").technology()
    tree = eqx.tree_at(
        lambda t: (
            t.process.idle_w_per_mm2, t.process.pj_per_sm_clock, t.prices.host_power_share
        ),
        tree,
        (scalar(1e-30), scalar(1e-30), scalar(0)),
    )  # fmt: skip
    served = workload(LLAMA_70B, 1500, 500)
    one, chain = (
        metrics_of(served, Parallelism(pp=n, microbatches=m), 24, tree).services for n in (1, pp)
    )
    cache_j = 24 * 1500 * 327_680 * 8e-12
    # what 80 layers do not divide into is told apart in decode, which hands no cache over
    for row, tokens in ((0, 1500), (1, 1)) if pp == 4 else ((1, 1),):
        handed_on_j = (pp - 1) * 24 * tokens * 16_384 * 8e-12
        alone_j = float(one.device_j[row])
        assert pp * float(chain.device_j[row]) - alone_j == pytest.approx(
            5 * handed_on_j, rel=1e-6, abs=1e-11 * alone_j
        )
        assert pp * float(chain.cluster_j[row]) == pytest.approx(
            13 * (handed_on_j + (row == 0) * cache_j), rel=1e-12
        )


# --- pools --------------------------------------------------------------------------------------


def pools_of(served, prefill, decode):
    pools = build_pools(served, Parallelism(tp=prefill), Parallelism(tp=decode))
    return [jax.tree.map(operator.itemgetter(n), pools) for n in (0, 1)]


def test_pools_hold_and_run_what_the_request_needs():
    served = workload(prompt=1500.0, output=500.0, precision=FP8, ttft_ms=1000.0, tbt_ms=50.0)
    prefill, decode = pools_of(served, 2, 8)
    for pool, tp in ((prefill, 2), (decode, 8)):
        assert float(pool.devices) == tp
        expected = weight_bytes_per_device(LLAMA_70B, FP8, Parallelism(tp=tp))
        assert float(pool.weights_gb) * 1e9 == pytest.approx(expected, rel=1e-12)
    # 2 * 80 * 128 bytes per token and head: four heads in prefill, one in decode
    assert float(prefill.kv_gb_per_seq) * 1e9 == pytest.approx(1500 * 81_920, rel=1e-12)
    assert float(decode.kv_gb_per_seq) * 1e9 == pytest.approx(2000 * 20_480, rel=1e-12)
    assert float(prefill.sent_gb_per_seq) == float(prefill.kv_gb_per_seq)
    assert float(prefill.handover_gb_per_seq) == float(prefill.kv_gb_per_seq)
    assert float(decode.sent_gb_per_seq) == float(decode.handover_gb_per_seq) == 0
    assert float(prefill.executions_per_token) == 1 / 500
    assert float(decode.executions_per_token) == pytest.approx(499 / 500, rel=1e-12)
    assert (float(prefill.limit_ms), float(decode.limit_ms)) == (1000, 50)


def test_replicas_share_the_sequences_and_not_the_weights():
    """Eight replicas: a sequence of the group takes an eighth of its cache on a device."""
    eight = Parallelism(tp=2, dp=8)
    pools = build_pools(workload(prompt=1500.0, output=500.0), eight, eight)
    assert pools.kv_gb_per_seq.tolist() == pytest.approx(
        [1500 * 163_840 / 8e9, 2000 * 163_840 / 8e9], rel=1e-12
    )
    two = weight_bytes_per_device(LLAMA_70B, BF16, Parallelism(tp=2))
    assert pools.weights_gb.tolist() == pytest.approx([two / 1e9] * 2, rel=1e-12)


HAND_OVER = {
    # 2 * 80 * 8 * 128 numbers a token of Llama-3.1-70B: 327,680 B, over up to eight ranks
    "as many ranks": ("llama-3.1-70b", dict(tp=8), dict(tp=8), 40_960, 40_960),
    "fewer ranks": ("llama-3.1-70b", dict(tp=8), dict(tp=2), 40_960, 163_840),
    "more ranks": ("llama-3.1-70b", dict(tp=2), dict(tp=8), 163_840, 163_840),
    # a sequence goes to one replica in full: 0.4915 GB of 1500 tokens
    "to replicas": ("llama-3.1-70b", dict(tp=8), dict(dp=8), 40_960, 327_680),
    "replicas to ranks": ("llama-3.1-70b", dict(dp=8), dict(tp=8), 40_960, 40_960),
    "between replicas": ("llama-3.1-70b", dict(tp=2, dp=4), dict(tp=4, dp=2), 40_960, 81_920),
    # eight heads on sixteen ranks: two copies
    "copies": ("llama-3.1-70b", dict(tp=8), dict(tp=16), 81_920, 81_920),
    "no copies": ("llama-3.1-70b", dict(tp=8), dict(tp=16, kv_parallel=2), 40_960, 40_960),
    "stages": ("llama-3.1-70b", dict(tp=2, pp=4), dict(tp=2, pp=2), 40_960, 81_920),
    # 61 * 576 numbers of DeepSeek-V3, on every rank: one device sends eight copies, 0.843 GB
    "latents": ("deepseek-v3", dict(), dict(tp=8), 8 * 70_272, 8 * 70_272),
    "latents to as many": ("deepseek-v3", dict(tp=8), dict(tp=8), 70_272, 70_272),
    "latents to replicas": ("deepseek-v3", dict(tp=8), dict(dp=8), 8_784, 70_272),
    "split latents": ("deepseek-v3", dict(), dict(tp=8, kv_parallel=8), 70_272, 70_272),
}


@pytest.mark.parametrize(
    ("name", "prefill", "decode", "sent", "busiest"), HAND_OVER.values(), ids=HAND_OVER
)
def test_the_replica_that_decodes_gets_its_cache_with_all_copies(
    name, prefill, decode, sent, busiest
):
    """Bytes of a token: what a prefill device sends on average, and what passes the busiest device
    of both pools. All devices of the prefill group share the sending.
    """
    served = workload(read_transformer(name), 1500, 500)
    here, there = Parallelism(**prefill), Parallelism(**decode)
    pools = build_pools(served, here, there)
    assert pools.sent_gb_per_seq.tolist() == pytest.approx([1500 * sent / 1e9, 0], rel=1e-12)
    assert pools.handover_gb_per_seq.tolist() == pytest.approx([1500 * busiest / 1e9, 0], rel=1e-12)
    copied = 1500 * kv_bytes_per_token(served.transformer, BF16, there) * there.tp * there.pp
    assert here.devices * 1500 * sent == copied


def test_hand_overs_in_gigabytes():
    """1500 tokens, of the cases above."""
    assert 1500 * HAND_OVER["to replicas"][-1] == pytest.approx(0.4915e9, abs=5e4)
    assert 1500 * HAND_OVER["latents"][-2] == pytest.approx(0.843e9, abs=5e5)
    # eight devices send what one copy of the latents has
    assert 8 * 1500 * HAND_OVER["latents to replicas"][-2] == pytest.approx(0.105e9, abs=5e5)


def test_a_hand_over_delays_the_answer_and_costs_energy_where_it_is_sent():
    """Eight ranks of Llama-3.1-70B to one replica of eight: 16 sequences of 0.49152 GB through one
    link of 0.734 * 450 GB/s, an eighth of that from each of the eight, and 19.1 ms in the
    server; latency alone differs.
    """
    h100 = load_accelerator("h100-sxm")
    served = workload(LLAMA_70B, 1500, 500)
    near, far = (
        evaluate(
            h100.design(),
            Deployment(Parallelism(tp=8), Parallelism(**decode), 16, 16, 1.83, 1.83),
            h100.technology(),
            served,
        ).services
        for decode in (dict(tp=8), dict(dp=8))
    )
    for services, gb in ((near, 0.06144), (far, 0.49152)):
        waited = float(services.latency_ms[0] - services.time_ms[0])
        assert waited == pytest.approx(16 * gb / (0.734 * 450) * 1e3 + 19.1, rel=1e-9)
    for name in ("time_ms", "device_j", "cluster_j"):
        same = getattr(far, name)[0], getattr(near, name)[0]
        assert float(same[0]) == pytest.approx(float(same[1]), rel=1e-12)


def test_decode_alone_leaves_a_prefill_pool_that_never_binds():
    prefill, decode = pools_of(workload(pools="decode", ttft_ms=1.0), 1, 8)
    assert float(prefill.executions_per_token) == 0
    assert float(decode.executions_per_token) == 1
    assert float(prefill.limit_ms) == NO_LIMIT_MS
    assert float(prefill.sent_gb_per_seq) == float(prefill.handover_gb_per_seq) == 0
    assert max(float(prefill.weights_gb), float(prefill.kv_gb_per_seq)) < 1e-20


def test_one_output_token_needs_no_decode():
    prefill, decode = pools_of(workload(output=1.0), 1, 1)
    assert float(prefill.executions_per_token) == 1
    assert float(decode.executions_per_token) == 0


def test_memory_traffic_of_a_phase_is_weights_once_and_the_rest_per_sequence():
    counts = decode_counts(workload(), ALONE)
    one, three = (np.asarray(moved_gb(counts, scalar(batch))) for batch in (1, 3))
    per_sequence = np.asarray(counts.traffic_gb_per_seq)
    assert one == pytest.approx(np.asarray(counts.weight_gb) + per_sequence, rel=1e-12)
    assert three - one == pytest.approx(2 * per_sequence, rel=1e-9, abs=1e-15)
