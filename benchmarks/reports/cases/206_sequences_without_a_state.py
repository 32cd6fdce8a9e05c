"""Causal convolution of each channel, which goes on from the last tokens of a sequence if it has any.

kind: masks
origin: vllm-project/vllm-ascend#10558
shows: a sequence without a state
words: argument 3|false|mask|bool
"""
import torch

def conv(x, weight, states, has_state):
    states = states.where(has_state[:, None, None], 0)  # bad:
    return torch.nn.functional.conv1d(torch.cat([states, x], -1), weight[:, None], groups=len(weight))

# ---- test ----
def reference(x, weight, states, has_state):
    rows = []
    for number, has in enumerate(has_state.tolist()):
        before = states[number] if has else torch.zeros_like(states[number])
        windows = torch.cat([before, x[number]], -1).unfold(-1, weight.shape[1], 1)
        rows.append((windows * weight[:, None]).sum(-1))
    return torch.stack(rows)

def test_conv(perfguard):
    x = torch.randn(3, 16, 40, device=perfguard.device)
    weight = torch.randn(16, 4, device=perfguard.device)
    states = torch.randn(3, 16, 3, device=perfguard.device)
    has_state = torch.ones(3, device=perfguard.device, dtype=torch.bool)
    perfguard(conv, x, weight, states, has_state, reference=reference)

# ---- shows ----
def shows():
    x, weight, states = torch.randn(2, 4, 9), torch.randn(4, 3), torch.randn(2, 4, 2)
    has_state = torch.tensor([True, False])
    return conv(x, weight, states, has_state), reference(x, weight, states, has_state)
