"""Quantities: what people write, round trips, and errors that help."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies import units
from topologies.errors import UnitError


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (units.size, "25 MiB", 26214400),
        (units.size, "1.5GB", 1500000000),
        (units.size, "4096 B", 4096),
        (units.size, "64 kB", 64000),
        (units.rate, "500 kB/s", 5e5),
        (units.rate, "64 kbit/s", 8e3),
        (units.duration, "2 ms", 0.002),
        (units.duration, "1.2 us", 1.2e-6),
        (units.rate, "450 GB/s", 4.5e11),
        (units.rate, "400 Gbit/s", 5e10),
        (units.flops, "989 TFLOP/s", 9.89e14),
        (units.count, "15T", 1.5e13),
        (units.count, "300 B", 3e11),
        (units.count, "2k", 2000),
        (units.count, "1.5e12", 1.5e12),
    ],
)
def test_reads_what_people_write(read, text: str, value: float) -> None:  # type: ignore[no-untyped-def]
    assert read(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("read", [units.size, units.duration, units.rate, units.flops])
@pytest.mark.parametrize("bad", [25, 2.5, "25", "", "MiB", "1 parsec", "-1 MiB", "nan s", "1e999 s", "1 2 s", None, True, [], "9" * 100])
def test_refuses_the_rest_with_the_key_named(read, bad: object) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UnitError, match=r"comm\.bucket"):
        read(bad, "comm.bucket")


@pytest.mark.parametrize("bad", ["", "T", "15X", "1 2", "9" * 100])
def test_refuses_counts_that_are_none(bad: str) -> None:
    with pytest.raises(UnitError, match=r"at --tokens\. Write 15e12, or 15T"):
        units.count(bad, "--tokens")


def test_a_bare_number_shows_the_likely_readings() -> None:
    with pytest.raises(UnitError, match=r'"25 MiB" or "25 MB"'):
        units.size(25)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("450 gb/s", "GB/s or Gbit/s"), ("400 Gb/s", "Gbit/s"), ("400 Gbps", "Gbit/s"), ("50 GBps", "GB/s"), ("50 gib/s", "GiB/s")],
)
def test_a_unit_written_otherwise_is_offered_and_a_bit_is_no_byte(text: str, meant: str) -> None:
    with pytest.raises(UnitError, match=rf"Did you mean {meant}\?"):
        units.rate(text)


@given(st.integers(0, 2**50))
def test_sizes_round_trip(value: int) -> None:
    assert units.size(f"{value} B") == value
    assert units.size(units.show_size(value)) == pytest.approx(value, rel=1e-3, abs=1)


@given(st.floats(1e-9, 1e5))
def test_times_round_trip(value: float) -> None:
    assert units.duration(units.show_duration(value)) == pytest.approx(value, rel=1e-3)


@pytest.mark.no_cover
@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (units.size, units.duration, units.rate, units.flops):
        try:
            assert read(text) >= 0
        except UnitError as error:
            assert str(error)
