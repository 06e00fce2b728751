"""Sockets: files, ports, and what stands in their way."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from octavo.config import HTTPConfig
from octavo.errors import ConfigError
from octavo.server.listen import check_certificate, listening


def test_a_socket_file_is_private_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "octavo.sock"
    with listening(HTTPConfig(uds=str(path))):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert not path.exists()


def test_a_socket_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "octavo.sock"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    with listening(HTTPConfig(uds=str(path))) as listener:
        listener.listen()
        with pytest.raises(ConfigError, match="another server listens there"), listening(HTTPConfig(uds=str(path))):
            pass
        assert path.exists()


@pytest.mark.parametrize("name", ["file", "missing/octavo.sock", "a\0b", "x" * 200])
def test_other_paths_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ConfigError, match="uds"), listening(HTTPConfig(uds=str(tmp_path / name))):
        pass
    assert (tmp_path / "file").read_text() == "kept"


def test_a_certificate_is_checked_at_once(tmp_path: Path) -> None:
    (tmp_path / "not.pem").write_text("nothing")
    for name in ("not.pem", "missing.pem"):
        path = str(tmp_path / name)
        with pytest.raises(ConfigError, match="a certificate that fits"):
            check_certificate(HTTPConfig(ssl_keyfile=path, ssl_certfile=path))
    with pytest.raises(ConfigError, match="ssl_keyfile"):
        HTTPConfig(ssl_certfile="only.pem")
