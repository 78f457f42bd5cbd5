#!/usr/bin/env python3
"""Moves the blocks of transfer-bench through NIXL: `transfer-bench --peer "PYTHON bench/nixl_peer.py"`.

Needs the packages nixl-cu13 and numpy (no GPU, no torch: pip install --no-deps nixl-cu13 numpy). Rows, each READ (the
receiver drives) and WRITE (the sender drives, and its notification tells the receiver):

  nixl_read, nixl_write              over TCP, settings as shipped
  nixl_read_tuned, nixl_write_tuned  over TCP with UCX_TCP_TX_SEG_SIZE=256k and UCX_TCP_RX_SEG_SIZE=512k
  nixl_read_local, nixl_write_local  whatever UCX takes between two processes of one machine

A transfer is one request of all its pieces, out of lists of descriptors that were prepared when the two met, as
serving engines do it. Both sides poll without pause and without NIXL's own progress thread, which on few cores is what serves NIXL best. TCP runs in a
network namespace of the peer's own between two ends of a veth pair, with cubic: NIXL's UCX refuses the loopback device. How
transfer-bench speaks to a peer: docs/transfer-bench.md.
"""

import argparse
import base64
import json
import mmap
import os
import resource
import subprocess
import sys
import time

FLAVOURS = {
    "": {"UCX_TLS": "tcp"},
    "_tuned": {"UCX_TLS": "tcp", "UCX_TCP_TX_SEG_SIZE": "256k", "UCX_TCP_RX_SEG_SIZE": "512k"},
    "_local": {},
}
answers = sys.stdout
IN_NAMESPACE = "NIXL_PEER_IN_NAMESPACE"
NETWORK = """
mount -t sysfs sysfs /sys
ip link set lo up
ip link add bench0 type veth peer name bench1
ip address add 10.98.0.1/24 dev bench0
ip link set bench0 up
ip link set bench1 up
ip route replace local 10.98.0.1 dev bench0 table local proto kernel scope host src 10.98.0.1 congctl cubic
exec "$@"
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("blocks", "layers", "layer-bytes", "pool-blocks"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--cores-apart", action="store_true", help="sender on the first core, receiver on the last")
    parser.add_argument("--send", metavar="FLAVOUR", help=argparse.SUPPRESS)
    parser.add_argument("--receive", metavar="FLAVOUR", help=argparse.SUPPRESS)
    return parser.parse_args()


class Pool:
    """The blocks of one side, in huge pages, each page touched."""

    def __init__(self, shape: argparse.Namespace, side: int):
        self.shape, self.side = shape, side
        self.memory = mmap.mmap(-1, shape.pool_blocks * shape.layers * shape.layer_bytes)
        self.memory.madvise(mmap.MADV_HUGEPAGE)
        words = np.frombuffer(self.memory, dtype=np.uint64)
        words[:] = 0
        self.layers = words.reshape(shape.pool_blocks, shape.layers, shape.layer_bytes // 8)
        self.base = words.ctypes.data

    def scatter(self, number: int) -> "np.ndarray":
        return np.random.default_rng([number, self.side]).permutation(self.shape.pool_blocks)[: self.shape.blocks]

    def content(self, number: int, index: int) -> "np.ndarray":
        """What block `index` of transfer `number` holds; no two layers, blocks or transfers are alike."""
        shape = self.shape
        words = np.arange(shape.layers * shape.layer_bytes // 8, dtype=np.uint64)
        seed = np.uint64((number << 40) + (index << 20) + 1)
        return ((words + seed) * np.uint64(0x9E3779B97F4A7C15)).reshape(shape.layers, -1)

    def fill(self, number: int) -> None:
        for index, block in enumerate(self.scatter(number)):
            self.layers[block] = self.content(number, index)

    def holds(self, number: int) -> bool:
        return all(np.array_equal(self.layers[block], self.content(number, index))
                   for index, block in enumerate(self.scatter(number)))

    def pieces(self, piece: str, base: int) -> "np.ndarray":
        """Rows of (address, length, device): every piece of a pool that begins at `base`, block by block."""
        shape = self.shape
        count = shape.pool_blocks * (shape.layers if piece == "layer" else 1)
        length = shape.layer_bytes * (1 if piece == "layer" else shape.layers)
        rows = np.zeros((count, 3), dtype=np.uint64)
        rows[:, 0] = np.uint64(base) + np.arange(count, dtype=np.uint64) * np.uint64(length)
        rows[:, 1] = length
        return rows

    def indices(self, number: int, piece: str) -> list[int]:
        """Which rows of `pieces` transfer `number` moves, in its order."""
        blocks = self.scatter(number)
        if piece == "block":
            return blocks.tolist()
        return (np.arange(self.shape.layers)[:, None] + blocks[None, :] * self.shape.layers).reshape(-1).tolist()


class Side:
    """One process: a pool, its agent, and what it knows of the other."""

    def __init__(self, shape: argparse.Namespace, name: str, side: int):
        self.pool = Pool(shape, side)
        self.other_pool = Pool.__new__(Pool)  # to compute its places only
        self.other_pool.shape, self.other_pool.side = shape, 1 - side
        self.agent = nixl_agent(name, nixl_agent_config(enable_prog_thread=False))
        size = shape.pool_blocks * shape.layers * shape.layer_bytes
        self.agent.register_memory([(self.pool.base, size, 0, "")], "DRAM")

    def introduction(self) -> str:
        return json.dumps({"base": self.pool.base,
                           "metadata": base64.b64encode(self.agent.get_agent_metadata()).decode()})

    def meet(self, introduction: str) -> None:
        other = json.loads(introduction)
        self.other_base = other["base"]
        self.other_name = self.agent.add_remote_agent(base64.b64decode(other["metadata"]))
        if isinstance(self.other_name, bytes):
            self.other_name = self.other_name.decode()
        self.prepared = {
            piece: (self.agent.prep_xfer_dlist("", self.pool.pieces(piece, self.pool.base), "DRAM"),
                    self.agent.prep_xfer_dlist(self.other_name, self.pool.pieces(piece, self.other_base), "DRAM"))
            for piece in ("block", "layer")}

    def drive(self, operation: str, piece: str, number: int) -> float:
        """Runs a transfer to its end; the seconds that its posting took."""
        ours, theirs = self.pool.indices(number, piece), self.other_pool.indices(number, piece)
        start = time.perf_counter()
        ours_prepared, theirs_prepared = self.prepared[piece]
        handle = self.agent.make_prepped_xfer(operation, ours_prepared, ours, theirs_prepared, theirs, str(number).encode())
        state = self.agent.transfer(handle)
        posting = time.perf_counter() - start
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"{operation} ended with {state}")
        self.agent.release_xfer_handle(handle)
        return posting

    def await_notification(self, number: int) -> None:
        """Polling is what moves the bytes of a transfer that the other side drives."""
        deadline = time.monotonic() + 60
        while True:
            for messages in self.agent.get_new_notifs().values():
                if str(number).encode() in messages:
                    return
            if time.monotonic() > deadline:
                raise RuntimeError("no notification in a minute")


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def pin(arguments: argparse.Namespace, last: bool) -> None:
    if arguments.cores_apart:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[-1] if last else cores[0]})


def say(text: str) -> None:
    print(text, file=answers, flush=True)


def send(arguments: argparse.Namespace) -> None:
    pin(arguments, last=False)
    side = Side(arguments, "sender", 0)
    say(side.introduction())
    side.meet(sys.stdin.readline())
    for line in sys.stdin:
        operation, piece, number = line.split()
        side.pool.fill(int(number))
        say("ready")
        sys.stdin.readline()  # go
        cpu, posting = cpu_seconds(), 0.0
        if operation == "WRITE":
            posting = side.drive("WRITE", piece, int(number))
        else:
            side.await_notification(int(number))
        say(json.dumps({"posting_seconds": posting, "cpu_seconds": cpu_seconds() - cpu}))


def receive(arguments: argparse.Namespace) -> None:
    command = [sys.executable, __file__, *sys.argv[1:], "--send", arguments.receive]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as sender:
        pin(arguments, last=True)
        side = Side(arguments, "receiver", 1)
        introduction = sender.stdout.readline()
        sender.stdin.write(side.introduction() + "\n")
        side.meet(introduction)
        say("ready")
        for line in sys.stdin:
            operation, piece, number = line.split()
            sender.stdin.write(line)
            sender.stdout.readline()
            cpu, start, posting = cpu_seconds(), time.perf_counter(), 0.0
            sender.stdin.write("go\n")
            if operation == "READ":
                posting = side.drive("READ", piece, int(number))
            else:
                side.await_notification(int(number))
            seconds, used = time.perf_counter() - start, cpu_seconds() - cpu
            done = json.loads(sender.stdout.readline())
            say(json.dumps({"seconds": seconds, "posting_seconds": posting + done["posting_seconds"],
                            "sender_cpu_seconds": done["cpu_seconds"], "receiver_cpu_seconds": used,
                            "verified": side.pool.holds(int(number)),
                            "carrier": "ucx" if arguments.receive == "_local" else "tcp"}))
        sender.stdin.close()


def enter_network() -> None:
    """Starts this program again in a network namespace of its own with a veth pair."""
    os.environ[IN_NAMESPACE] = "1"
    os.execvp("unshare", ["unshare", "--net", "--mount", "sh", "-ec", NETWORK, "sh", sys.executable, __file__,
                          *sys.argv[1:]])


def serve() -> None:
    """What transfer-bench talks to: hands each request to the receiver of its row, started when first asked for.

    Every row has processes and pools of its own, as those of transfer-bench have: a pool that another row has just used is
    partly in the processor's cache."""
    receivers = {}
    say(json.dumps({"transports": [f"nixl_{operation}{flavour}" for flavour in FLAVOURS for operation in ("read", "write")]}))
    number = 0
    for line in sys.stdin:
        _, transport, piece, _ = line.split()
        operation = "READ" if transport.startswith("nixl_read") else "WRITE"
        if transport not in receivers:
            flavour = transport.removeprefix("nixl_read").removeprefix("nixl_write")
            receivers[transport] = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--receive", flavour],
                                                    env=os.environ | FLAVOURS[flavour], stdin=subprocess.PIPE,
                                                    stdout=subprocess.PIPE, text=True, bufsize=1)
            receivers[transport].stdout.readline()
        number += 1
        receivers[transport].stdin.write(f"{operation} {piece} {number}\n")
        say(receivers[transport].stdout.readline().strip() or json.dumps({"error": f"the receiver of {transport} has ended"}))
    for receiver in receivers.values():
        receiver.stdin.close()
        receiver.wait(timeout=10)


def main() -> None:
    arguments = parse_arguments()
    if arguments.send is None and arguments.receive is None:
        if IN_NAMESPACE not in os.environ:
            enter_network()
        serve()
        return
    global answers, np, nixl_agent, nixl_agent_config
    # NIXL logs to standard output, where only answers may go: from here on that is standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import numpy as np
    from nixl_cu13._api import nixl_agent, nixl_agent_config
    if arguments.send is not None:
        send(arguments)
    else:
        receive(arguments)


if __name__ == "__main__":
    main()
