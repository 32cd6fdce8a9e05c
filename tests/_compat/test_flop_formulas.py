"""Flop of operators that torch's own table lacks, or refuses to count."""

from __future__ import annotations

import pytest
import torch

from perfguard._compat.torch_distributed import flop_formulas

B, H, SHARED, S, D = 2, 8, 2, 16, 4  # batch, heads of queries, heads of keys and values, positions, width


def equal_heads(query: torch.Size, key: torch.Size, value: torch.Size) -> int:
    """As torch 2.11 counts: one matmul for scores and one for results, and no heads that several queries share."""
    assert query[1] == key[1] == value[1]
    return 2 * 2 * query[0] * query[1] * query[2] * key[2] * query[3]


@pytest.mark.parametrize("refuses", [False, True])
def test_heads_that_queries_share_count_as_often_as_they_are_used(
    refuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils import flop_counter  # imports triton, which other modules must be able to import first

    if refuses:
        monkeypatch.setattr(flop_counter, "sdpa_flop_count", equal_heads)
    query = torch.empty(B, H, S, D, device="meta")
    key = torch.empty(B, SHARED, S, D, device="meta")
    formulas = flop_formulas()
    aten = torch.ops.aten
    for forward in (aten._scaled_dot_product_flash_attention_for_cpu, aten._scaled_dot_product_flash_attention):
        assert formulas[forward](query, key, key, out_val=query) == 4 * B * H * S * S * D
    backward = formulas[aten._scaled_dot_product_flash_attention_backward]
    assert backward(query, query, key, key, out_val=query) == 10 * B * H * S * S * D
