"""Distillation by the divergence of student and teacher over tokens that count.

kind: scalars at neutral defaults
origin: linkedin/Liger-Kernel#974
shows: another index for tokens that do not count
words: ignore_index
"""
import torch

from perfguard import ids

def distilled(student, teacher, labels, ignore_index=-100):
    p, q = teacher.log_softmax(-1), student.log_softmax(-1)
    row = (p.exp() * (p - q)).sum(-1)
    keep = labels != ignore_index  # bad: keep = labels != -100
    return row.masked_fill(~keep, 0).sum() / keep.sum().clamp(min=1)

# ---- test ----
def reference(student, teacher, labels, ignore_index=-100):
    keep = labels != ignore_index
    p, q = teacher.log_softmax(-1), student.log_softmax(-1)
    row = torch.nn.functional.kl_div(q, p, reduction="none", log_target=True)
    return torch.where(keep, row.sum(-1), 0).sum() / keep.sum().clamp(min=1)

def test_distilled(perfguard):
    student = torch.randn(24, 50, device=perfguard.device, requires_grad=True)
    teacher = torch.randn(24, 50, device=perfguard.device)
    labels = torch.randint(50, (24,), device=perfguard.device)
    labels[::6] = -100
    perfguard(distilled, student, teacher, ids(labels, 50, ignored=-100), reference=reference)

# ---- shows ----
def shows():
    student, teacher, labels = torch.randn(24, 50), torch.randn(24, 50), torch.randint(3, (24,))
    return distilled(student, teacher, labels, 0), reference(student, teacher, labels, 0)
