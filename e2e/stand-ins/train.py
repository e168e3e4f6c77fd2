"""Fits y = 3x + 1 by gradient descent over all ranks of a PyTorchJob, each with samples of its own.

It is not PyTorch: what it shares with it is what the operator gives (MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE) and
what crosses the network. In every step each worker sends its gradient to the master and gets the mean of all.
"""

import json
import os
import random
import socket
import time

STEPS = 60
RATE = 0.5
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
port = int(os.environ["MASTER_PORT"])


def connected():
    """The master's connections to all workers, or a worker's to the master."""
    if rank == 0:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        server = socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6)
        return [greeted(server.accept()[0].makefile("rw")) for _ in range(ranks - 1)]
    until = time.monotonic() + 120
    while True:
        try:
            # A proxy accepts also where nobody listens yet, so the master has to answer.
            return [greeted(socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=5).makefile("rw"))]
        except (OSError, EOFError):
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def greeted(stream):
    send(stream, "hello")
    receive(stream)
    return stream


def send(stream, value):
    stream.write(json.dumps(value) + "\n")
    stream.flush()


def receive(stream):
    line = stream.readline()
    if not line:
        raise EOFError("the connection was closed")
    return json.loads(line)


def mean(streams, own):
    if rank != 0:
        send(streams[0], own)
        return receive(streams[0])
    all_of_them = [own] + [receive(stream) for stream in streams]
    result = [sum(values) / ranks for values in zip(*all_of_them)]
    for stream in streams:
        send(stream, result)
    return result


random.seed(rank)
samples = [(x, 3 * x + 1) for x in (random.uniform(-1, 1) for _ in range(2000))]
streams = connected()
slope, offset = 0.0, 0.0
for step in range(STEPS):
    errors = [(slope * x + offset - y, x) for x, y in samples]
    gradient = [2 * sum(e * x for e, x in errors) / len(errors), 2 * sum(e for e, _ in errors) / len(errors)]
    gradient = mean(streams, gradient)
    slope, offset = slope - RATE * gradient[0], offset - RATE * gradient[1]
print(f"rank {rank} of {ranks}: slope={slope:.3f} offset={offset:.3f} after {STEPS} steps", flush=True)
assert abs(slope - 3) < 0.01 and abs(offset - 1) < 0.01
