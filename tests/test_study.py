"""The study file: strict about what it reads, and open about what it filled in."""

import copy
import tomllib

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litegpu_opt.catalog import load_accelerator
from litegpu_opt.errors import UserError
from litegpu_opt.files import embedded, toml_literal, validated, write_atomic
from litegpu_opt.study import Study, load_study, resolved_toml, study_hash


MINIMAL = """
[[workload]]
name = "chat"
model = "llama-3.1-70b"
weights = "fp8"
kv = "fp8"
prompt_tokens = 1500
output_tokens = 500
"""


@pytest.fixture
def load(tmp_path):
    def study(text, name="study.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return load_study(path)

    return study


def test_panel():
    panel = load_study()
    assert [w.name for w in panel.workloads] == ["70b", "405b", "70b-fast-decode"]
    assert [(w.ttft_ms, w.tbt_ms) for w in panel.workloads] == [(1000, 50), (1000, 50), (None, 15)]
    assert [c.die_area_max_mm2 for c in panel.candidates] == [214.5, None, None]
    assert panel.candidates[2].dies_per_package == (2, 4)
    assert [choice["cooling"] for choice in panel.technology_choices()] == ["liquid", "air"]
    assert {choice["prices"] for choice in panel.technology_choices()} == {"cost"}
    assert set(panel.origin().values()) == {"default"}


def test_defaults_are_those_of_the_panel(load):
    mine, panel = load(MINIMAL), load_study()
    for name in set(Study.model_fields) - {"name", "workloads"}:
        assert getattr(mine, name) == getattr(panel, name), name


def test_nothing_is_filled_in_silently(load):
    """Value and origin of every key; without limits there are none."""
    study = load(MINIMAL + '[technology]\nmemory = "hbm3"\n')
    origin = study.origin()
    assert origin["workload[0].prompt_tokens"] == "file"
    assert origin["workload[0].ttft"] == origin["workload[0].activations"] == "default"
    assert origin["technology.memory"] == "file"
    assert origin["technology.process"] == origin["candidate[0].die_area_max"] == "default"
    assert study.workloads[0].ttft_ms is None and study.workloads[0].tbt_ms is None
    text = resolved_toml(study)
    assert 'ttft = "none"  # default' in text
    assert 'memory = ["hbm3"]  # file' in text
    stated = [line for line in text.splitlines() if " = " in line]
    assert len(stated) == len(origin)
    assert all(line.endswith(("# file", "# default")) for line in stated)


@pytest.mark.parametrize(
    "extra", ["", '[technology.overrides]\nmemory.usd_per_gb = "12.1 USD/GB"\n']
)
def test_resolved_text_loads_back_identically(load, extra):
    for study in (load_study(), load(MINIMAL + extra)):
        again = load(resolved_toml(study), "resolved.toml")
        assert again == study
        assert study_hash(again) == study_hash(study)
        assert set(again.origin().values()) == {"file"}


def test_hash_follows_meaning_not_layout(load):
    base = study_hash(load(MINIMAL + "tbt = '50 ms'"))
    assert study_hash(load("# a comment\n" + MINIMAL + "tbt = '0.05 s'")) == base
    assert study_hash(load(MINIMAL + "tbt = '50 ms'\nwire = 'bf16'")) == base
    assert study_hash(load(MINIMAL + "tbt = '51 ms'")) != base
    assert study_hash(load("seed = 1\n" + MINIMAL + "tbt = '50 ms'")) != base


def test_paths_are_taken_from_the_folder_of_the_study(load, tmp_path):
    (tmp_path / "models").mkdir()
    small = embedded("models", "llama-3.2-1b.json").read_text("utf-8")
    (tmp_path / "models" / "config.json").write_text(small)
    (tmp_path / "mine.toml").write_text('extends = "h100-sxm"')
    text = MINIMAL.replace("llama-3.1-70b", "models/config.json")
    study = load(text + '[[baseline]]\naccelerator = "mine.toml"\n')
    assert study.workloads[0].model == str(tmp_path / "models" / "config.json")
    assert load_accelerator(study.baselines[0].accelerator).name == "mine"
    assert load(MINIMAL).workloads[0].model == "llama-3.1-70b"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "llama-3.1-7b",
            "study.toml:workload[0].model: unknown model 'llama-3.1-7b'",
        ),
        ("none.json", "study.toml:workload[0].model: none.json: no such file"),
    ],
)
def test_models_are_checked_with_the_study(load, model, message):
    with pytest.raises(UserError) as caught:
        load(MINIMAL.replace("llama-3.1-70b", model))
    assert message in str(caught.value)


def with_line(line, after="[[workload]]"):
    return MINIMAL.replace(after, f"{after}\n{line}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "study.toml:workload: missing"),
        (
            "workload = []",
            "study.toml:workload: a list is not accepted; allowed: tables headed [[workload]]",
        ),
        ("[workload]", "allowed: tables headed [[workload]]"),
        ("sed = 1\n" + MINIMAL, "study.toml:sed: unknown key 'sed', did you mean seed?"),
        (
            "seed = -1\n" + MINIMAL,
            "study.toml:seed: -1 is not accepted; allowed: a whole number, 0 to",
        ),
        ("seed = 1.5\n" + MINIMAL, "study.toml:seed: 1.5"),
        ("seed = true\n" + MINIMAL, "study.toml:seed: True"),
        ("starts = 0\n" + MINIMAL, "allowed: a whole number, 1 to 64"),
        ("starts = 65\n" + MINIMAL, "allowed: a whole number, 1 to 64"),
        (
            'basis = "prise"\n' + MINIMAL,
            "study.toml:basis: unknown prices 'prise', did you mean price?",
        ),
        ('name = "a/b"\n' + MINIMAL, "study.toml:name: 'a/b' is not a name"),
        ("space.tensor_parallel_max = 0\n" + MINIMAL, "study.toml:space.tensor_parallel_max: 0"),
        ("space.tensor_parallel_max = 1025\n" + MINIMAL, "allowed: a whole number, 1 to 1024"),
        ("space.aspect_ratios = [0.9]\n" + MINIMAL, "allowed: a number from 1 to 4"),
        ("space.aspect_ratios = []\n" + MINIMAL, "the list is empty"),
        ("space.aspect_ratios = [1, 1.0]\n" + MINIMAL, "a value occurs twice"),
        ("space = 1\n" + MINIMAL, "study.toml:space: 1 is not a table"),
        (
            'technology.cooling = ["liquid", "water"]\n' + MINIMAL,
            "study.toml:technology.cooling: unknown cooling 'water'",
        ),
        ("technology.memory = 3\n" + MINIMAL, "study.toml:technology.memory: 3 is not a name"),
        (
            "technology.overrides.memory.usd_per_g = 3\n" + MINIMAL,
            "study.toml:technology.overrides.memory.usd_per_g: unknown technology value",
        ),
        (
            "technology.overrides = 3\n" + MINIMAL,
            "study.toml:technology.overrides: 3 is not a table",
        ),
        (
            with_line("tbt = 50"),
            "study.toml:workload[0].tbt: 50 has no unit; allowed: a quantity in ms",
        ),
        (with_line('tbt = "0 ms"'), "study.toml:workload[0].tbt: '0 ms' is not positive"),
        (with_line('tbt = "5 GB"'), "study.toml:workload[0].tbt: 'GB'"),
        (
            with_line('tpot = "5 ms"'),
            "study.toml:workload[0].tpot: unknown key 'tpot', did you mean",
        ),
        (with_line('pools = "decode"\nttft = "1 s"'), "study.toml:workload[0].ttft: a decode pool"),
        (with_line('pools = "decoding"'), "did you mean decode?"),
        (
            with_line('wire = "fp7"'),
            "study.toml:workload[0].wire: unknown number format 'fp7', did you mean fp",
        ),
        (
            MINIMAL.replace('"fp8"', '"bf-16"', 1),
            "study.toml:workload[0].weights: unknown number format 'bf-16', did you mean bf16?",
        ),
        (
            MINIMAL.replace("1500", "0"),
            "study.toml:workload[0].prompt_tokens: 0 is not accepted; allowed: a number from 1",
        ),
        (MINIMAL.replace("kv = ", "#"), "study.toml:workload[0].kv: missing"),
        (MINIMAL + MINIMAL, "study.toml:workload[1].name: 'chat' occurs twice"),
        (
            MINIMAL + '[[candidate]]\nname = "a"\ndies_per_package = [9]',
            "candidate[0].dies_per_package: 9 is not accepted; allowed: a whole number, 1 to 8",
        ),
        (
            MINIMAL + '[[candidate]]\nname = "a"\ndie_area_max = "2 mm"',
            "study.toml:candidate[0].die_area_max",
        ),
        (
            MINIMAL + '[[baseline]]\naccelerator = "h100sxm"',
            "baseline[0].accelerator: unknown accelerator 'h100sxm', did you mean h100-sxm?",
        ),
    ],
)
def test_wrong_files(load, text, message):
    """One line with file, key and the nearest name."""
    with pytest.raises(UserError) as caught:
        load(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder(tmp_path):
    for path in (tmp_path, tmp_path / "absent.toml"):
        with pytest.raises(UserError, match=str(path)):
            load_study(path)


PANEL = tomllib.loads(embedded("studies", "panel.toml").read_text("utf-8"))
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.datetimes()
    ),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2)
    ),
    max_leaves=4,
)


def places(content, path=()):
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


@settings(deadline=None)
@given(st.sampled_from(sorted(places(PANEL), key=str)), values)
def test_any_value_is_accepted_or_a_user_error(place, value):
    content = copy.deepcopy(PANEL)
    *parents, key = place
    table = content
    for parent in parents:
        table = table[parent]
    table[key] = value
    try:
        study = validated(Study, content, "fuzz.toml")
    except UserError as error:
        assert str(error).startswith("fuzz.toml:") and "\n" not in str(error)
    else:
        again = validated(Study, tomllib.loads(resolved_toml(study)), "again.toml")
        assert study_hash(again) == study_hash(study)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_a_user_error(tmp_path, content):
    path = tmp_path / "study.toml"
    path.write_bytes(content)
    with pytest.raises(UserError):
        load_study(path)


@given(
    st.recursive(
        st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3),
    )
)
def test_toml_literals(value):
    assert tomllib.loads(f"key = {toml_literal(value)}")["key"] == value
    assert tomllib.loads(tomli_w.dumps({"key": value}))["key"] == value


def test_write_atomic(tmp_path):
    path = tmp_path / "out.toml"
    write_atomic(path, "a = 1\n")
    write_atomic(path, "ä = 2\n".replace("ä", '"ä"'))
    assert path.read_text("utf-8") == '"ä" = 2\n'
    assert list(tmp_path.iterdir()) == [path]
    for wrong in (tmp_path, path / "below.toml", tmp_path / "absent" / "out.toml"):
        with pytest.raises(UserError, match="cannot be written"):
            write_atomic(wrong, "")
    assert list(tmp_path.iterdir()) == [path]
