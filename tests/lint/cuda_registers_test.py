"""Prints what ptxas reported about every kernel, and holds attention to no spills.

Arguments: the objects of baton_cuda_kernels, beside which the build has kept the reports as OBJECT.ptxas.
Exit code 77, a visible skip, where there are none because the build has no nvcc.
"""

import pathlib
import re
import subprocess
import sys

ARCHITECTURES = ["sm_80", "sm_90"]
MUST_NOT_SPILL = re.compile("attention", re.IGNORECASE)

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\d+)'")
PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


class Kernel:
    def __init__(self, symbol: str, architecture: str, source: str) -> None:
        self.symbol = symbol
        self.architecture = architecture
        self.source = source
        self.name = symbol
        self.stack = self.spill_stores = self.spill_loads = self.registers = None
        self.shared = 0

    def spills(self) -> int:
        return self.spill_stores + self.spill_loads


def read_report(path: pathlib.Path) -> list[Kernel]:
    source = path.name.removesuffix(".ptxas").removesuffix(".o")
    kernels = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := ENTRY.search(line):
            kernels.append(Kernel(match.group(1), match.group(2), source))
        elif kernels and (match := PROPERTIES.search(line)) and kernels[-1].stack is None:
            kernels[-1].stack, kernels[-1].spill_stores, kernels[-1].spill_loads = map(
                int, match.groups())
        elif kernels and (match := USED.search(line)):
            kernels[-1].registers = int(match.group(1))
            if shared := SHARED.search(line):
                kernels[-1].shared = int(shared.group(1))
    return kernels


def demangle(kernels: list[Kernel]) -> None:
    """Gives kernels the name in the source: without namespaces and parameters."""
    symbols = "\n".join(kernel.symbol for kernel in kernels)
    names = subprocess.run(["c++filt"], input=symbols, capture_output=True, text=True,
                           check=True).stdout.splitlines()
    for kernel, name in zip(kernels, names):
        name = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|baton::(?:\w+::)*|^void ", "", name)
        depth_zero = re.sub(r"\((?:int|bool|[\w:]+)\)(?=-?\w)", "", name)  # casts of template arguments
        kernel.name = depth_zero.split("(")[0]


def problems_of(kernels: list[Kernel]) -> list[str]:
    problems = []
    for kernel in kernels:
        if kernel.registers is None or kernel.stack is None:
            problems.append(f"{kernel.source}: the report of {kernel.name} is not whole")
        elif MUST_NOT_SPILL.search(kernel.source + kernel.name) and kernel.spills() > 0:
            problems.append(f"{kernel.source}: {kernel.name} spills on {kernel.architecture}: "
                            f"{kernel.spill_stores} bytes stored, {kernel.spill_loads} loaded")
    for architecture in ARCHITECTURES:
        if not any(MUST_NOT_SPILL.search(kernel.source + kernel.name)
                   for kernel in kernels if kernel.architecture == architecture):
            problems.append(f"no attention kernel is reported for {architecture}")
    return problems


def main() -> None:
    objects = [argument for argument in sys.argv[1:] if argument]
    if not objects:
        print("skipped: this build has no nvcc, so that nothing is known about registers")
        sys.exit(77)
    kernels, problems = [], []
    for item in objects:
        report = pathlib.Path(item + ".ptxas")
        if report.exists():
            kernels += read_report(report)
        else:
            problems.append(f"{report.name} is missing: build baton_cuda_kernels first")
    if kernels:
        demangle(kernels)
    print(f"{'kernel':58} {'for':6} {'registers':>9} {'stack':>6} {'spilt':>6} {'shared':>7}")
    for kernel in sorted(kernels, key=lambda each: (each.source, each.name, each.architecture)):
        if kernel.registers is not None and kernel.stack is not None:
            print(f"{kernel.name:58} {kernel.architecture:6} {kernel.registers:9} {kernel.stack:6} "
                  f"{kernel.spills():6} {kernel.shared:7}")
    problems += problems_of(kernels)
    for problem in problems:
        print(problem)
    print(f"{len(kernels)} kernels: {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
