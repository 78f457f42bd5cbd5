"""Prints a response of `baton complete --json` for a person: text, path, reason, time line."""

import json
import sys

# In the order in which they happen; overlapping ones stand beside each other.
STAGES = ["queue", "tokenize", "route", "prefill", "transfer", "exposed_transfer",
          "time_to_first_token", "decode", "total"]
# Meaningful only where something was handed over.
TRANSFER_STAGES = {"transfer", "exposed_transfer"}


def milliseconds(value) -> float:
    """Durations are seconds, as a number or as protobuf's "1.5s"."""
    return 1000 * float(str(value).rstrip("s"))


def name(value: str, prefix: str) -> str:
    return str(value).removeprefix(prefix).lower().replace("_", " ")


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        response = json.load(file)
    usage, timeline = response["usage"], response["timeline"]
    for choice in response["choices"]:
        print("   text:   ", json.dumps(choice["text"], ensure_ascii=False))
    transport = timeline.get("transport")
    print("   path:   ", name(timeline["path"], "PATH_") + (f" over {transport}" if transport else ""),
          f"({name(timeline['reason'], 'ROUTE_REASON_')})")
    print("   tokens: ", usage["prompt_tokens"], "in,", usage["completion_tokens"], "out")
    stages = [stage for stage in STAGES
              if stage in timeline and (transport or stage not in TRANSFER_STAGES)]
    times = [f"{stage.replace('_', ' ')} {milliseconds(timeline[stage]):.1f}" for stage in stages]
    print("   ms:     ", ", ".join(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
