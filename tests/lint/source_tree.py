"""Finds and reads the sources that the lints look at."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPP_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}

# Comments and literals, so that neither can look like code. Raw strings come first: they hold
# quotes. A quote after a digit separates digits.
_NOT_CODE = re.compile(r'''R"(?P<d>[^(\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|'''
                       r'''(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|//[^\n]*|/\*.*?\*/''', re.DOTALL)


def files(*suffixes: str) -> list[pathlib.Path]:
    """Files with one of the suffixes, sorted, relative to ROOT; no build trees, nothing hidden."""
    found = []
    for path in ROOT.rglob("*"):
        relative = path.relative_to(ROOT)
        hidden = any(part.startswith(".") for part in relative.parts)
        ours = not hidden and relative.parts[0] != "build"
        if ours and path.suffix in suffixes and path.is_file():
            found.append(relative)
    return sorted(found)


def cpp_files() -> list[pathlib.Path]:
    return files(*CPP_SUFFIXES)


def read(path: pathlib.Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def lines(path: pathlib.Path) -> list[tuple[int, str]]:
    """(line number, line) of a text file."""
    return list(enumerate(read(path).split("\n"), start=1))


def code_lines(path: pathlib.Path) -> list[tuple[int, str]]:
    """(line number, line) of a C++ file with comments and the inside of literals blanked."""
    blanked = _NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), read(path))
    return list(enumerate(blanked.split("\n"), start=1))


def finish(problems: list[str], checked: str) -> None:
    """Ends the program with the problems found."""
    for problem in problems:
        print(problem)
    print(f"{checked}: {len(problems)} problems")
    sys.exit(1 if problems else 0)
