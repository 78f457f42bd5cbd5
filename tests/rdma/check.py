"""Reads what the machine of run.sh has said on its console and decides whether all of it is as it should be.

Arguments: the console's text, and the answer that a single process on this machine gave as JSON.
"""

import json
import re
import sys

CARRIER = "rc_verbs"
TRANSPORT = "rdma"  # what auto takes there
EXPECTED_TESTS = [r"\rc_verbs,self", r"\rc_verbs,tcp,self"]


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


def check_completion(console: str, here: dict, name: str, by_rdma: bool | None = None) -> list[str]:
    """`by_rdma`: whether RDMA must have carried its blocks, or must not; None: either will do."""
    line = re.search(rf"^BATON {name} (\{{.*\}})$", console, re.MULTILINE)
    if line is None:
        return [f"{name}: there is none"]
    answer = json.loads(line.group(1))
    transport = answer["timeline"]["transport"]
    problems = []
    if by_rdma is not None and (transport == TRANSPORT) != by_rdma:
        problems.append(f"{name}: its blocks came by {transport!r}")
    ours, theirs = tokens_of(here), tokens_of(answer)
    if not ours or ours != theirs:
        problems.append(f"{name}: other tokens than in one process here: {ours} here, {theirs} there")
    else:
        path = answer["timeline"]["path"]
        print(f"{name}: {len(ours)} tokens, the same as in one process here; {path}, blocks by {transport or 'nothing'}")
    return problems


def check_completions(console: str, here: dict) -> list[str]:
    problems = check_completion(console, here, "completion", by_rdma=True)
    if not re.search(rf"^BATON peer.connected .*transport={TRANSPORT} carrier={CARRIER} ", console, re.MULTILINE):
        problems.append(f"no endpoint reports {TRANSPORT} over {CARRIER}")
    if not re.search(r"^BATON down: .*rxe0/1 state DOWN", console, re.MULTILINE):
        problems.append("the RDMA port did not go down")
    problems += check_completion(console, here, "completion without a link", by_rdma=False)
    problems += check_completion(console, here, "completion with the link back")
    return problems


def main() -> int:
    with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
        console = file.read().replace("\r", "")
    with open(sys.argv[2], encoding="utf-8") as file:
        here = json.load(file)
    problems = re.findall(r"^BATON problem: .*$", console, re.MULTILINE)
    if not re.search(r"^BATON device: .*rxe0/1 state ACTIVE", console, re.MULTILINE):
        problems.append("there was no active soft-RoCE device")
    problems += check_tests(console) + check_completions(console, here)
    if not re.search(r"^BATON end$", console, re.MULTILINE):
        problems.append("the machine did not come to the end of its tests")
    for problem in problems:
        print(f"problem: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
