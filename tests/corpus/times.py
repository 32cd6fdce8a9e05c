"""Of section 1.1: what times alone tell; on a CPU, and on the simulated GPU."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.planting import Append, Change, Edit, Expect, Mutant, Rewrite

SUITE, OPS = "test_simulated.py", "kernels/fp8/ops.py"
BASELINE = "baselines/fake-gpu/test_simulated.yaml"
ANOTHER_DRIVER = Edit(BASELINE, "driver: fake-1", "driver: fake-0")
RECORDED_ELSEWHERE = Edit(BASELINE, "driver: fake-1", "driver: fake-1, board: fake-a")
OTHER_CODE = Edit(SUITE, 'CODE = {"odd": "one"}', 'CODE = {"odd": "two"}')

DISTURBED = """
import random
from perfguard.testing import fake


class Disturbed(fake.FakeDevice.func):
    slowdown = property(lambda device: 20.0 if random.random() < 1 / 40 else 1.0)
"""

BUSY = """
import os
import subprocess
import sys

BURNERS = []


def pytest_sessionstart():
    line = [sys.executable, "-c", "while True: pass"]
    BURNERS.extend(subprocess.Popen(line) for _ in range(os.cpu_count()))


def pytest_sessionfinish():
    for burner in BURNERS:
        burner.kill()
"""


def costs(factor: float) -> Change:
    """The odd kernel's time, with other code."""
    return Edit(SUITE, "us=TILE_US * tiles(len(x))", f'us=TILE_US * tiles(len(x)) * ({factor} if kind == "odd" else 1)')


def all_cost(factor: str) -> tuple[Change, ...]:
    """Every kernel's time, with other code; `factor`: an expression of `x`, what the kernel is called with."""
    return (
        OTHER_CODE,
        Edit(SUITE, 'CODE.get(kind, "usual")', 'CODE.get(kind, "another")'),
        Edit(SUITE, "us=TILE_US * tiles(len(x))", f"us=TILE_US * tiles(len(x)) * ({factor})"),
    )


def on_device(*statements: str) -> Change:
    """What holds of `device` during the run, and in every fresh process of it; `item` is the test."""
    return Append(
        "conftest.py",
        """
import msgspec
from perfguard.testing import fake


def pytest_runtest_setup(item):
    device = fake.current()
    if device is not None:
        """
        + "\n        ".join(statements)
        + "\n",
    )


def machine(slowdown: float, clock: int, *throttled: str) -> Change:
    """The device as it is now."""
    state = f"clock_mhz={clock}, throttle_reasons={list(throttled)}"
    return on_device(f"device.slowdown = {slowdown}", f"device.state = msgspec.structs.replace(device.state, {state})")


def another_board(odd: float) -> Change:
    """Each case takes another time on it, for no reason of its own, in every process; the odd one `odd` times."""
    factors = dict(zip("012345", (0.985, 1.015, 0.99, 1.012, 0.996, 1.01), strict=True))
    number = 'item.name.partition("[")[2][:1]'
    return on_device(f"device.slowdown = {factors}.get({number}, {odd})", 'device.board = "fake-b"')


def wild_session(root: Path) -> None:
    """One of the stored sessions of every time is half as long again."""

    def wild(found: re.Match[str]) -> str:
        first, *others = found[1].split(", ")
        return f"sessions: [{float(first) * 1.5:.4g}, {', '.join(others)}]"

    Rewrite(BASELINE, r"sessions: \[([^\]]+)\]", wild, times=None)(root)


def event(name: str, seen: str, changes: tuple[Change, ...], expect: Expect, given: tuple[Change, ...] = ()) -> Mutant:
    return Mutant(f"event: {name}", ("K37",), seen, "simulated", changes, {"S": expect}, given=given)


MUTANTS = [
    Mutant(
        name="few rows go down a serial path",
        classes=("K03",),
        imitates="ROCm/triton#970 (M = 1, +47 %), vllm#39236 (batch 1, > 30 %): decoding only",
        suite="timed",
        apply=(
            Edit(
                OPS,
                "            found = truth(*inputs, dtype=dtype, **{flag: flagged})\n",
                "            if name == 'rowwise' and len(inputs[0]) <= 8:\n"
                "                parts = [truth(row[None], dtype=dtype, **{flag: flagged}) for row in inputs[0]]\n"
                "                codes = torch.cat([part[0].view(torch.uint8) for part in parts])\n"
                "                codes = codes.view(parts[0][0].dtype)\n"
                "                return codes, _stored(torch.cat([part[1] for part in parts]), any(inverse))\n"
                "            found = truth(*inputs, dtype=dtype, **{flag: flagged})\n",
            ),
            Edit(
                OPS,
                "    launch.launch_rows(x_MK, *results, how)\n",
                "    one_by_one = [slice(row, row + 1) for row in range(len(x_MK))]\n"
                "    for rows in one_by_one if len(x_MK) <= 8 else [slice(None)]:\n"
                "        launch.launch_rows(x_MK[rows], *(result[rows] for result in results), how)\n",
            ),
        ),
        shown={
            "C": Expect("SLOWER", "cpu_time_us", cases=("rows[8]/forward",), also=("peak_*_bytes", "operators")),
            "G": Expect("CHANGED", "launches", cases=("rows[8]/forward",), also=("*",)),
        },
    ),
    Mutant(
        name="the smallest size alone takes half as long again",
        classes=("K03",),
        imitates="ROCm/triton#970 (M = 1, +47 %), vllm#39236 (batch 1, > 30 %): decoding only",
        suite="simulated",
        apply=all_cost("1.5 if len(x) <= 100 else 1"),
        shown={
            "S": Expect(
                "SLOWER",
                "device_time_us",
                cases=("usual[0]/forward", "odd/forward"),
                says=("process pairs",),
                effect=1.5,
            )
        },
    ),
    Mutant(
        name="four per cent more tiles of work",
        classes=("K16",),
        imitates="DeepGEMM#136 (5 %), FBGEMM#4719 (4 %), Primus#1022 (6 %): a small drift",
        suite="simulated",
        apply=(OTHER_CODE, costs(1.04)),
        shown={
            "S": Expect(
                "SLOWER",
                "device_time_us",
                cases=("odd/forward",),
                says=("process pairs", ", 95 % +"),
                effect=1.04,
            )
        },
    ),
    Mutant(
        name="every kernel a fifth slower",
        classes=("K16",),
        imitates="Primus#1022 (two releases shipped at -6 %)",
        suite="simulated",
        apply=all_cost("1.2"),
        shown={"S": Expect("SLOWER", "device_time_us", cases=("*",), says=("process pairs",), effect=1.2)},
    ),
    Mutant(
        name="half of the kernels slower by a tenth, half faster",
        classes=("K16",),
        imitates="FI#3935 (0 % at 4 K, -11 % at 131 K): what a change does hangs on the size",
        suite="simulated",
        apply=all_cost("1.1 if len(x) % 2 else 0.9"),
        shown={
            "S": Expect(
                "SLOWER",
                "device_time_us",
                cases=tuple(f"usual[{number}]/forward" for number in (1, 3, 5)),  # 101, 103, 105 rows
                says=("process pairs",),
                others={"usual[0]/*": "FASTER", "usual[2]/*": "FASTER", "usual[4]/*": "FASTER", "odd/*": "FASTER"},
                effect=1.1,
            )
        },
    ),
    Mutant(
        name="another driver, and a kernel slower by a fifth",
        classes=("K16",),
        imitates="intel-xpu-backend#7834, with a change of the kernel beside it",
        suite="simulated",
        apply=(ANOTHER_DRIVER, OTHER_CODE, costs(1.2)),
        shown={
            "S": Expect("SLOWER", "device_time_us", cases=("odd/forward",), says=("process pairs",), effect=1.2)
        },
    ),
    Mutant(
        name="50 µs of Python in the wrapper",
        classes=("K09",),
        imitates="FI#709, FA#2818 (20 to 90 µs a call), triton#9833: the host, not the device",
        suite="simulated",
        apply=(Edit(SUITE, "host_us=HOST_US", 'host_us=HOST_US + (50 if kind == "odd" else 0)'),),
        shown={"S": Expect("SLOWER", "host_time_us", cases=("odd/forward",))},
    ),
    Mutant(
        name="50 µs of Python around a real launch",
        classes=("K09",),
        imitates="FI#709, FA#2818 (20 to 90 µs a call)",
        suite="timed",
        apply=(
            Edit(
                OPS,
                '    require_floats(x, "x", ndim=2)\n    return rowwise(',
                "    import time\n\n"
                "    start = time.perf_counter()\n"
                "    while time.perf_counter() - start < 50e-6:\n        pass\n"
                '    require_floats(x, "x", ndim=2)\n    return rowwise(',
            ),
        ),
        shown={"G": Expect("SLOWER", "host_time_us")},
        open={
            "G": "on the H200 at hand, a virtual machine's, host times vary between processes by 10 to 30 % (standard "
            "deviation); a third more cannot be told from that"
        },
    ),
    Mutant(
        name="event: another process on every core",
        classes=("K37",),
        imitates="triton#6066: a busy host",
        suite="timed",
        apply=(),
        given=(Append("conftest.py", BUSY),),
        shown={"G": Expect("UNCHANGED", "device_time_us")},
    ),
    event(
        "other code of all kernels, the same times", "-", all_cost("1"), Expect("PASS", "device_time_us", cases=("*",)),
    ),
    event(
        "the machine is 2 % slower than at the recording", "nvbench#231", (OTHER_CODE,),
        Expect("PASS", "device_time_us", cases=("odd/forward",)), (machine(1.02, 980),),
    ),
    event(
        "clocks lower by 5 %, other code at the same speed", "Fuser#1075, nvbench#231", (OTHER_CODE,),
        Expect("PASS", "device_time_us", cases=("odd/forward",)), (machine(1.05, 950),),
    ),
    event(
        "thermal slowdown of all, other code elsewhere", "nvbench#231", (Append("kernels/moe/router.py", "# New."),),
        Expect(
            "UNCHANGED", "device_time_us", cases=("*",),
            says=("is as recorded, so the machine: clocks 1000 -> 700 MHz, throttled: thermal",),
        ),
        (machine(1.3, 700, "thermal"),),
    ),
    event(
        "thermal slowdown of all, nothing else", "nvbench#231", (),
        Expect("UNCHANGED", "device_time_us", cases=("*",)), (machine(1.3, 700, "thermal"),),
    ),
    event(
        "another board, other code at the same speed", "torch's grouped matmul on another H200: +1.7 %, each time",
        (OTHER_CODE, RECORDED_ELSEWHERE), Expect("PASS", "device_time_us", cases=("odd/forward",)),
        (another_board(1.025),),
    ),
    event(
        "one wild call in forty", "tilelang#3182 (rows as low as 0.044x in 7 of 33 reports)", (OTHER_CODE,),
        Expect("PASS", "device_time_us", cases=("odd/forward",)),
        (Append("conftest.py", DISTURBED), on_device("device.__class__ = Disturbed")),
    ),
    event(
        "one wild session among the stored", "tilelang#3182", (OTHER_CODE, wild_session),
        Expect("PASS", "device_time_us", cases=("odd/forward",)),
    ),
    event(
        "another driver", "intel-xpu-backend#7834", (ANOTHER_DRIVER,),
        Expect("UNCHANGED", "device_time_us", cases=("*",), says=("the working tree is ",)),
    ),
    event(
        "a genuine speed-up", "triton#2476: the gate failed because results were faster", (OTHER_CODE, costs(0.8)),
        Expect("FASTER", "device_time_us", cases=("odd/forward",), effect=0.8),
    ),
    Mutant(
        "event: another module, times of a CPU", ("K37",), "-", "timed",
        (Append("kernels/moe/router.py", "# New."),),
        {"C": Expect("PASS", "cpu_time_us", cases=("*",))},
    ),
]  # fmt: skip
