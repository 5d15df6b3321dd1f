"""By which of its addresses a machine is reached, where torch would ask for the machine's name.

On many machines, Debian's among them, the name leads to the machine itself, and no other machine can use that.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

INTERFACE = "GLOO_SOCKET_IFNAME"
"""Where Gloo looks for the interface that it shall use."""

ELSEWHERE = "192.0.2.1"
"""An address that no machine has (RFC 5737)."""

GET_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux's ioctl."""


def address_towards(host: str, port: int) -> str | None:
    """This machine's IPv4 address on the way to another; None if there is no way, or it does not leave the machine.

    A name that leads to this machine itself is one that others know it by: then the address is that on the way out.
    """
    address = _source(host, port)
    if address is not None and _is_loopback(address) and host != "localhost" and not _is_loopback(host):
        address = _source(ELSEWHERE, port)
    return None if address is None or _is_loopback(address) else address


def is_ours(host: str) -> bool:
    """Whether a name or address leads to this machine."""
    try:
        with socket.create_server((socket.gethostbyname(host), 0)):
            return True
    except OSError:
        return False


def _source(host: str, port: int) -> str | None:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            address: str = probe.getsockname()[0]
    except OSError:
        return None
    return address


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")


def interface_of(address: str) -> str | None:
    """The network interface whose first IPv4 address this is; None where there is none, or it cannot be found out.

    Example:
        >>> interface_of("127.0.0.1")
        'lo'
    """
    try:
        import fcntl
    except ImportError:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                found = fcntl.ioctl(probe.fileno(), GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


@contextlib.contextmanager
def reachable_by(host: str, port: int) -> Iterator[None]:
    """Have Gloo use the interface that leads to another machine, unless the user has said which."""
    address = None if INTERFACE in os.environ else address_towards(host, port)
    name = None if address is None else interface_of(address)
    if name is None:
        yield
        return
    os.environ[INTERFACE] = name
    try:
        yield
    finally:
        os.environ.pop(INTERFACE, None)
