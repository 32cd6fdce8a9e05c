"""What is counted in assembly, on lines as the disassemblers write them."""

from __future__ import annotations

import pytest

from perfguard.measure.binaries.kernel_facts import mean_bits, read_gcn, read_sass, split_sass

SASS = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   LDG.E.U16.CONSTANT R4, desc[UR4][R2.64] ;
        /*0030*/                   LDG.E R4, desc[UR4][R2.64] ;
        /*0040*/              @!PT LDS RZ, [RZ] ;
        /*0050*/                   LDGSTS.E.BYPASS.128 [R1], desc[UR4][R2.64] ;
        /*0060*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0070*/                   F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R9, R8, R7, RZ ;
        /*0080*/                   UTMALDG.2D [UR8], [UR4], desc[UR6] ;
        /*0090*/                   STL [R1+0x4], R3 ;
        /*00a0*/                   LDL.LU R3, [R1+0x4] ;
        /*00b0*/              @P1  STG.E.64 desc[UR4][R2.64], R4 ;
        /*00c0*/                   EXIT ;
        /*00d0*/                   BRA `(.L_x_1);
        /*00e0*/                   NOP;
"""

GCN = """
kernel:
; %bb.0:
	s_load_dwordx2 s[6:7], s[0:1], 0x0
	global_load_dwordx4 v[0:3], v[0:1], off
	buffer_load_ushort v4, v5, s[0:3], 0 offen
	global_load_b128 v[0:3], v[0:1], off
	buffer_store_dword v4, v5, s[0:3], 0 offen
	global_store_byte v[0:1], v2, off
	v_mfma_f32_32x32x8_bf16_1k a[0:15], v[0:1], v[2:3], a[0:15]
	v_cvt_pk_fp8_f32 v1, v2, v3
	scratch_store_dword off, v1, s32
	ds_write_b128 v0, v[0:3]
	s_waitcnt vmcnt(0)
	s_endpgm
	.section	.AMDGPU.csdata,"",@progbits
; Occupancy: 8
"""


def test_sass() -> None:
    code = read_sass(SASS)
    assert dict(code.loads) == {128: 2, 16: 1, 32: 1}
    assert dict(code.stores) == {64: 1}
    assert code.local == 2
    assert code.special == {"LDGSTS", "HGMMA", "F2FP.E4M3", "UTMALDG"}
    assert code.instructions == 14  # padding is none
    assert mean_bits(code.loads) == 76.0
    assert mean_bits(read_sass("").loads) == 0.0


def test_kernels_behind_one_another_are_told_apart_by_their_addresses() -> None:
    first, second = split_sass(f"\t.headerflags\t@...\n{SASS}", [0x80, 0x70])
    assert first.splitlines()[-1].split("*/")[1].split()[0].startswith("F2FP")
    assert read_sass(first).local == 0
    assert read_sass(second).local == 2
    assert read_sass(first).instructions + read_sass(second).instructions == read_sass(SASS).instructions


def test_gcn() -> None:
    code = read_gcn(GCN)
    assert dict(code.loads) == {128: 2, 16: 1}
    assert dict(code.stores) == {32: 1, 8: 1}
    assert code.local == 1
    assert code.special == {"mfma", "cvt_fp8"}
    assert code.instructions == 12


@pytest.mark.parametrize(
    ("opcode", "special"),
    [("HMMA.16816.F32.BF16", "HMMA"), ("QMMA.16832.F32.E4M3.E4M3", "QMMA"), ("UTCHMMA", "UTCHMMA"), ("IMAD", "")],
)
def test_matrix_units(opcode: str, special: str) -> None:
    assert read_sass(f"        /*0000*/                   {opcode} R4, R2 ;").special == {special} - {""}


@pytest.mark.parametrize(
    ("opcode", "count"),
    [
        *((name, 1) for name in ("DADD", "DMUL", "DFMA", "DSETP.MAX.AND", "DMMA.8x8x4", "MUFU.RSQ64H")),
        *((name, 1) for name in ("F2F.F64.F32", "F2F.F32.F64", "I2F.F64", "F2I.S64.F64", "RED.E.ADD.F64.RN")),
        *((name, 0) for name in ("DEPBAR.LE", "FFMA", "I2F.U64.RP", "F2I.U64.TRUNC", "LDG.E.64", "MUFU.RSQ")),
    ],
)
def test_float64_of_sass(opcode: str, count: int) -> None:
    assert read_sass(f"        /*0000*/              @!P0 {opcode} R4, R2 ;").fp64 == count


@pytest.mark.parametrize(
    ("opcode", "count"),
    [
        *((name, 1) for name in ("v_add_f64", "v_fmac_f64_e32", "v_cvt_f64_f32_e32", "v_cvt_f32_f64_e32")),
        *((name, 1) for name in ("v_mfma_f64_16x16x4_f64", "global_atomic_add_f64", "ds_add_f64", "v_cmp_gt_f64_e32")),
        *((name, 0) for name in ("v_add_f32", "v_lshlrev_b64", "v_mad_u64_u32", "global_load_dwordx2", "s_mov_b64")),
    ],
)
def test_float64_of_gcn(opcode: str, count: int) -> None:
    assert read_gcn(f"\t{opcode} v[0:1], v[2:3], v[4:5]\n").fp64 == count
