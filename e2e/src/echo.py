"""Echoes what a gRPC stream, short gRPC calls, a WebSocket and a TCP connection send, or is their client until /memory/end.

For each, the client writes to /memory how many were echoed, and at last that all were, or the error.
"""

import os
import socket
import socketserver
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from websockets.sync.client import connect
from websockets.sync.server import serve

GRPC_PORT, WEBSOCKET_PORT, TCP_PORT = 50051, 8080, 9000


def echo(messages, _context):
    yield from messages


def echo_all(connection):
    for message in connection:
        connection.send(message)


class EchoLines(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)


class TcpServer(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6


def run_server():
    handlers = {
        "Stream": grpc.stream_stream_rpc_method_handler(echo),
        "Call": grpc.unary_unary_rpc_method_handler(lambda message, _context: message),
    }
    # A stream holds a thread until it ends.
    server = grpc.server(ThreadPoolExecutor(max_workers=32))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("echo", handlers)])
    server.add_insecure_port(f"[::]:{GRPC_PORT}")
    threading.Thread(target=TcpServer(("", TCP_PORT), EchoLines).serve_forever).start()
    listener = socket.create_server(("", WEBSOCKET_PORT), family=socket.AF_INET6, dualstack_ipv6=True)
    threading.Thread(target=serve(echo_all, sock=listener).serve_forever).start()
    # The pod is ready once this one listens, the last of the three.
    server.start()
    server.wait_for_termination()


def numbers():
    number = 0
    while not os.path.exists("/memory/end"):
        yield str(number)
        number += 1
        time.sleep(float(os.environ["SECONDS_BETWEEN"]))


def call(channel):
    return channel.unary_unary("/echo/Call")


def of_stream(channel):
    return channel.stream_stream("/echo/Stream")(number.encode() for number in numbers())


def of_calls(channel):
    return (call(channel)(number.encode()) for number in numbers())


def of_websocket(_channel):
    with connect(f"ws://echo:{WEBSOCKET_PORT}") as websocket:
        for number in numbers():
            websocket.send(number)
            yield websocket.recv()


def of_tcp(_channel):
    with socket.create_connection(("echo", TCP_PORT)) as connection, connection.makefile("rw") as lines:
        for number in numbers():
            print(number, file=lines, flush=True)
            yield lines.readline()


def report(name, echoes):
    file, count = Path("/memory", name), 0
    try:
        for echoed in echoes:
            assert int(echoed) == count, f"{echoed} is not {count}"
            count += 1
            file.write_text(f"{count}\n")
        file.write_text("all\n")
    except Exception as error:
        file.write_text(f"{error!r} after {count}\n")


def run_client():
    with grpc.insecure_channel(f"echo:{GRPC_PORT}") as channel, ThreadPoolExecutor() as threads:
        # Its own proxy may not know the server yet.
        while True:
            try:
                call(channel)(b"")
                break
            except grpc.RpcError:
                time.sleep(0.2)
        for name, of in {"stream": of_stream, "calls": of_calls, "websocket": of_websocket, "tcp": of_tcp}.items():
            threads.submit(report, name, of(channel))


run_server() if sys.argv[1] == "server" else run_client()
