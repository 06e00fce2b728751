"""The socket that the server listens on, and what it needs of the system."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import ssl
import stat
from collections.abc import Generator
from pathlib import Path

from octavo.config import HTTPConfig
from octavo.errors import ConfigError

OPEN_FILES = 1 << 16
"""Connections are files; many systems allow a process no more than 1024 unless it asks."""


@contextlib.contextmanager
def listening(http: HTTPConfig) -> Generator[socket.socket, None, None]:
    """The bound socket, not yet listening; closed in the end, and its file removed if it is one of the file system's.

    Raises:
        ConfigError: If the address is taken, not ours, or no address at all.
    """
    with contextlib.closing(bind(http.host, http.port) if http.uds is None else bind_file(http.uds)) as listener:
        if http.uds is None:
            _bound_unsent(listener, http.max_unread_bytes)
        try:
            yield listener
        finally:
            if http.uds is not None:
                Path(http.uds).unlink(missing_ok=True)


def _bound_unsent(listener: socket.socket, num_bytes: int) -> None:
    """How much of what a client does not read yet the kernel takes, for each connection: else it takes megabytes. What
    is on its way to a client that reads does not count. Inherited by accepted sockets; not every system can."""
    with contextlib.suppress(OSError, AttributeError):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, num_bytes)


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not yet listening.

    Raises:
        ConfigError: If the address is taken, not ours, or no address at all.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError("host", host, f"an address of this machine ({error.strerror})") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError("port", port, f"free to listen on at {host} ({error.strerror})") from None
    return listener


def bind_file(path: str) -> socket.socket:
    """A Unix domain socket bound to a path that only its owner and group may use. One that nobody listens on is
    replaced.

    Raises:
        ConfigError: If the path is something else, in use, or cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_dead_socket(path)
        before = os.umask(0o117)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        listener.close()
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError("uds", path, f"a path to make a socket at ({why})") from None
    return listener


def _remove_dead_socket(path: str) -> None:
    """Raises FileExistsError if there is something else, or somebody answers."""
    try:
        mode = Path(path).lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(None, "there is a file that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(path) == 0:
            raise FileExistsError(None, "another server listens there")
    Path(path).unlink()


def check_certificate(http: HTTPConfig) -> None:
    """Whether key and certificate can be used, before a model is read.

    Raises:
        ConfigError: If they cannot.
    """
    if http.ssl_certfile is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(http.ssl_certfile, http.ssl_keyfile)
    except (OSError, ValueError) as error:  # an ssl.SSLError is an OSError
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise ConfigError("ssl_certfile", http.ssl_certfile, f"a certificate that fits --ssl-keyfile ({why})") from None


def raise_file_limit() -> None:
    """Ask for as many open files as connections may need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
