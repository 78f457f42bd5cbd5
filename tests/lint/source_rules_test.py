"""Rules that a search through the sources can hold.

Argument: printing (none in libraries), sleeps (none in tests) or machine_paths (none anywhere).
"""

import re
import sys

import source_tree

# Libraries log; only programs and what serves a person print. check.cc prints because it ends the
# process, flags.cc answers --help, --version and wrong usage for every program.
PRINTING = re.compile(r"\b(?:printf|fprintf|vprintf|vfprintf|puts|fputs|putchar)\s*\(|"
                      r"\bstd::(?:cout|cerr|clog)\b")
MAY_PRINT = re.compile(r"(^|/)main\.cc$|^(client|tools|bench|tests)/|^common/(check|flags)\.cc$")

# A test waits for a condition with a deadline. The one helper that polls is in tests/support.
SLEEPING = re.compile(r"\b(?:sleep_for|sleep_until|usleep|nanosleep|SleepFor|sleep)\s*\(")
MAY_SLEEP = re.compile(r"^tests/support/wait_until\.(h|cc|py)$|^tests/lint/")

# Put together here so that this file does not break its own rule.
FOLDERS = ["work", "root", "tmp/w", "home/[a-z]+"]
MACHINE_PATH = re.compile("(?<![\\w.])/(?:" + "|".join(FOLDERS) + ")/")
TEXT_SUFFIXES = (".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".md", ".txt", ".cmake", ".json",
                 ".proto", ".yaml", ".toml")


def printing() -> list[str]:
    return [f"{path}:{number}: prints; libraries log: {line.strip()}"
            for path in source_tree.cpp_files() if not MAY_PRINT.search(str(path))
            for number, line in source_tree.code_lines(path) if PRINTING.search(line)]


def sleeps() -> list[str]:
    problems = []
    for path in source_tree.files(*source_tree.CPP_SUFFIXES, ".py", ".sh"):
        if path.parts[0] != "tests" or MAY_SLEEP.search(str(path)):
            continue
        is_cpp = path.suffix in source_tree.CPP_SUFFIXES
        lines = source_tree.code_lines(path) if is_cpp else source_tree.lines(path)
        problems += [f"{path}:{number}: sleeps, and does not wait for a condition: {line.strip()}"
                     for number, line in lines if SLEEPING.search(line)]
    return problems


def machine_paths() -> list[str]:
    return [f"{path}:{number}: names a path of one machine: {line.strip()[:100]}"
            for path in source_tree.files(*TEXT_SUFFIXES)
            for number, line in source_tree.lines(path) if MACHINE_PATH.search(line)]


RULES = {"printing": printing, "sleeps": sleeps, "machine_paths": machine_paths}


def main() -> None:
    source_tree.finish(RULES[sys.argv[1]](), sys.argv[1])


if __name__ == "__main__":
    main()
