"""A moving average of weights, whose decay grows from step to step up to a limit.

kind: state beside the result
origin: huggingface/diffusers#1864
shows: the average after five steps
words: decay|state|call
"""
import torch
from torch import nn

class Average(nn.Module):
    def __init__(self, weight, decay=0.999):
        super().__init__()
        self.register_buffer("kept", weight.clone())
        self.decay, self.steps = decay, 0

    def forward(self, weight):
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        # bad: self.decay = decay
        self.kept.mul_(decay).add_(weight, alpha=1 - decay)
        return self.kept.clone()

# ---- test ----
class Reference(Average):
    def forward(self, weight):
        self.steps = self.steps + 1
        share = 1 - min(self.decay, (1 + self.steps) / (10 + self.steps))
        self.kept.lerp_(weight, share)
        return self.kept.clone()

def test_average(perfguard):
    first, second = torch.randn(2, 24, 40, device=perfguard.device)
    perfguard(Average(first), second, reference=Reference(first))

# ---- shows ----
def shows():
    first, *others = torch.randn(6, 3, 5)
    averages = Average(first), Reference(first)
    return tuple([average(weight) for weight in others][-1] for average in averages)
