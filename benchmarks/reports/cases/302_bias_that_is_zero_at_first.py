"""A router whose bias, zero until its load is known, chooses experts and does not weight them.

kind: parameters at their start
origin: huggingface/transformers#39581
shows: the weights with a bias
words: bias|parameter
"""
import torch
from torch import nn

class Router(nn.Module):
    def __init__(self, dim, experts, k):
        super().__init__()
        self.k = k
        self.gate = nn.Linear(dim, experts, bias=False)
        self.register_buffer("bias", torch.zeros(experts))

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        ids = (p + self.bias).topk(self.k, -1).indices
        chosen = p.gather(-1, ids)  # bad: chosen = (p + self.bias).gather(-1, ids)
        return chosen / chosen.sum(-1, keepdim=True), ids

# ---- test ----
class Reference(Router):
    def forward(self, x):
        p = torch.softmax(x @ self.gate.weight.T, -1)
        ids = torch.topk(p + self.bias, self.k, -1).indices
        rows = torch.arange(len(x), device=x.device)[:, None]
        return p[rows, ids] / p[rows, ids].sum(-1, keepdim=True), ids

def test_router(perfguard):
    router, reference = (made(32, 16, 2).to(perfguard.device) for made in (Router, Reference))
    reference.load_state_dict(router.state_dict())
    perfguard(router, torch.randn(24, 32, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    router, reference, x = Router(8, 4, 2), Reference(8, 4, 2), torch.randn(3, 8)
    router.bias.copy_(torch.tensor([0.0, 0.5, -0.5, 0.2]))
    reference.load_state_dict(router.state_dict())
    return router(x)[0], reference(x)[0]
