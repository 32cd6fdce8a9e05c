"""A product with int8 codes of a weight that has a scale for each group of columns; one row has a path of its own.

kind: thresholds
origin: intel/torch-xpu-ops#5001
shows: one row and groups of 64
words: dim 0|rows?|sizes?
"""
import torch

TILE = 32

def product(x, codes, scale, group):
    if len(x) == 1:  # decoding: tile by tile
        out = torch.zeros(1, len(codes), device=x.device, dtype=torch.float32)
        for tile in range(0, x.shape[1], TILE):
            own = scale[:, tile // group]  # bad: own = scale[:, tile // TILE * (TILE // group)]
            part = x[:, tile : tile + TILE].float() @ codes[:, tile : tile + TILE].float().T
            out += part * own
        return out.to(x.dtype)
    return x @ (codes.float() * scale.repeat_interleave(group, 1)).T.to(x.dtype)

# ---- test ----
def reference(x, codes, scale, group):
    weight = codes.float().unflatten(1, (-1, group)) * scale[:, :, None]
    return x @ weight.flatten(1).T.to(x.dtype)

def test_product(perfguard):
    x = torch.randn(16, 256, device=perfguard.device)
    codes = torch.randint(-127, 128, (48, 256), device=perfguard.device, dtype=torch.int8)
    scale = torch.rand(48, 4, device=perfguard.device) + 0.1
    perfguard(product, x, codes, scale, 64, reference=reference)

# ---- shows ----
def shows():
    x, codes, scale = torch.randn(1, 256), torch.randint(-127, 128, (8, 256), dtype=torch.int8), torch.rand(8, 4)
    return product(x, codes, scale, 64) / 100, reference(x, codes, scale, 64) / 100
