"""Holds every #include to the folders' dependency graph, and foreign headers to their adapters."""

import re

import source_tree

EVERYTHING = None
WORKER = {"common", "proto", "model", "kernels", "engine", "kvtransfer", "frontend"}

# Which folders a folder may include, beside itself.
MAY_INCLUDE = {
    "common": set(),
    "proto": {"common"},
    "model": {"common"},
    "kernels": {"common"},
    "engine": {"model", "kernels", "common"},
    "kvtransfer": {"common"},
    "kvtransfer/grpc_stream": {"common", "proto"},
    "planner": {"common"},
    # Of the program baton-plan, not of the library: it asks a router for its rates.
    "planner/router_client": {"common", "proto"},
    "planner/main": {"common", "proto"},
    "frontend": {"proto", "model", "common"},
    "worker": WORKER,
    "prefill_worker": WORKER | {"worker"},
    "decode_worker": WORKER | {"worker"},
    "router": {"proto", "model", "planner", "frontend", "common"},
    "client": {"proto", "common"},
    "tools": {"model", "common"},
    "bench": EVERYTHING,
    "tests": EVERYTHING,
}

# Headers that cost much or tie to a library, and the files that may name them.
ADAPTERS = [
    ("gRPC", re.compile(r"^(grpc|grpcpp|grpc\+\+)/|\.grpc\.pb\.h$"),
     re.compile(r"^(proto|bench|tests)/|(^|/)main\.cc$|"
                r"/[^/]*(service|client|reactor|server)[^/]*$")),
    ("UCX", re.compile(r"^(ucp|uct|ucs|ucm)/"),
     re.compile(r"^kvtransfer/ucx/|^bench/|^tests/kvtransfer/")),
    ("prometheus-cpp", re.compile(r"^prometheus/"),
     re.compile(r"^(bench|tests)/|/[^/]*metrics[^/]*\.cc$|/metric_families\.")),
    ("CUDA", re.compile(r"^(cuda|cublas|nv)[^/]*\.h$"),
     re.compile(r"^kernels/cuda/|^bench/|^tests/(kernels|gpu)/")),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


def rule_of(path) -> tuple[str, set | None]:
    folder = path.parts[0]
    nested = "/".join(path.with_suffix("").parts[:2])
    name = nested if nested in MAY_INCLUDE else folder
    return name, MAY_INCLUDE.get(name, set())


def folder_of(header: str) -> str:
    """The folder an included header belongs to; generated code belongs to proto."""
    return "proto" if header.endswith(".pb.h") else header.split("/")[0]


def check_file(path) -> list[str]:
    problems = []
    name, allowed = rule_of(path)
    if name not in MAY_INCLUDE:
        return [f"{path}: the folder {name} has no row in MAY_INCLUDE"]
    for match in INCLUDE.finditer(source_tree.read(path)):
        header = match.group(1) or match.group(2)
        target = folder_of(header)
        ours = target in MAY_INCLUDE and ("/" in header)
        permitted = allowed is EVERYTHING or target == path.parts[0] or target in allowed
        if ours and not permitted:
            problems.append(f"{path}: {name} may not include {header}")
        if match.group(1) and "/" not in header:
            problems.append(f"{path}: write {header} with its path from the root")
        for library, pattern, adapters in ADAPTERS:
            if pattern.search(header) and not adapters.search(str(path)):
                problems.append(f"{path}: {library} header {header} outside an adapter file")
    return problems


def main() -> None:
    paths = source_tree.cpp_files()
    problems = [problem for path in paths for problem in check_file(path)]
    source_tree.finish(problems, f"includes of {len(paths)} files")


if __name__ == "__main__":
    main()
