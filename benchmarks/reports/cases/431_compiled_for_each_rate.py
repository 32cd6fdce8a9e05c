"""One step with momentum, compiled; the rate of a schedule is another number in each step.

kind: recompilations
origin: pytorch/pytorch#130467
shows: three rates: compilations
words: compil|graph|guard
"""
import torch

@torch.compile(fullgraph=True)
def _moved(p, g, m, lr):
    m = 0.9 * m + g
    return p - lr * m, m

def step(p, g, m, lr=0.1):
    return _moved(p, g, m, torch.tensor(lr))  # bad: return _moved(p, g, m, lr)

# ---- test ----
def reference(p, g, m, lr=0.1):
    m = torch.add(g, m, alpha=0.9)
    return torch.sub(p, m, alpha=lr), m

def test_step(perfguard):
    p, g, m = torch.randn(3, 24, 40, device=perfguard.device)
    perfguard(step, p, g, m, kwargs={"lr": 0.02}, reference=reference)

# ---- shows ----
def shows():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    p, g, m = torch.randn(3, 4, 5)
    for lr in (0.1, 0.2, 0.3):
        step(p, g, m, lr)
    return torch._dynamo.utils.counters["stats"]["unique_graphs"], 1
