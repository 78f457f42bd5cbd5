"""Reads what the machine of run.sh has said on its console and decides whether all of it is as it should be.

Arguments: the console's text, and the answer that a single process on this machine gave as JSON.
"""

import json
import re
import sys

CARRIER = "rc_verbs"
TRANSPORT = "rdma"  # what auto takes there
EXPECTED_TESTS = ["rc_v,self", "rc_v,tcp,self"]


def tokens_of(answer: dict) -> list[int]:
    return answer["choices"][0]["token_ids"]


def check_tests(console: str) -> list[str]:
    problems = []
    for tls in EXPECTED_TESTS:
        part = re.search(rf"^BATON tests begin {re.escape(tls)}$(.*?)^BATON tests end {re.escape(tls)} code (\d+)$",
                         console, re.MULTILINE | re.DOTALL)
        if part is None:
            problems.append(f"transfer tests over {tls}: they did not end")
            continue
        passed = re.search(r"\[  PASSED  \] (\d+) tests?\.", part.group(1))
        if part.group(2) != "0" or passed is None or int(passed.group(1)) == 0:
            problems.append(f"transfer tests over {tls}: exit code {part.group(2)}")
        elif "SKIPPED" in part.group(1):
            problems.append(f"transfer tests over {tls}: some were skipped")
        else:
            print(f"transfer tests over {tls}: {passed.group(1)} passed, carried by {CARRIER}")
    return problems


def check_completion(console: str, here: dict) -> list[str]:
    line = re.search(r"^BATON completion (\{.*\})$", console, re.MULTILINE)
    if line is None:
        return ["there is no completion"]
    answer = json.loads(line.group(1))
    timeline = answer["timeline"]
    problems = []
    if timeline["path"] != "PATH_DISAGGREGATED" or timeline["transport"] != TRANSPORT:
        problems.append(f"the completion went by {timeline['path']} and {timeline['transport']!r}, not {TRANSPORT}")
    if not re.search(rf"^BATON peer.connected .*transport={TRANSPORT} carrier={CARRIER} ", console, re.MULTILINE):
        problems.append(f"no endpoint reports {TRANSPORT} over {CARRIER}")
    ours, theirs = tokens_of(here), tokens_of(answer)
    if not ours or ours != theirs:
        problems.append(f"other tokens than in one process here: {ours} here, {theirs} there")
    else:
        print(f"completion: {len(ours)} tokens, the same as in one process here; read by {TRANSPORT} over {CARRIER}")
    return problems


def main() -> int:
    with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
        console = file.read().replace("\r", "")
    with open(sys.argv[2], encoding="utf-8") as file:
        here = json.load(file)
    problems = re.findall(r"^BATON problem: .*$", console, re.MULTILINE)
    if not re.search(r"^BATON device: .*rxe0/1 state ACTIVE", console, re.MULTILINE):
        problems.append("there was no active soft-RoCE device")
    problems += check_tests(console) + check_completion(console, here)
    if not re.search(r"^BATON end$", console, re.MULTILINE):
        problems.append("the machine did not come to the end of its tests")
    for problem in problems:
        print(f"problem: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
