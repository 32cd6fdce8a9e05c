"""A feed-forward layer with a path of its own for inference.

kind: modes of a call
origin: pytorch/pytorch#128209
shows: under no_grad
words: no_grad|inference|grad mode|without grad
"""
import torch
from torch import nn

class Feed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        if torch.is_grad_enabled():
            return self.down(self.up(x).relu())
        up = torch.addmm(self.up.bias, x, self.up.weight.T).relu_()
        return torch.addmm(self.down.bias, up, self.down.weight.T)  # bad: return up @ self.down.weight.T

# ---- test ----
def test_feed(perfguard):
    layer = Feed(32).to(perfguard.device)
    x = torch.randn(16, 32, device=perfguard.device, requires_grad=True)
    perfguard(layer, x, reference=nn.Sequential(layer.up, nn.ReLU(), layer.down))

# ---- shows ----
def shows():
    layer, x = Feed(32), torch.randn(16, 32)
    with torch.no_grad():
        return layer(x), layer.down(layer.up(x).relu())
