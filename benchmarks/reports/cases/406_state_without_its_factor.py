"""A selective scan of each channel; factors of its inputs may be the same for all tokens. Returns the last state, too.

kind: numbers of dimensions
origin: state-spaces/mamba#371
shows: the last state if factors are the same for all tokens
words: argument 3|dimensions?|ndim|output 1
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _scan(u, delta, a, b, c, out, last, dim, tokens, states, VARIES: tl.constexpr, STATES: tl.constexpr):
    batch, channel, lane = tl.program_id(0), tl.program_id(1), tl.arange(0, STATES)
    inside = lane < states
    rate = tl.load(a + channel * states + lane, mask=inside, other=0.0)
    # The factor is left out of the state where it can be multiplied once, into what is read.
    fixed = tl.load(b + channel * states + lane, mask=inside & (VARIES == 0), other=0.0)
    state = tl.zeros((STATES,), dtype=tl.float32)
    for token in range(tokens):
        at = (batch * dim + channel) * tokens + token
        step = tl.load(delta + at)
        read = tl.load(c + (batch * states + lane) * tokens + token, mask=inside, other=0.0)
        put = tl.zeros((STATES,), dtype=tl.float32) + step * tl.load(u + at)
        if VARIES:
            put *= tl.load(b + (batch * states + lane) * tokens + token, mask=inside, other=0.0)
        else:
            read *= fixed
        state = state * tl.exp(step * rate) + put
        tl.store(out + at, tl.sum(state * read, 0))
    if VARIES == 0:
        state *= fixed  # bad: state *= 1.0
    tl.store(last + (batch * dim + channel) * states + lane, state, mask=inside)

def scan(u, delta, a, b, c):
    u, delta, a, b, c = (each.contiguous() for each in (u, delta, a, b, c))
    batch, dim, tokens = u.shape
    states = a.shape[1]
    out, last = torch.empty_like(u), u.new_zeros(batch, dim, states)
    if last.numel():
        _scan[(batch, dim)](
            u, delta, a, b, c, out, last, dim, tokens, states,
            VARIES=int(b.ndim == 3), STATES=triton.next_power_of_2(states),
        )
    return (out if states else out.zero_()), last

# ---- test ----
def reference(u, delta, a, b, c):
    state, made = u.new_zeros(u.shape[0], u.shape[1], a.shape[1]), []
    for t in range(u.shape[2]):
        factor = b[:, None, :, t] if b.ndim == 3 else b[None]
        step = delta[:, :, t, None]
        state = state * torch.exp(step * a) + step * factor * u[:, :, t, None]
        made.append((state * c[:, None, :, t]).sum(-1))
    return (torch.stack(made, -1) if made else torch.empty_like(u)), state

def test_scan(perfguard):
    u, delta = torch.randn(2, 6, 20, device=perfguard.device), torch.rand(2, 6, 20, device=perfguard.device)
    a = -torch.rand(6, 8, device=perfguard.device) - 0.5
    b, c = torch.randn(2, 2, 8, 20, device=perfguard.device)
    perfguard(scan, u, delta, a, b, c, reference=reference)

# ---- shows ----
def shows():
    u, delta, a, b = torch.randn(1, 3, 5), torch.rand(1, 3, 5), -torch.rand(3, 4), torch.randn(3, 4)
    c = torch.randn(1, 4, 5)
    return scan(u, delta, a, b, c)[1], reference(u, delta, a, b, c)[1]
