"""Measure how fast a link between two hosts really is."""

from __future__ import annotations

import socket
import threading
import time

from ..launch import LaunchError
from . import linux
from .network import Network
from .rates import format_rate

SAFE = 200_000_000  # bits per second that any machine's processor moves: not worth a look
SECONDS = 0.1
ATTEMPTS = 5
ENOUGH = 0.9  # of the rate; headers take 0.044 of it


def check_reach(network: Network) -> None:
    """Raise LaunchError if two hosts of the network cannot make use of its rate."""
    if network.rate <= SAFE or len(network.names) < 2:
        return
    best = 0.0
    for _ in range(ATTEMPTS):  # something else may have had the processor
        best = max(best, bits_per_second(network, SECONDS))
        if best >= ENOUGH * network.rate:
            return
    raise LaunchError(f"the rate {format_rate(network.rate)} is more than this machine moves between two hosts, "
                      f"which is {format_rate(best)} at most; give less than that, so that the link is the limit")


def bits_per_second(network: Network, seconds: float) -> float:
    """Return what one TCP connection from the first host to the second carries in so long a time."""
    first, second = network.names[:2]
    with _made_on(network.pid(second)) as listener, _made_on(network.pid(first)) as sender:
        listener.bind((str(network.addresses[second]), 0))
        listener.listen(1)
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        feeder = threading.Thread(target=_feed, args=(sender, time.monotonic() + seconds))
        with receiver:
            feeder.start()
            started, got = time.monotonic(), 0
            while piece := receiver.recv(1 << 18):
                got += len(piece)
            elapsed = time.monotonic() - started
        feeder.join()
    return 8 * got / elapsed


def _feed(sender: socket.socket, until: float) -> None:
    piece = bytes(1 << 18)
    while time.monotonic() < until:
        sender.sendall(piece)
    sender.shutdown(socket.SHUT_WR)


def _made_on(pid: int) -> socket.socket:
    """Return a TCP socket in the network of a process; a thread of its own enters it, since none can leave again."""
    sockets: list[socket.socket] = []

    def make() -> None:
        linux.enter_network(pid)
        sockets.append(socket.socket())

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return sockets[0]
