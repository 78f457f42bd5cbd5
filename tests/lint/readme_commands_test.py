"""Every program, script, preset and file that a README names exists. Argument: the build folder."""

import json
import pathlib
import re
import sys

import source_tree

BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LOCAL_COMMAND = re.compile(r"(?:^|[\s;&|(])(\./[\w./-]+|(?:scripts|\.ci)/[\w./-]+)")
PROGRAM = re.compile(r"build/\w+/bin/([\w-]+)")
PRESET = re.compile(r"--preset[ =](\w+)")
FLAG_OF_SCRIPT = re.compile(r"\./(quickstart|test)\.sh((?:\s+--?[\w-]+)+)")
# `folder/name.ext` in backquotes, as the text names files.
NAMED_FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:h|cc|py|sh|proto|md|cmake|json))`")


def configure_presets() -> set[str]:
    presets = json.loads(source_tree.read(pathlib.Path("CMakePresets.json")))["configurePresets"]
    return {preset["name"] for preset in presets}


def check_commands(path: pathlib.Path, commands: str, binary_folder: pathlib.Path) -> list[str]:
    problems = []
    for name in LOCAL_COMMAND.findall(commands):
        if not name.startswith("./build/") and not (source_tree.ROOT / name).is_file():
            problems.append(f"{path}: the command {name} does not exist")
    for name in PROGRAM.findall(commands):
        if not (binary_folder / "bin" / name).is_file():
            problems.append(f"{path}: the program {name} was not built")
    for name in PRESET.findall(commands):
        if name not in configure_presets():
            problems.append(f"{path}: no preset {name}")
    for script, flags in FLAG_OF_SCRIPT.findall(commands):
        text = source_tree.read(pathlib.Path(f"{script}.sh"))
        problems += [f"{path}: {script}.sh has no flag {flag}"
                     for flag in flags.split() if flag + ")" not in text]
    return problems


def main() -> None:
    binary_folder = pathlib.Path(sys.argv[1])
    paths = [path for path in source_tree.files(".md") if path.name == "README.md"]
    assert pathlib.Path("README.md") in paths
    problems = []
    for path in paths:
        text = source_tree.read(path)
        problems += check_commands(path, "\n".join(BLOCK.findall(text)), binary_folder)
        for name in NAMED_FILE.findall(BLOCK.sub("", text)):
            places = [source_tree.ROOT / name, source_tree.ROOT / path.parent / name]
            if not any(place.is_file() for place in places):
                problems.append(f"{path}: names {name}, which does not exist")
    source_tree.finish(problems, f"commands and files of {len(paths)} READMEs")


if __name__ == "__main__":
    main()
