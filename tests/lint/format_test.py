"""clang-format 14 would change nothing.

Exits 77, which ctest shows as skipped, where version 14 is not installed.
"""

import shutil
import subprocess
import sys

import source_tree

SKIPPED = 77


def find_clang_format() -> str | None:
    for name in ("clang-format-14", "clang-format"):
        program = shutil.which(name)
        if program:
            version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
            if " 14." in version:
                return program
    return None


def main() -> None:
    program = find_clang_format()
    if program is None:
        print("skipped: clang-format 14 is not installed (Debian package clang-format-14)")
        sys.exit(SKIPPED)
    paths = source_tree.cpp_files()
    # One diagnostic per line that is off would be long: the names say whom to format.
    command = [program, "--dry-run", "-Werror", "--ferror-limit=1", *map(str, paths)]
    result = subprocess.run(command, cwd=source_tree.ROOT, capture_output=True, text=True)
    off = sorted({line.split(":")[0] for line in result.stderr.split("\n") if "error:" in line})
    problems = [f"{path}: run {program.split('/')[-1]} -i on it" for path in off]
    if result.returncode != 0 and not off:
        problems.append(result.stderr)
    source_tree.finish(problems, f"format of {len(paths)} files")


if __name__ == "__main__":
    main()
