"""One uploaded archive with exactly one small file of the expected name. It is read in memory, never extracted."""

from __future__ import annotations

import io
import re
import stat
import zipfile
import zlib

from msgspec import Struct

from perfguard.model.errors import LaneError

MOST_PACKED_BYTES = 2_000_000
# A case with the readings of three process pairs takes about 10 kB of indented JSON and packs to a few hundred bytes:
# room for about 1,500 regressions in one lane.
MOST_BYTES = 16_000_000
_NAME = re.compile(r"report-(\w[\w.+-]{0,199})\.json", re.ASCII)
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1


class Packed(Struct, frozen=True):
    """The one file of an archive: `slug` from its name `report-<slug>.json`, and its bytes."""

    slug: str
    data: bytes


def unpack(archive: bytes) -> Packed:
    """The report in a lane's archive.

    Raises:
        LaneError: too large, no zip file, not exactly one plain file `report-<slug>.json`, or damaged.
    """
    if len(archive) > MOST_PACKED_BYTES:
        raise LaneError(f"the archive has {len(archive):,} bytes, at most {MOST_PACKED_BYTES:,} are read")
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            member = _only_member(opened)
            with opened.open(member) as stream:
                data = stream.read(MOST_BYTES + 1)
    # The exceptions of zipfile for damaged or unusual archives, from its documentation and from experiments.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise LaneError(f"no readable zip file ({str(error)[:200]}); upload .perfguard/report-*.json") from error
    if len(data) > MOST_BYTES:
        raise LaneError(f"{member.filename} unpacks to more than {MOST_BYTES:,} bytes")
    name = _NAME.fullmatch(member.filename)
    assert name is not None
    return Packed(name[1], data)


def _only_member(opened: zipfile.ZipFile) -> zipfile.ZipInfo:
    members = opened.infolist()
    if len(members) != 1:
        raise LaneError(f"the archive holds {len(members):,} files; upload one, .perfguard/report-<hardware>.json")
    member = members[0]
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise LaneError(f"{member.filename[:200]!r} is no plain file")
    if not _NAME.fullmatch(member.filename) or member.orig_filename != member.filename:
        raise LaneError(f"{member.filename[:200]!r} is not report-<hardware>.json")
    if member.compress_type not in _METHODS or member.flag_bits & _ENCRYPTED:
        raise LaneError(f"{member.filename} is encrypted or packed by an unknown method")
    if member.file_size > MOST_BYTES:
        raise LaneError(
            f"{member.filename} says that it unpacks to {member.file_size:,} bytes, more than {MOST_BYTES:,}"
        )
    return member
