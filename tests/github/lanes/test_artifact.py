"""Archives of strangers: one plain file of the right name and size, or a reason. Nothing is ever extracted."""

from __future__ import annotations

import contextlib
import io
import stat
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfguard.github.lanes import archive as artifact
from perfguard.github.lanes.archive import unpack
from perfguard.model.errors import LaneError
from tests.github.lanes.reports import archive

NAME = "report-nvidia-h200.json"


def packed(*names: str | zipfile.ZipInfo, data: bytes = b"{}") -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as opened:
        for name in names:
            opened.writestr(name, data, compress_type=zipfile.ZIP_DEFLATED)
    return made.getvalue()


def refusal(data: bytes) -> str:
    with pytest.raises(LaneError) as refused:
        unpack(data)
    return str(refused.value)


def test_one_report_is_read() -> None:
    found = unpack(archive(b'{"a": 1}'))
    assert (found.slug, found.data) == ("nvidia-h200", b'{"a": 1}')


def test_row_31_what_is_no_zip_or_cut_is_refused() -> None:
    whole = archive(b'{"a": 1}')
    for data in (b"", b"not a zip", whole[: len(whole) // 2], whole[:-30]):
        assert "no readable zip file" in refusal(data)
    damaged = bytearray(packed(NAME, data=bytes(range(256)) * 8))
    damaged[60] ^= 0xFF
    assert "no readable zip file" in refusal(bytes(damaged))


def test_row_33_a_bomb_is_refused_by_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "MOST_BYTES", 100_000)
    assert "says that it unpacks to" in refusal(packed(NAME, data=bytes(200_000)))
    lying = bytearray(packed(NAME, data=bytes(200_000)))
    for place in (lying.index(b"PK\x03\x04") + 22, lying.index(b"PK\x01\x02") + 24):  # uncompressed size
        lying[place : place + 4] = (1000).to_bytes(4, "little")
    assert refusal(bytes(lying))
    monkeypatch.setattr(artifact, "MOST_PACKED_BYTES", 100)
    assert "at most 100 are read" in refusal(bytes(101))


def test_row_33_many_entries_and_strange_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "holds 2,000 files" in refusal(packed(*(f"a{number}" for number in range(2000))))
    assert "holds 0 files" in refusal(packed())
    assert "holds 2 files" in refusal(packed(NAME, "report-other.json"))
    for name in ("../../report-x.json", "/report-x.json", "a/report-x.json", "report-..json/"):
        assert refusal(packed(name))
    assert "is not report-" in refusal(packed("report-x.json_.exe").replace(b".json_", b".json\0"))
    link = zipfile.ZipInfo(NAME)
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    assert "no plain file" in refusal(packed(link, data=b"/etc/passwd"))
    encrypted = bytearray(packed(NAME))
    for place in (encrypted.index(b"PK\x03\x04") + 6, encrypted.index(b"PK\x01\x02") + 8):
        encrypted[place] |= 1
    assert "encrypted" in refusal(bytes(encrypted))
    assert list(tmp_path.iterdir()) == []


@given(st.binary(max_size=400), st.integers(0, 300), st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_read_or_refused(noise: bytes, place: int, whole: bool) -> None:
    data = archive(b'{"a": 1}')
    mixed = noise if whole else data[:place] + noise + data[place + len(noise) :]
    with contextlib.suppress(LaneError):
        unpack(mixed)
