"""Quantities that users write, and faults that users of other tools met."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litegpu_opt.errors import UserError
from litegpu_opt.units import parse_quantity


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("3.35 TB/s", "TB/s", 3.35),
        ("3.35TB/s", "GB/s", 3350.0),
        ("203.5 mm^2", "mm^2", 203.5),
        ("203.5 mm²", "mm^2", 203.5),
        ("2.035 cm**2", "mm^2", 203.5),
        ("50 ms", "s", 0.05),
        ("12 USD/GB", "USD/GB", 12.0),
        ("0.5 USD/(Gb/s)", "USD/(Gb/s)", 0.5),
        ("4 USD/(GB/s)", "USD/(Gb/s)", 0.5),
        ("17000 USD", "USD", 17000.0),
        ("4 pJ/bit", "pJ/bit", 4.0),
        ("32 pJ/B", "pJ/bit", 4.0),
        ("1.83 GHz", "GHz", 1.83),
        ("1830 MHz", "GHz", 1.83),
        ("5 %", "", 0.05),
        ("0.75 Tb/s/mm", "GB/s/mm", 93.75),
        ("75 USD/MWh", "USD/kWh", 0.075),
    ],
)
def test_values(text, unit, value):
    assert parse_quantity(text, unit) == value


def test_decimal_and_binary_bytes_differ():
    """80e9 and 80 * 2^30 bytes; nvidia-smi shows 81,559 MiB on an H100."""
    assert parse_quantity("80 GB", "B") == 80_000_000_000
    assert parse_quantity("80 GiB", "B") == 85_899_345_920
    assert parse_quantity("81559 MiB", "B") == 85_520_809_984
    with pytest.raises(UserError, match="no unit"):
        parse_quantity(80, "GB", bare=False)


@pytest.mark.parametrize("unit", ["FLOP/s", "B/s", "b/s"])
def test_tera_is_decimal(unit):
    """312e12, not 312 * 2^40."""
    assert parse_quantity(f"312 T{unit}", unit) == 312_000_000_000_000


def test_bits_and_bytes_differ():
    """Optics are quoted in bits; bytes and bits are never taken for each other."""
    assert parse_quantity("3.6 Tb/s", "GB/s") == 450
    assert parse_quantity("400 Gb/s", "GB/s") == 50
    assert parse_quantity("400 GB/s", "Gb/s") == 3200
    # PCIe 5.0, 16 lanes of 32 Gb/s in each direction
    assert parse_quantity("512 Gb/s", "GB/s") == 64
    with pytest.raises(UserError, match="unknown unit 'gb/s'"):
        parse_quantity("400 gb/s", "GB/s")


def test_defects_are_per_square_centimetre():
    per_cm2 = parse_quantity("0.1 1/cm^2", "1/cm^2")
    assert per_cm2 * parse_quantity("814 mm^2", "cm^2") == pytest.approx(0.814, rel=1e-12)
    assert parse_quantity("0.001 /mm^2", "1/cm^2") == per_cm2


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        ("3 kg", "mm^2"),
        ("3 TB/s", "GHz"),
        ("3 GB", "GB/s"),
        ("8 MW h", "kWh"),
        ("3 token", ""),
        ("3 Gb", "ampere"),
        ("wide", "mm^2"),
        ("", "mm^2"),
        ("3 mm^2 4", "mm^2"),
        ("3 mm^99999999", "mm^2"),
        ("9^9^9^9 mm", "mm"),
        ("3 mm^9^9^9^9", "mm"),
        ("1e400 mm", "mm"),
        ("nan mm", "mm"),
        ("3 (mm", "mm"),
        ("٣ mm", "mm"),
        ("__import__('os')", ""),
        (float("nan"), ""),
        (float("inf"), ""),
        (10**400, ""),
        pytest.param(10**5000, "", id="huge"),
        (True, ""),
        (None, ""),
        ([1], ""),
        ({"value": 1}, ""),
    ],
)
def test_refused(value, unit):
    with pytest.raises(UserError) as caught:
        parse_quantity(value, unit, "study.toml:key")
    message = str(caught.value)
    assert message.startswith("study.toml:key: ")
    assert "\n" not in message and len(message) < 300


def test_error_says_what_is_allowed():
    with pytest.raises(UserError) as caught:
        parse_quantity("3 kg", "mm^2", "f.toml:die_area")
    assert caught.value.allowed == 'a quantity in mm^2, such as "203.5 mm^2"'
    assert "'kg'" in caught.value.what


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_taken_as_they_are(value):
    assert parse_quantity(value, "GB") == value
    assert parse_quantity(f"{value!r} GB", "GB") == value


unit_like = st.text(alphabet="mkGTbBFLOPUSDs1290.^*/()²% -+e", max_size=20)


@given(
    st.one_of(
        st.text(),
        unit_like,
        unit_like.map(lambda unit: f"2 {unit}"),
        st.integers(),
        st.floats(),
        st.none(),
        st.lists(st.integers()),
    ),
    st.sampled_from(["", "GB/s", "mm^2", "USD/(Gb/s)"]),
)
def test_anything_is_a_float_or_a_user_error(value, unit):
    try:
        assert isinstance(parse_quantity(value, unit), float)
    except UserError as error:
        assert "\n" not in str(error)
