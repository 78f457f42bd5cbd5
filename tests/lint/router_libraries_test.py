"""The router links no UCX, no CUDA, and nothing of engine, kernels and kvtransfer.

Arguments: the router's program, then the static libraries whose code must not be in it.
"""

import re
import subprocess
import sys

import source_tree

FORBIDDEN_LIBRARY = re.compile(r"^lib(uc[pstm]|cuda|cudart|cublas|nvrtc|rdmacm|ibverbs)\b")
# Functions with strong definitions; weak ones are inline code that any user of a shared header has.
STRONG_FUNCTION = "T"


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def functions(binary: str) -> set[str]:
    symbols = set()
    for line in run("nm", "--defined-only", "--format=posix", binary).split("\n"):
        fields = line.split()
        if len(fields) >= 2 and fields[1] == STRONG_FUNCTION:
            symbols.add(fields[0])
    return symbols


def main() -> None:
    router, archives = sys.argv[1], sys.argv[2:]
    problems = []
    for line in run("ldd", router).split("\n"):
        library = line.strip().split(" ")[0]
        if FORBIDDEN_LIBRARY.search(library):
            problems.append(f"{router} needs {library}")
    own = functions(router)
    assert own, f"{router} shows no functions"
    for archive in archives:
        shared = sorted(functions(archive) & own)
        if shared:
            problems.append(f"{router} holds {len(shared)} functions of {archive}, "
                            f"{shared[0]} among them")
    source_tree.finish(problems, "libraries of the router")


if __name__ == "__main__":
    main()
