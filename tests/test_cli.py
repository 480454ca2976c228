"""The command line: exit codes, one-line errors, clean streams, and the promised JSON keys."""

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import panel_fixture
import pytest

from litegpu_opt.cli import main
from litegpu_opt.cli.optimize import _check_folder
from litegpu_opt.cli.options import CacheFormat, Collective, WeightFormat
from litegpu_opt.report.findings import infeasible_texts, shortfall_text
from litegpu_opt.units import parse_quantity
from litegpu_opt.workload.collectives import ALGORITHMS
from litegpu_opt.workload.precision import allowed_formats


_WORDS = "evaluate --model llama-3.1-70b --accelerator h100-sxm --tp 8 --batch 1 --prompt 1500"
EVALUATE = [*_WORDS.split(), "--output", "500"]

METRICS = {
    "ttft_s",
    "tbt_s",
    "tokens_per_s",
    "tokens_per_s_per_sm",
    "tokens_per_dollar",
    "usd_per_million_tokens",
    "joules_per_token",
    "power_w",
    "power_prefill_w",
    "power_decode_w",
    "unit_price_usd",
    "usd_per_device_hour",
    "device_hour",
    "die_area_mm2",
    "unit_cost_usd",
    "memory_required_gb",
    "feasible",
    "violations",
}

ESCAPE = re.compile(r"\x1b")


@pytest.fixture(scope="session")
def finished(tmp_path_factory, pytestconfig):
    """A search of a small study through `python -m litegpu_opt optimize --json --out`."""
    return panel_fixture.search(tmp_path_factory, pytestconfig)


@pytest.fixture
def call(capsys, monkeypatch):
    """Run a command in this process: exit code, stdout, stderr."""
    monkeypatch.setenv("LITEGPU_CACHE", "off")
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main(words)
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run


def evaluation(model, *words, batch="64"):
    """Words of a run of a built-in model on an H100 server."""
    given = f"evaluate --model {model} --accelerator h100-sxm --batch {batch} --prompt 1500"
    return [*given.split(), "--output", "500", *words]


def replaced(option, value):
    words = list(EVALUATE)
    words[words.index(option) + 1] = value
    return words


def strict_json(text):
    def refuse(name):
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


# help and imports


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["evaluate", "--help"],
        ["optimize", "--help"],
        ["explain", "--help"],
        ["catalog", "--help"],
        ["catalog", "models", "--help"],
        ["schema", "--help"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_help_imports_nothing_heavy(words):
    code = (
        "import sys\nfrom litegpu_opt.cli import main\ntry:\n    main(sys.argv[1:])\n"
        "except SystemExit as ended:\n    assert not ended.code\n"
        "heavy = {'jax', 'equinox', 'pydantic', 'pint', 'numpy', 'rich.table'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "heavy: []" in done.stdout


def test_help_states_every_option_of_the_contract(call):
    _, out, _ = call("evaluate", "--help")
    named = (
        "model accelerator tp batch prompt output weights kv execution breakdown json "
        "dp pp ep kv-parallel microbatches collective latent"
    )
    for option in named.split():
        assert re.search(rf"--{option}\b", out)


@pytest.mark.parametrize(
    "words",
    ["", "evaluate", "optimize", "schema", "catalog", "catalog models", "catalog accelerators",
     "catalog technologies", "validate", "validate machine"],
)  # fmt: skip
def test_every_help_names_debug(call, words):
    code, out, _ = call(*words.split(), "--help")
    assert code == 0 and "--debug" in out


# evaluate


@pytest.fixture(scope="module")
def ideal():
    words = [*EVALUATE, "--weights", "bf16", "--kv", "bf16", "--execution", "ideal", "--json"]
    return panel_fixture.run(*words)


def test_ideal_times_of_llama_on_eight_h100(ideal):
    """Compute alone is 26.3 ms of TTFT, weights alone 5.18 ms of TBT."""
    assert (ideal.returncode, ideal.stderr) == (0, "")
    content = strict_json(ideal.stdout)
    assert 26.3e-3 <= content["ttft_s"] < 50e-3
    assert 5.18e-3 <= content["tbt_s"] < 7e-3
    assert content["feasible"] is True and content["violations"] == []


def test_evaluate_json_has_the_promised_keys_and_origins(ideal):
    """Every input with its origin; no limit that nobody asked for."""
    content = strict_json(ideal.stdout)
    assert content.keys() >= METRICS
    origins = {name: row["origin"] for name, row in content["inputs"].items()}
    assert origins["weights"] == "flag" and origins["activations"] == "default"
    assert content["inputs"]["ttft"]["value"] is None
    assert content["tokens_per_dollar"] * content["usd_per_million_tokens"] == pytest.approx(1e6)
    memory = content["memory"]["decode"]
    assert memory["weights_gb"] + memory["kv_gb"] == pytest.approx(memory["total_gb"])
    # 70.55 B parameters in bf16 over eight devices, and 2000 tokens of 327,680/8 bytes
    assert memory["weights_gb"] == pytest.approx(17.64, abs=0.01)
    assert memory["kv_gb"] == pytest.approx(2000 * 40960 / 1e9)
    assert content["memory_required_gb"] == memory["total_gb"]


def test_calibrated_is_slower_than_ideal(call, ideal):
    code, out, err = call(*EVALUATE, "--json")
    assert (code, err) == (0, "")
    calibrated, best = strict_json(out), strict_json(ideal.stdout)
    assert calibrated["inputs"]["execution"] == {
        "value": "calibrated",
        "unit": "",
        "origin": "default",
    }
    assert calibrated["ttft_s"] > best["ttft_s"] and calibrated["tbt_s"] > best["tbt_s"]


def test_too_little_memory_is_reported_with_its_shortfall(call):
    """141.11 GB of weights on one device of 80 GB, of which 90 % can be used."""
    words = replaced("--tp", "1")
    code, out, err = call(*words, "--json")
    assert (code, err) == (0, "")
    content = strict_json(out)
    assert content["feasible"] is False
    worst = {row["name"]: row for row in content["violations"]}["memory_decode"]
    assert worst["use"] >= 141.11 and worst["limit"] == pytest.approx(72)
    assert worst["shortfall"] == pytest.approx(worst["use"] - 72)
    assert worst["unit"] == "GB"
    code, out, _ = call(*words)
    assert code == 0
    assert re.search(r"Not feasible: memory_prefill needs 141\.6 GB, has 72 GB, short by", out)


def test_a_largest_batch_fits_and_one_more_does_not(call):
    """165 sequences of 8000 tokens fit eight devices, 166 do not."""
    words = (
        "evaluate --model llama-3.1-70b --accelerator h100-sxm --tp 8 --prompt 7900 --output 100"
    )
    for batch, feasible in ((165, True), (166, False)):
        _, out, _ = call(*words.split(), "--batch", str(batch), "--batch-prefill", "1", "--json")
        assert strict_json(out)["feasible"] is feasible


def test_a_latency_limit_is_checked(call):
    words = [*EVALUATE, "--json", "--ttft", "1 s", "--tbt"]
    _, out, _ = call(*words, "1 ms")
    assert [row["name"] for row in strict_json(out)["violations"]] == ["tbt"]
    _, out, _ = call(*words, "0.05 s")
    content = strict_json(out)
    assert content["feasible"] and content["inputs"]["tbt"]["value"] == 50.0


def test_one_output_token_has_no_time_between_tokens(call):
    code, out, _ = call(*replaced("--output", "1"), "--json")
    content = strict_json(out)
    assert code == 0
    assert content["tbt_s"] is content["tokens_per_s"] is content["tokens_per_s_per_sm"] is None
    assert content["ttft_s"] > 0 and content["usd_per_million_tokens"] > 0


def test_breakdown_adds_up_and_names_the_binding_resource(call):
    _, out, _ = call(*EVALUATE, "--execution", "ideal", "--breakdown", "--json")
    content = strict_json(out)
    decode = content["breakdown"]["decode"]
    assert sum(row["total_ms"] for row in decode) == pytest.approx(1e3 * content["tbt_s"])
    rows = {row["operator"]: row for row in decode}
    assert rows["up"]["repeats"] == 80 and rows["up"]["binds"] == "memory"
    assert rows["up"]["once_ms"] * 80 == pytest.approx(rows["up"]["total_ms"])
    prefill = {row["operator"]: row for row in content["breakdown"]["prefill"]}
    assert prefill["up"]["binds"] == "compute"


def test_breakdown_counts_by_hand(call):
    words = [*replaced("--batch", "4"), "--breakdown", "--json"]
    _, out, _ = call(*words)
    phases = strict_json(out)["breakdown"]
    decode, prefill = (
        {row["operator"]: row for row in phases[phase]} for phase in ("decode", "prefill")
    )
    # llama-3.1-70b in bf16 on eight devices: 8192 hidden, 28672 wide and gated, 4 sequences
    size = 8192 * 2 * 28672 / 8
    moved = 8192 + 28672 / 8
    assert decode["up"]["gflop"] == pytest.approx(4 * 2 * size / 1e9)
    assert decode["up"]["memory_mb"] == pytest.approx(2 * (size + 4 * moved) / 1e6)
    assert decode["up"]["wire_mb"] == 0.0
    # a ring passes 7/8 of the hidden states twice
    assert decode["down"]["wire_mb"] == pytest.approx(4 * 2 * 7 / 8 * 8192 * 2 / 1e6)
    assert prefill["up"]["gflop"] == pytest.approx(1500 * 2 * size / 1e9)
    assert prefill["up"]["memory_mb"] == pytest.approx(2 * (size + 1500 * moved) / 1e6)
    # 8 query heads and one key/value head of 128 on each device
    assert prefill["attention"]["gflop"] == pytest.approx(1500 * 1501 / 2 * 4 * 8 * 128 / 1e9)
    assert decode["attention"]["gflop"] == pytest.approx(4 * 1750 * 4 * 8 * 128 / 1e9)
    cache = 1750 * 2 * 128 + 2 * 8 * 128
    assert decode["attention"]["memory_mb"] == pytest.approx(4 * 2 * cache / 1e6)


# evaluate: models of all kinds, all ways of parallelism


def breakdown_rows(content, phase):
    """By name; operators that occur in several forms are lists."""
    rows = {}
    for row in content["breakdown"][phase]:
        rows.setdefault(row["operator"], []).append(row)
    return rows


def test_evaluate_mixtral(call):
    code, out, err = call(*evaluation("mixtral-8x7b", "--tp", "8", "--breakdown", "--json"))
    assert (code, err) == (0, "")
    content = strict_json(out)
    assert content["feasible"] and content.keys() >= METRICS
    memory = content["memory"]["decode"]
    # 46.7 B parameters in bf16; norms and routers are on every device
    copies = 65 * 4096 + 32 * 8 * 4096
    assert memory["weights_gb"] == pytest.approx(
        2e-9 * ((46_702_792_704 - copies) / 8 + copies), rel=1e-12
    )
    assert memory["kv_gb"] == pytest.approx(64 * 2000 * 131_072 / 8 / 1e9)
    rows = breakdown_rows(content, "decode")
    for name in ("router", "expert_up", "expert_down", "combine"):
        assert rows[name][0]["repeats"] == 32
    # 64 tokens leave out an expert with (3/4)^64: all eight are read
    [up] = rows["expert_up"]
    size = 4096 * 2 * 14336 / 8
    assert up["gflop"] == pytest.approx(64 * 2 * 2 * size / 1e9)
    touched = 8 * (1 - 0.75**64)
    assert up["memory_mb"] == pytest.approx(
        2 * (touched * size + 64 * 2 * (4096 + 14336 / 8)) / 1e6
    )
    _, out, _ = call(*evaluation("mixtral-8x7b", "--tp", "8", "--breakdown", "--json", batch="1"))
    [alone] = breakdown_rows(strict_json(out), "decode")["expert_up"]
    assert alone["memory_mb"] == pytest.approx(2 * (2 * size + 2 * (4096 + 14336 / 8)) / 1e6)


DEEPSEEK_EXPERTS = 58 * 256 * 3 * 7168 * 2048
"""Parameters of the matrices of the routed experts."""
FP8_BLOCK = 1 + 4 / 128**2
"""Bytes of a number with its share of a scale for a tile of 128 x 128."""


@pytest.mark.parametrize(
    "words",
    [
        "--tp 8",
        "--tp 8 --ep 8",
        "--tp 8 --kv-parallel 8 --latent absorbed",
        "--tp 8 --latent expanded",
        "--tp 1 --dp 8 --ep 8 --collective one-shot",
        "--tp 4 --dp 2 --ep 4",
        "--tp 2 --dp 2 --pp 2 --microbatches 2",
    ],
)
def test_evaluate_deepseek(call, words):
    code, out, err = call(*evaluation("deepseek-v3", *words.split(), "--json"))
    assert (code, err) == (0, "")
    content = strict_json(out)
    # 671 GB of weights and eight devices of 80 GB
    assert not content["feasible"]
    assert {row["name"] for row in content["violations"]} == {"memory_prefill", "memory_decode"}
    assert content["deployment"]["devices_decode"] == 8
    # keys and values that are made again in every step take longer than a prompt, without the
    # 19.1 ms of the server
    prompt_s = content["ttft_s"] - 0.0191
    assert (prompt_s > content["tbt_s"] > 1e-3) == ("expanded" not in words)
    # one latent of 512 and a rotary key of 64 in bf16 a token, for its layers and replica
    share = {"--dp 8": 1 / 8, "--dp 2 --ep": 1 / 2, "--pp 2": 31 / 61 / 2, "--kv-p": 1 / 8}
    [part] = [value for key, value in share.items() if key in words] or [1.0]
    cache_gb = 64 * 2000 * 61 * 576 * 2 / 1e9
    assert content["memory"]["decode"]["kv_gb"] == pytest.approx(part * cache_gb)


def test_weights_of_deepseek_with_data_and_expert_parallelism_by_hand(call):
    words = evaluation("deepseek-v3", *"--tp 1 --dp 8 --ep 8 --breakdown --json".split())
    _, out, _ = call(*words)
    content = strict_json(out)
    # attention: down projections, queries, keys and values, output
    attention = 7168 * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    blocks = 61 * attention + 3 * 3 * 7168 * 18432 + 58 * 3 * 7168 * 2048
    others = 671_026_419_200 - DEEPSEEK_EXPERTS - blocks
    expected = FP8_BLOCK * (DEEPSEEK_EXPERTS / 8 + blocks) + 2 * others
    assert content["memory"]["decode"]["weights_gb"] == pytest.approx(expected / 1e9, rel=1e-12)
    rows = breakdown_rows(content, "decode")
    # 64 tokens to 8 of 256 experts, of which a device holds 32
    [up] = rows["expert_up"]
    size = 7168 * 2 * 2048
    touched = 32 * (1 - (1 - 8 / 256) ** 64)
    assert up["gflop"] == pytest.approx(64 * 8 / 8 * 2 * size / 1e9)
    assert up["memory_mb"] == pytest.approx(
        (touched * size * FP8_BLOCK + 64 * 2 * (7168 + 2048)) / 1e6
    )
    # a device sends each of its 8 tokens to the other 7 devices where any of its 8 experts is
    [router] = rows["router"]
    elsewhere = math.comb(256 - 32, 8) / math.comb(256, 8)
    assert router["wire_mb"] == pytest.approx(8 * 7 * (1 - elsewhere) * 7168 * 2 / 1e6)
    assert rows["combine"][0]["wire_mb"] == 0.0


def test_latents_are_absorbed_in_decode_and_expanded_in_prefill(call):
    attention = {}
    for latent in ("auto", "absorbed", "expanded"):
        words = evaluation("deepseek-v3", "--tp", "8", "--latent", latent, "--breakdown", "--json")
        _, out, _ = call(*words)
        content = strict_json(out)
        assert content["inputs"]["latent"] == {"value": latent, "unit": "", "origin": "flag"}
        for phase in ("prefill", "decode"):
            [row] = breakdown_rows(content, phase)["attention"]
            attention[latent, phase] = row["gflop"]
    pairs = {"prefill": 1500 * 1501 / 2, "decode": 64 * 1750}
    for phase, count in pairs.items():
        absorbed, expanded = (count * 2 * 16 * dims / 1e9 for dims in (512 + 64 + 512, 192 + 128))
        assert attention["absorbed", phase] == pytest.approx(absorbed)
        assert attention["expanded", phase] == pytest.approx(expanded)
    assert attention["auto", "prefill"] == attention["expanded", "prefill"]
    assert attention["auto", "decode"] == attention["absorbed", "decode"]


def test_evaluate_gpt_oss(call):
    code, out, err = call(*evaluation("gpt-oss-120b", "--tp", "8", "--breakdown", "--json"))
    assert (code, err) == (0, "")
    content = strict_json(out)
    assert content["feasible"]
    # experts in MXFP4, 4.25 bits: 36 layers of 128 experts of three matrices of 2880 x 2880
    experts = 36 * 128 * 3 * 2880**2
    memory = content["memory"]["decode"]
    assert experts * 4.25 / 8 / 8e9 < memory["weights_gb"] < 1.05 * 66e9 / 8e9
    # half of the layers keep 128 tokens, of one key/value head of 64 on each device, in bf16
    numbers = 18 * (2000 + 128) * 2 * 64
    assert memory["kv_gb"] == pytest.approx(64 * numbers * 2 / 1e9)


def test_evaluate_gemma(call):
    words = evaluation("gemma-3-27b", "--tp", "8", "--breakdown", "--json")
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    content = strict_json(out)
    assert content["feasible"] and content["assumed"]
    # 52 of 62 layers keep 1024 tokens; two key/value heads of 128 on each device, in bf16
    numbers = (52 * 1024 + 10 * 2000) * 2 * 2 * 128
    assert content["memory"]["decode"]["kv_gb"] == pytest.approx(64 * numbers * 2 / 1e9)
    rows = breakdown_rows(content, "prefill")
    pair = 4 * 4 * 128 / 1e9
    [[local], [all_tokens]] = rows["window_attention"], rows["attention"]
    assert (local["repeats"], all_tokens["repeats"]) == (52, 10)
    assert local["gflop"] == pytest.approx(pair * (1024 * 1025 / 2 + 476 * 1024))
    assert all_tokens["gflop"] == pytest.approx(pair * 1500 * 1501 / 2)


def test_ways_of_parallelism_are_echoed_with_their_origin(call):
    words = "--tp 2 --dp 2 --pp 2 --microbatches 3 --collective two-shot --json"
    _, out, _ = call(*evaluation("llama-3.1-8b", *words.split(), batch="66"))
    content = strict_json(out)
    inputs = content["inputs"]
    for name, value in (("dp", 2), ("pp", 2), ("microbatches", 3), ("collective", "two-shot")):
        assert (inputs[name]["value"], inputs[name]["origin"]) == (value, "flag")
    for name, value in (("ep", 1), ("kv_parallel", 1), ("latent", "auto"),
                        ("weights", "checkpoint"), ("kv", "checkpoint")):  # fmt: skip
        assert (inputs[name]["value"], inputs[name]["origin"]) == (value, "default")
    deployment = content["deployment"]
    assert deployment["tp_decode"] == 2 and deployment["devices_decode"] == 8
    for phase in ("prefill", "decode"):
        assert deployment["parallelism"][phase] == {
            "tp": 2, "dp": 2, "pp": 2, "ep": 1, "kv_parallel": 1, "microbatches": 3,
            "collective": "two-shot", "absorb_latent": None,
        }  # fmt: skip


def test_weights_as_in_the_checkpoint_or_as_given(call):
    sizes = {}
    for weights in ("checkpoint", "bf16", "fp8", "mxfp4"):
        words = evaluation("llama-3.1-70b", "--tp", "8", "--weights", weights, "--json")
        _, out, _ = call(*words)
        sizes[weights] = strict_json(out)["memory"]["decode"]["weights_gb"]
    assert sizes["checkpoint"] == sizes["bf16"] > sizes["fp8"] > sizes["mxfp4"]
    # of 70.55 B parameters all but both vocabulary matrices and the norms are in blocks
    apart = 2 * 128_256 * 8192 / 8 + 161 * 8192
    blocks = (70_553_706_496 - 2 * 128_256 * 8192 - 161 * 8192) / 8
    assert sizes["mxfp4"] == pytest.approx((2 * apart + 4.25 / 8 * blocks) / 1e9, rel=1e-9)


@pytest.mark.parametrize(
    ("model", "words", "message"),
    [
        ("mixtral-8x7b", "--tp 3", "--tp: tensor-parallel degree 3 does not divide"),
        ("mixtral-8x7b", "--tp 8 --ep 7", "--ep: expert-parallel degree 7 does not divide"),
        ("mixtral-8x7b", "--tp 8 --ep 3", "allowed: 1, 2, 4, 8"),
        ("deepseek-v3", "--tp 1 --dp 7 --ep 7", "--ep: expert-parallel degree 7 does not divide"),
        ("llama-3.1-70b", "--tp 8 --ep 2", "--ep: expert-parallel degree 2 is for experts"),
        ("llama-3.1-70b", "--tp 1 --pp 1000", "--pp: number of pipeline stages 1000 is more than"),
        ("llama-3.1-70b", "--tp 8 --kv-parallel 3", "--kv-parallel: KV-parallel degree 3"),
        ("deepseek-v3", "--tp 8 --kv-parallel 3", "--kv-parallel: KV-parallel degree 3"),
        (
            "deepseek-v3",
            "--tp 8 --kv-parallel 8 --latent expanded",
            "--kv-parallel: KV-parallel degree 8 needs latents that are not expanded",
        ),
        ("llama-3.1-70b", "--tp 2 --dp 2 --microbatches 3", "--batch: 64 sequences cannot be"),
        ("llama-3.1-70b", "--tp 8 --latent absorbed", "--latent: llama-3.1-70b has no latent"),
        ("llama-3.1-70b", "--tp 8 --dp 2", "--tp --dp --pp: 16 devices are more than one"),
        ("llama-3.1-70b", "--tp 8 --collective rign", 'Did you mean "ring"?'),
        ("deepseek-v3", "--tp 8 --latent absorbd", 'Did you mean "absorbed"?'),
    ],
)
def test_a_wrong_way_of_parallelism_is_one_line(call, model, words, message):
    code, out, err = call(*evaluation(model, *words.split()))
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n")
    assert message in err


def test_provenance_of_an_evaluation(call, ideal):
    """Trust of design and technology, factors, error of the machine model; the rule of
    the reserve.
    """
    found = strict_json(ideal.stdout)["provenance"]
    assert found["trust"]["design"]["values"] == {"A": 7, "D": 1}
    assert found["trust"]["design"]["weakest"] == ["aspect_ratio"]
    assert found["execution"]["compute_efficiency_bf16"]["value"] == 1.0
    checked = panel_fixture.run("validate", "machine", "--json")
    (h100,) = [row for row in strict_json(checked.stdout)["chips"] if row["name"] == "h100-sxm"]
    errors = found["machine_errors"]["h100-sxm"]
    assert set(errors) == {"die_area_mm2", "tdp_w", "bill_of_materials_usd"}
    for key, error in errors.items():
        assert error == pytest.approx(h100["figures"][key]["error"], rel=1e-9)
    _, out, _ = call(*EVALUATE)
    text = " ".join(out.split())
    assert "trust C: compute_efficiency_bf16 0.765, compute_efficiency_fp8 0.739" in text
    assert f"h100-sxm: die area {100 * errors['die_area_mm2']:+.1f} %" in text
    assert "all chips: litegpu validate machine" in text
    assert "usable is a share of all of it, for weights and cache together" in text


def test_price_basis_costs_more(call, ideal):
    _, out, _ = call(*EVALUATE, "--execution", "ideal", "--basis", "price", "--json")
    assert (
        strict_json(out)["usd_per_million_tokens"]
        > strict_json(ideal.stdout)["usd_per_million_tokens"]
    )

    content = strict_json(out)
    assert content["unit_price_usd"] == pytest.approx(content["unit_cost_usd"] / (1 - 0.75))
    cost = strict_json(ideal.stdout)
    assert cost["unit_price_usd"] == pytest.approx(cost["unit_cost_usd"])
    assert content["usd_per_device_hour"] > cost["usd_per_device_hour"] > 0.1


def test_a_device_hour_is_broken_down_on_both_bases(call):
    hours = strict_json(call(*EVALUATE, "--json")[1])["device_hour_by_basis"]
    for basis in ("cost", "price"):
        content = strict_json(call(*EVALUATE, "--basis", basis, "--json")[1])
        assert content["device_hour"] == pytest.approx(hours[basis])
        owned = content["device_hour"]["total_usd"] - content["device_hour"]["electricity_usd"]
        assert content["usd_per_device_hour"] == pytest.approx(owned)
    # a margin of 75 % makes the accelerator four times as dear, and nothing else but what goes by
    # the capital; electricity is the same
    cost, price = hours["cost"], hours["price"]
    assert price["accelerator_usd"] == pytest.approx(4 * cost["accelerator_usd"])
    for line in ("host_usd", "network_usd", "facility_usd", "electricity_usd"):
        assert price[line] == cost[line]
    screen = call(*EVALUATE)[1]
    assert "USD per hour of an owned device" in screen and "spares" in screen


def test_an_impossible_chip_is_not_feasible(call, tmp_path):
    path = tmp_path / "shrunk.toml"
    path.write_text(panel_fixture.SHRUNK)
    words = replaced("--accelerator", str(path))
    _, out, _ = call(*words, "--json")
    content = strict_json(out)
    assert content["feasible"] is False
    worst = {row["name"]: row for row in content["violations"]}["block_area"]
    assert worst["limit"] == 203.5 and worst["use"] > 700
    _, out, _ = call(*words)
    assert re.search(r"Cannot be built as described: block_area needs 8\d\d", " ".join(out.split()))
    _, out, _ = call("catalog", "accelerators", str(path))
    assert re.search(r"need 8[\d.]+ mm2 of 203\.5: it cannot be built", " ".join(out.split()))


def test_prefill_batch_has_a_default_of_its_own(call):
    _, out, _ = call(*replaced("--batch", "8"), "--json")
    content = strict_json(out)
    assert content["inputs"]["batch_prefill"] == {"value": 1, "unit": "", "origin": "default"}
    assert content["deployment"]["batch_prefill"] == 1


def test_the_tdp_caps_the_power_of_each_phase_unless_execution_is_ideal(call):
    words = "evaluate --model llama-3.1-8b --accelerator h100-pcie --tp 1 --batch 8".split()
    words += ["--batch-prefill", "8", "--prompt", "4000", "--output", "500", "--json"]
    for execution, capped in (("calibrated", True), ("ideal", False)):
        content = strict_json(call(*words, "--execution", execution)[1])
        low, high = sorted(content[f"power_{phase}_w"] for phase in ("prefill", "decode"))
        assert 0 < low <= content["power_w"] <= high
        assert (high <= content["tdp_w"] * (1 + 1e-12)) == capped
    _, out, _ = call(*replaced("--output", "1"), "--json")
    assert strict_json(out)["power_decode_w"] is None


def test_latencies_are_not_counted_in_ideal_execution(call):
    _, out, _ = call(*EVALUATE, "--execution", "ideal", "--breakdown")
    assert "not counted" in out
    _, out, _ = call(*EVALUATE, "--breakdown")
    assert "not counted" not in out


@pytest.mark.parametrize("width", ["60", "120", "200"])
def test_screen_is_plain_and_fits_the_width(call, monkeypatch, width):
    """ASCII without colour in a pipe, at any width."""
    monkeypatch.setenv("COLUMNS", width)
    code, out, _ = call(*EVALUATE, "--breakdown")
    assert code == 0
    assert out.isascii() and not ESCAPE.search(out)
    assert max(map(len, out.splitlines())) <= int(width)
    for column in ("compute", "collective", "binds"):
        assert column in out


def test_piped_screen_has_no_escapes_and_fits_sixty_columns():
    """What `| cat -v` shows at COLUMNS=60, NO_COLOR or not."""
    done = subprocess.run(
        f"{shlex.join([sys.executable, '-m', 'litegpu_opt', *EVALUATE, '--breakdown'])} | cat -v",
        shell=True,
        capture_output=True,
        text=True,
        env=os.environ | {"LITEGPU_CACHE": "off", "COLUMNS": "60"},
    )
    assert done.stderr == ""
    # `cat -v` writes control characters as ^X and what is not ASCII as M-X
    assert not re.search(r"\^[@-_?]|M-", done.stdout)
    assert max(map(len, done.stdout.splitlines())) <= 60
    assert "time to first token" in done.stdout


def test_a_terminal_has_styles_but_with_no_color():
    """With and without NO_COLOR, the same text."""

    def shown(**more):
        mine, its = os.openpty()
        words = [sys.executable, "-m", "litegpu_opt", "catalog", "models", "llama-3.2-1b"]
        env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        env |= {"LITEGPU_CACHE": "off", "TERM": "xterm-256color", "COLUMNS": "100"} | more
        with subprocess.Popen(words, stdout=its, env=env) as running:
            os.close(its)
            text = b""
            try:
                while part := os.read(mine, 65536):
                    text += part
            except OSError:  # Linux says that nobody writes any more
                pass
            assert running.wait() == 0
        os.close(mine)
        return text.decode()

    styled, plain = shown(), shown(NO_COLOR="1")
    assert ESCAPE.search(styled) and not ESCAPE.search(plain)
    assert re.sub(r"\x1b\[[0-9;]*m", "", styled) == plain


# user errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (replaced("--model", "lama-3.1-70b"), "did you mean llama-3.1-70b?"),
        (replaced("--accelerator", "h100sxm"), "did you mean h100-sxm?"),
        (replaced("--tp", "3"), "--tp: tensor-parallel degree 3 does not divide"),
        (replaced("--tp", "16"), "--tp: 16 devices are more than one scale-up domain"),
        (replaced("--tp", "many"), "--tp"),
        (replaced("--batch", "0"), "--batch"),
        (replaced("--prompt", "nan"), "--prompt"),
        (replaced("--prompt", "inf"), "--prompt: 'inf' is not accepted"),
        ([*EVALUATE, "--tbt", "50"], "--tbt: '50' has no unit"),
        ([*EVALUATE, "--tbt", "5 GB"], "--tbt"),
        ([*EVALUATE, "--weights", "fp7"], "Did you mean"),
        ([*EVALUATE, "--brekdown"], "Did you mean --breakdown?"),
        (EVALUATE[:-2], "--output: missing; allowed: what `litegpu evaluate --help` says"),
        ([*EVALUATE, "--ttft"], "--ttft: missing"),
        (replaced("--model", "no-such"), "--model: unknown model 'no-such'"),
        (["evalute"], 'Did you mean "evaluate"?'),
        (["optimize", "nowhere.toml"], "nowhere.toml: no such file"),
        (["schema", "studdy"], 'Did you mean "study"?'),
        (["optimize", "--starts", "0"], "--starts"),
        (["catalog", "technologies", "memry"], "did you mean memory?"),
        (["catalog", "technologies", "memory.hbm-3e"], "did you mean hbm3e?"),
        (["catalog", "models", "no-such"], "allowed: bloom-176b"),
    ],
)
def test_user_errors_are_one_line_and_exit_with_two(call, words, message):
    """The nearest name, and one line for what a user can mend."""
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n")
    assert message in err


@pytest.mark.parametrize("place", [0, len(EVALUATE)])
def test_debug_adds_the_traceback_of_an_error(call, place):
    """With --debug alone; exit code and last line are the same."""
    words = replaced("--tp", "3")
    code, out, line = call(*words)
    assert (code, out, line.count("\n")) == (2, "", 1)
    words.insert(place, "--debug")
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.startswith("Traceback") and "check_parallelism" in err and err.endswith(line)
    code, out, err = call(*EVALUATE, "--json", "--debug")
    assert (code, err) == (0, "") and strict_json(out)["feasible"]


def test_schema_is_json(call):
    for words in ([], ["study"], ["accelerator"]):
        code, out, err = call("schema", *words)
        assert (code, err) == (0, "")
        assert strict_json(out)["$schema"].startswith("https://json-schema.org/")


@pytest.mark.parametrize("text", ["1.5", "0x10", "1_000", "1e3", "٣", " 1", "", "9" * 400, "-1"])
@pytest.mark.parametrize(
    "option",
    "--tp --dp --pp --ep --kv-parallel --microbatches --batch --batch-prefill --starts "
    "--seed".split(),
)
def test_whole_numbers_are_not_rounded(call, option, text):
    if option in EVALUATE:
        words = replaced(option, "1")
        words[words.index(option) : words.index(option) + 2] = [f"{option}={text}"]
    else:
        first = ["optimize"] if option in ("--starts", "--seed") else EVALUATE
        words = [*first, f"{option}={text}"]
    code, out, err = call(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {option}: ") and "allowed: a whole number, " in err


def test_largest_batch(call):
    code, out, _ = call(*replaced("--batch", "+1000000000"), "--json")
    assert code == 0 and strict_json(out)["inputs"]["batch"]["value"] == 10**9
    code, _, err = call(*replaced("--batch", "1000000001"))
    assert code == 2 and "a whole number, 1 to 1000000000" in err


@pytest.mark.parametrize(
    "option",
    "weights kv activations wire execution basis batch-prefill seed starts collective latent "
    "dp".split(),
)
def test_none_is_not_a_word_for_the_default(call, option):
    first = ["optimize"] if option in ("starts", "seed") else EVALUATE
    for word in ("none", "NULL"):
        code, out, err = call(*first, f"--{option}", word)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"--{option}: '{word}' is not accepted; allowed: " in err


def test_none_is_no_latency_limit(call):
    code, out, _ = call(*EVALUATE, "--ttft", "none", "--tbt", "none", "--json")
    assert code == 0 and strict_json(out)["inputs"]["tbt"]["value"] is None


def test_misspelt_key_in_a_study(call, tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(panel_fixture.STUDY.replace("aspect_ratios", "aspect_ratio"))
    code, out, err = call("optimize", str(study))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{study}:space.aspect_ratio" in err and "did you mean aspect_ratios?" in err


def test_a_bug_is_a_traceback_and_exits_with_one(monkeypatch):
    code = (
        "import litegpu_opt.workload.huggingface as h\n"
        "def fail(): raise ZeroDivisionError('bug')\n"
        "h.builtin_models = fail\n"
        "from litegpu_opt.cli import main\nmain(['catalog', 'models'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" in done.stderr and "bug" in done.stderr


def test_interrupt_ends_quietly(tmp_path):
    study = panel_fixture.write_study(tmp_path)
    running = subprocess.Popen(
        [sys.executable, "-m", "litegpu_opt", "optimize", str(study)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"LITEGPU_CACHE": "off"},
    )
    assert running.stderr is not None
    assert running.stderr.readline().startswith("compiling")
    time.sleep(2.0)  # in the middle of tracing or compiling
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=10)
    assert running.returncode == 130
    assert out == "" and "Traceback" not in err


def test_a_closed_pipe_ends_quietly():
    done = subprocess.run(
        f"{sys.executable} -m litegpu_opt catalog technologies process | true; "
        "echo ${PIPESTATUS[0]}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.stdout.strip() == "141"


@pytest.mark.parametrize("words", [EVALUATE, ["catalog", "models", "--json"], ["--help"]])
@pytest.mark.parametrize(
    ("redirection", "reason"),
    [(">&-", "stdout is closed"), ("> /dev/full", "No space left on device")],
)
def test_stdout_that_takes_nothing(words, redirection, reason):
    done = subprocess.run(
        f"{shlex.join([sys.executable, '-m', 'litegpu_opt', *words])} {redirection}",
        shell=True,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"LITEGPU_CACHE": "off"},
    )
    assert (done.returncode, done.stderr) == (2, f"error: cannot write: {reason}\n")


@pytest.mark.parametrize("columns", ["²", "٣٤", "-5", "0", "9" * 5000, "80 "])
def test_odd_columns_are_ignored(call, monkeypatch, columns):
    for words in (["catalog", "models"], ["--help"]):
        monkeypatch.delenv("COLUMNS", raising=False)
        plain = call(*words)
        monkeypatch.setenv("COLUMNS", columns)
        assert call(*words) == plain


def test_a_cache_folder_that_is_no_text_is_off(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "litegpu_opt", *EVALUATE],
        capture_output=True,
        env=os.environb | {b"LITEGPU_CACHE": bytes(tmp_path) + b"/\xff"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert list(tmp_path.iterdir()) == []


# catalogue


def test_catalog_models_has_exact_counts(call):
    code, out, _ = call("catalog", "models", "llama-3.1-70b", "--json")
    content = strict_json(out)
    assert code == 0
    assert content["parameters_total"] == content["parameters_active"] == 70_553_706_496
    assert content["weight_gb"] == pytest.approx(141.107412992)
    assert content["kv_bytes_per_token"] == 327_680
    assert "ai-dynamo" in content["source"]
    _, out, _ = call("catalog", "models", "llama-3.1-70b", "--kv", "fp8", "--json")
    assert strict_json(out)["kv_bytes_per_token"] == 163_840


MODEL_KEYS = {
    "name",
    "family",
    "hidden",
    "vocab",
    "layers",
    "heads",
    "layer_kinds",
    "tied_embeddings",
    "position_rows",
    "parameters_total",
    "parameters_active",
    "parameters_prediction",
    "weights",
    "weight_gb",
    "kv",
    "kv_bytes_per_token",
    "tensor_parallel",
    "assumed",
    "source",
}


@pytest.mark.parametrize(
    ("name", "total", "layers"),
    [
        ("llama-3.1-70b", 70_553_706_496, [80]),
        ("mixtral-8x7b", 46_702_792_704, [32]),
        ("deepseek-v3", 671_026_419_200, [3, 58]),
        ("gpt-oss-120b", 116_829_156_672, [18, 18]),
        ("gemma-3-27b", 27_009_346_304, [52, 10]),
    ],
)
def test_catalog_model_has_the_promised_keys(call, name, total, layers):
    code, out, err = call("catalog", "models", name, "--json")
    content = strict_json(out)
    assert (code, err) == (0, "")
    assert content.keys() >= MODEL_KEYS
    assert content["name"] == name and content["parameters_total"] == total
    assert [kind["layers"] for kind in content["layer_kinds"]] == layers
    for kind in content["layer_kinds"]:
        assert kind.keys() >= {"layers", "attention", "mlp", "shape"}
    assert content["layers"] == sum(layers)
    assert content["parameters_active"] <= total
    assert content["weights"].keys() == {
        "attention", "mlp", "experts", "router", "embedding", "head"}  # fmt: skip
    assert content["source"] != "not stated"
    code, out, _ = call("catalog", "models", name)
    assert code == 0 and f"{total:,}" in out


def test_catalog_of_deepseek(call):
    _, out, _ = call("catalog", "models", "deepseek-v3", "--json")
    content = strict_json(out)
    # DeepSeek-V3 (arXiv 2412.19437): 671 B, 37 B active; 14 B of the prediction module include
    # the embedding and the head that it shares
    assert content["parameters_active"] == 671_026_419_200 - DEEPSEEK_EXPERTS * (256 - 8) // 256
    assert content["parameters_prediction"] == pytest.approx(14e9 - 2 * 129_280 * 7168, rel=0.05)
    assert content["weights"]["experts"] == "fp8-block128" and content["weights"]["head"] == "bf16"
    assert content["kv_bytes_per_token"] == 61 * 576 * 2
    _, out, _ = call("catalog", "models", "deepseek-v3", "--weights", "bf16", "--json")
    assert strict_json(out)["weight_gb"] == pytest.approx(2 * 671.0264192)


def test_the_list_of_models_has_them_all(call):
    _, out, _ = call("catalog", "models", "--json")
    models = {row["name"]: row for row in strict_json(out)["models"]}
    assert {"llama-3.1-405b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"} <= models.keys()
    for row in models.values():
        assert row.keys() >= MODEL_KEYS - {"source"}
        assert 0 < row["parameters_active"] <= row["parameters_total"]


def test_catalog_models_reads_a_file(call, tmp_path):
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    code, out, _ = call("catalog", "models", str(path), "--json")
    content = strict_json(out)
    assert code == 0
    assert content["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 2
    assert content["source"] == str(path)


def test_catalog_accelerator_compares_with_data_sheet_and_teardown(call):
    code, out, _ = call("catalog", "accelerators", "h100-sxm", "--json")
    content = strict_json(out)
    assert code == 0
    sheet = {row["name"]: row for row in content["datasheet"]}
    assert sheet["bf16_dense_tflop_s"]["model"] == pytest.approx(989.4, rel=1e-3)
    assert sheet["tdp_w"]["error"] == pytest.approx(sheet["tdp_w"]["model"] / 700 - 1)
    assert sheet["die_area_mm2"]["model"] == pytest.approx(sum(content["blocks_mm2"].values()))
    assert content["peaks"]["tf32"]["value"] == pytest.approx(494.7, rel=1e-3)
    assert content["peaks"]["fp4"] is None
    bill = {row["name"]: row["model"] for row in content["bill_of_materials"]}
    assert bill.pop("total_usd") == pytest.approx(sum(bill.values()))


def test_a_chip_that_is_not_modelled(call):
    """What is published is shown; what the model would have to make up is refused."""
    code, out, _ = call("catalog", "accelerators", "cerebras-wse-3", "--json")
    content = strict_json(out)
    assert code == 0 and "SRAM" in content["not_modelled"]
    assert content["datasheet"]["die_area_mm2"]["value"] == 46_225
    assert "tdp_w" not in content["datasheet"]
    asked = "--model llama-3.1-70b --tp 1 --batch 1 --prompt 100 --output 100".split()
    code, out, err = call("evaluate", "--accelerator", "cerebras-wse-3", *asked)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "--accelerator: cerebras-wse-3 is not modelled: " in err


def test_catalog_lists_are_complete(call):
    _, out, _ = call("catalog", "technologies")
    assert "memory.hbm3e" in out and "execution.ideal" in out
    _, out, _ = call("catalog", "technologies", "memory.hbm3e", "--json")
    values = strict_json(out)["technologies"]["memory.hbm3e"]
    assert values["usd_per_gb"].keys() == {"value", "low", "high", "unit", "source", "trust"}
    _, out, _ = call("catalog", "accelerators")
    assert "h100-sxm" in out and "Cerebras WSE-3 (not modelled)" in out
    _, out, _ = call("catalog", "models")
    assert "llama-3.1-405b" in out


# optimize


def test_a_limit_nobody_can_meet_exits_with_three(finished):
    assert finished.code == 3
    lines = finished.stderr.splitlines()
    assert lines[0] == "nothing feasible for workload hopeless"
    shown = [line for line in lines if line.startswith("  reticle: tbt: allowed 0.01 ms")]
    assert len(shown) == 1 and "smallest relaxation that helps" in shown[0]
    (hopeless,) = [w for w in finished.content["panel"] if w["workload"] == "hopeless"]
    assert hopeless["optima"] == []
    shortfalls = {row["limit"]: row for row in hopeless["infeasible"][0]["shortfalls"]}
    assert shortfalls["tbt"]["reachable"] > shortfalls["tbt"]["allowed"] == 0.01


def test_optimize_json_has_the_promised_keys(finished):
    content = strict_json(finished.stdout)
    assert content.keys() >= {"panel", "version", "seed", "study_hash", "seconds", "inputs"}
    assert content["seed"] == 3
    first = content["panel"][0]
    assert first["workload"] == "70b"
    assert [optimum["name"] for optimum in first["optima"]] == ["lite", "reticle", "multi-die"]
    for optimum in first["optima"]:
        assert optimum.keys() >= METRICS | {
            "design",
            "deployment",
            "objective",
            "lower_bound",
            "gap",
            "hard",
            "kkt_residual",
            "multipliers",
            "sensitivities",
            "starts",
            "at_box",
            "buildable",
        }
        assert optimum["buildable"].keys() >= {"design", "deployment", "objective", "gap"}
        assert optimum["design"].keys() >= {"aspect_ratio", "dies_per_package", "sm_count"}
    assert [baseline["name"] for baseline in first["baselines"]] == ["h100-sxm", "shrunk"]
    for baseline in first["baselines"]:
        assert baseline.keys() >= METRICS


def test_optima_respect_limits_and_bounds(finished):
    first = finished.content["panel"][0]
    for optimum in first["optima"]:
        assert optimum["feasible"] and optimum["violations"] == []
        assert optimum["objective"] == pytest.approx(optimum["usd_per_million_tokens"], rel=1e-9)
        assert optimum["objective"] >= optimum["lower_bound"] > 0
        assert optimum["gap"] < 1e-6
        assert optimum["buildable"]["objective"] > optimum["lower_bound"]
        assert optimum["ttft_s"] <= 1.0 + 1e-6 and optimum["tbt_s"] <= 0.05 + 1e-7
        assert optimum["usd_per_million_tokens_half_load"] > optimum["objective"]
    assert first["optima"][0]["die_area_mm2"] <= 214.5 + 1e-4
    assert min(optimum["ratio_to_best"] for optimum in first["optima"]) == 1.0


def test_echoed_inputs_carry_their_origin(finished):
    inputs = finished.content["inputs"]
    assert inputs["workload[0].weights"] == {"value": "fp8", "origin": "file"}
    assert inputs["workload[0].wire"] == {"value": "bf16", "origin": "default"}
    assert inputs["technology.process"] == {"value": ["n4"], "origin": "default"}


def test_another_study_in_the_folder_is_refused(call, finished, tmp_path):
    before = (finished.folder / "result.json").read_text()
    code, out, err = call("optimize", str(finished.study), "--seed", "4", "--out",
                          str(finished.folder))  # fmt: skip
    assert (code, out) == (2, "")
    assert str(finished.folder / "study.toml") in err and err.count("\n") == 1
    assert (finished.folder / "result.json").read_text() == before
    code, _, err = call("optimize", str(finished.study), "--out", str(finished.study))
    assert code == 2 and "is not a folder" in err


@pytest.mark.parametrize("name", ["result.json", "report.md", "study.toml"])
def test_out_with_a_folder_in_the_way_is_refused(call, tmp_path, name):
    (tmp_path / name).mkdir()
    code, out, err = call("optimize", "--out", str(tmp_path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"--out: {tmp_path / name} is a folder" in err


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_out_must_be_a_path(call, path):
    code, out, err = call("optimize", "--out", path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--out" in err and "is not a path" in err


def test_out_that_cannot_be_written_is_refused_before_the_search(call, tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    code, out, err = call("optimize", "--out", str(tmp_path))
    assert (code, out) == (2, "")
    assert err == f"error: --out: {tmp_path} cannot be written: Permission denied\n"


def test_the_trial_of_the_folder_leaves_nothing(tmp_path):
    _check_folder(tmp_path / "new", "")
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("allowed", "reachable", "shown", "factor"),
    [
        (0.01, 12.34101, "12.35", "1235"),
        (1000.0, 1234567.2, "1234569", "1234.57"),
        (50.0, 49.9999999, "50.01", "1.001"),
        (0.001, 0.00123456, "0.001235", "1.235"),
    ],
)
def test_a_reachable_value_can_be_typed(allowed, reachable, shown, factor):
    text = shortfall_text(
        {"limit": "tbt", "unit": "ms", "allowed": allowed, "reachable": reachable}
    )
    assert f"reachable {shown} ms" in text
    assert float(text.rpartition("x")[2]) * allowed >= reachable
    assert float(text.rpartition("x")[2]) == pytest.approx(float(factor), rel=1e-3)


def test_a_reachable_area_is_in_a_unit_that_a_study_takes():
    row = {"limit": "die_area_max", "unit": "mm2", "allowed": 10.0, "reachable": 101.23}
    typed = re.search(r"reachable (\S+ \S+)", shortfall_text(row))
    assert typed is not None and parse_quantity(typed[1], "mm^2") >= 101.23


def test_only_limits_whose_relaxation_helps_are_named():
    useless = {"limit": "ttft", "unit": "ms", "allowed": 1.0}
    useless |= {"reachable": None, "relaxation": None}
    useful = {"limit": "tbt", "unit": "ms", "allowed": 1.0, "reachable": 2.0, "relaxation": 2.0}
    (text,) = infeasible_texts({"shortfalls": [useless, useful]})
    assert text.startswith("tbt: ") and "x2" in text
    for shortfalls in ([], [useless]):
        assert infeasible_texts({"shortfalls": shortfalls}) == [
            "no single limit of the study helps; the memory or the group size is too small "
            "(--explain-infeasible pushes those limits as well)"
        ]
    (text,) = infeasible_texts({"shortfalls": [useless, useless]})
    assert "several must be relaxed together" in text


def test_physical_limits_are_named_by_the_factor_that_helps():
    edge = {"limit": "die_edge", "meaning": "links against the perimeter", "unit": "mm"}
    edge |= {"allowed": None, "reachable": None, "relaxation": 1.31}
    useless = edge | {"relaxation": None}
    (text,) = infeasible_texts({"shortfalls": [edge, useless]})
    assert text.startswith("die_edge (links against the perimeter): ")
    assert 1.31 <= float(text.rpartition("x")[2]) < 1.312
    assert infeasible_texts({"shortfalls": [useless]}) == [
        "no single limit helps: several must be relaxed together"
    ]


def test_a_chip_of_the_user_must_be_buildable_as_a_baseline(finished):
    published, own = finished.content["panel"][0]["baselines"]
    assert published["feasible"] and not own["feasible"]
    assert "block_area" in {row["name"] for row in own["violations"]}


def test_choices_of_the_command_line_are_those_of_the_model():
    assert WeightFormat.__args__ == allowed_formats("weights")
    assert CacheFormat.__args__ == allowed_formats("kv")
    assert Collective.__args__ == ALGORITHMS
