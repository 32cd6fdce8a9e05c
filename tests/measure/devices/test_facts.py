"""Slugs and the table of architectures."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.measure.devices import architectures


@given(st.text(), st.sampled_from(["nvidia", "amd", "intel", "cpu"]))
def test_a_slug_is_a_folder_name(name: str, vendor: str) -> None:
    slug = architectures.slugify(name, vendor)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug)
    assert slug.split("-").count(vendor) == 1


@pytest.mark.parametrize("architecture", ["sm_90", "gfx950", "gfx1201"])
def test_fn_and_fnuz_never_meet(architecture: str) -> None:
    dtypes, warnings = architectures.fp8_dtypes(architecture)
    assert dtypes == ["float8_e4m3fn", "float8_e5m2"]
    assert warnings == []
    assert set(architectures.fp8_dtypes("gfx942")[0]).isdisjoint(dtypes)


def test_answers_are_copies() -> None:
    architectures.fp8_dtypes("sm_90")[0].clear()
    assert architectures.fp8_dtypes("sm_90")[0]


def test_unknown_architecture() -> None:
    dtypes, warnings = architectures.fp8_dtypes("sm_999")
    assert dtypes == []
    assert "sm_999" in warnings[0]
