"""The command line as a process of its own."""

from __future__ import annotations

import subprocess
import sys


def octavo(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """`octavo WORDS ...`, run to its end."""
    command = [sys.executable, "-m", "octavo.cli.main", *words]
    source = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, **source)  # type: ignore[call-overload,no-any-return]
