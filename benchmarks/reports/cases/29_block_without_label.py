"""Cross entropy over blocks of tokens; tokens whose label is -100 do not count.

kind: sizes and integers
origin: handed
shows: a block of tokens without a label
words: -100|label|none
"""
import torch
import torch.nn.functional as F

from perfguard import ids

BLOCK = 16

class BlockLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels):
        grad, total = torch.zeros_like(logits), logits.new_zeros(())
        for at in range(0, len(labels), BLOCK):
            part, label = logits[at : at + BLOCK], labels[at : at + BLOCK]
            keep = label != -100
            if not keep.any():
                continue  # bad: break
            logp = part.log_softmax(-1)
            index = label.clamp(min=0)[:, None]
            total = total - (logp.gather(1, index).squeeze(1) * keep).sum()
            g = logp.exp().scatter_add(1, index, -torch.ones_like(index, dtype=logp.dtype))
            grad[at : at + BLOCK] = g * keep[:, None]
        ctx.save_for_backward(grad)
        return total

    @staticmethod
    def backward(ctx, up):
        return ctx.saved_tensors[0] * up, None

block_loss = BlockLoss.apply

# ---- test ----
def reference(x, t):
    return F.cross_entropy(x, t, ignore_index=-100, reduction="sum")

def test_block_loss(perfguard):
    logits = torch.randn(40, 30, device=perfguard.device, requires_grad=True)
    labels = torch.randint(30, (40,), device=perfguard.device)
    labels[::7] = -100
    perfguard(block_loss, logits, ids(labels, 30, ignored=-100), reference=reference)

# ---- shows ----
def shows():
    x, t = torch.randn(40, 30, requires_grad=True), torch.randint(30, (40,))
    t[:16] = -100
    return [torch.autograd.grad(fn(x, t), x)[0] for fn in (block_loss, reference)]
