"""Two hosts on one machine: a rank in each of two network namespaces, joined by a link whose rate can be set.

A namespace has no name: it belongs to the rank's process, and the kernel removes it, with its end of the link, when the
process ends, however it ends. So nothing can be left over, and runs at the same time do not see each other.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import torch.distributed as dist

from weft.errors import WeftError

RANKS = 2
DEVICE = "weft0"  # the end of the link in either namespace

_CLONE_NEWNET = 0x40000000
_SESSION = Path("/proc/self/autogroup")
_PATIENCE_S = 30.0
# The kernel hands over up to 64 KiB at once. A bucket that holds no two of these, or packets of 1500 bytes, make it cut
# them up, which costs a third of a core at 300 Mbit/s. But what a bucket holds passes unlimited after a pause, as no
# link would let it. So over a slow link less is handed over at once: as much as passes in so many seconds.
_AT_ONCE_S, _LEAST_AT_ONCE, _MOST_AT_ONCE = 0.004, 2**14, 2**16
# What waits for tokens is queued rather than dropped: a sender then never has to send anything again.
_QUEUE_BYTES = 2**26
_PACKET_BYTES = 9000
# A connection that was idle goes on as fast as before.
_TCP = "net.ipv4.tcp_slow_start_after_idle=0"
_TRIAL = (
    f"ip link add {DEVICE} type veth peer name peer && ip link set {DEVICE} gso_max_size {_MOST_AT_ONCE} && "
    f"tc qdisc add dev {DEVICE} root tbf rate 1mbit burst 64kb limit 1mb"
)


def why_no_link() -> str | None:
    """Why there can be no link with a rate between hosts here, or None if there can be one."""
    for tool in ("ip", "tc", "unshare"):
        if shutil.which(tool) is None:
            return f"`{tool}` is not installed"
    if os.geteuid() != 0:
        return "network namespaces need root"
    tried = subprocess.run(["unshare", "--net", "sh", "-c", _TRIAL], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else tried.stderr.strip().splitlines()[-1]


def at_once(bits_per_s: float) -> int:
    """How many bytes the kernel hands over at once to a link of a rate. Twice as many may pass unlimited."""
    return min(max(int(bits_per_s / 8 * _AT_ONCE_S), _LEAST_AT_ONCE), _MOST_AT_ONCE)


@dataclass(frozen=True)
class Hosts:
    """Where two ranks run.

    folder: empty, and for them alone.
    limited: false on loopback, which has no rate.
    nice: of the ranks, from 19 to -20; below 0 they go before other processes, which takes root.
    """

    folder: Path
    limited: bool
    nice: int = 0

    def enter(self, rank: int) -> None:
        """Move this process, which has not joined others yet, to its core and its host."""
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
        if self.nice:
            _be_nice(self.nice)
        os.environ["GLOO_SOCKET_IFNAME"] = DEVICE if self.limited else "lo"
        if not self.limited:
            return
        _own_network()
        self._join(rank)
        _run("ip", "address", "add", f"10.0.0.{rank + 1}/24", "dev", DEVICE)
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "set", DEVICE, "mtu", str(_PACKET_BYTES), "up")
        _run("sysctl", "--quiet", "--write", _TCP)

    def set_rate(self, bits_per_s: float) -> None:
        """Limit what this rank sends. Every rank must call this."""
        bucket = ["rate", f"{bits_per_s:.0f}bit", "burst", f"{2 * at_once(bits_per_s)}b", "limit", f"{_QUEUE_BYTES}b"]
        _run("ip", "link", "set", DEVICE, "gso_max_size", str(at_once(bits_per_s)))
        _run("tc", "qdisc", "replace", "dev", DEVICE, "root", "tbf", *bucket)

    def _join(self, rank: int) -> None:
        """Lay the link between the namespaces: rank 0 does, when both are there."""
        store = dist.FileStore(str(self.folder / "processes"), RANKS)  # type: ignore[attr-defined]
        store.set(str(rank), str(os.getpid()))
        if rank == 0:
            other = store.get("1").decode()
            _run("ip", "link", "add", DEVICE, "type", "veth", "peer", "name", DEVICE, "netns", other)
        deadline = monotonic() + _PATIENCE_S
        while DEVICE not in {name for _, name in socket.if_nameindex()}:
            if monotonic() > deadline:
                raise WeftError(f"rank {rank} has waited {_PATIENCE_S:.0f} s for its end of the link")
            sleep(0.01)


def _be_nice(nice: int) -> None:
    """Niceness counts among the processes of a session only, where the kernel gives every session its share."""
    os.setsid()
    if _SESSION.exists():
        _SESSION.write_text(str(nice))
    os.nice(nice)


def _own_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise WeftError(f"no network namespace: {os.strerror(ctypes.get_errno())}")


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WeftError(f"`{' '.join(words)}` failed: {done.stderr.strip()}")
