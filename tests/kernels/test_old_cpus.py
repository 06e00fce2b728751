"""Code compiled for newer instruction sets is reached only through its own namespace.

An inline function or a template of another namespace, compiled with AVX flags, would be one of several equal copies of
which the linker keeps any: a CPU without AVX might then run it. So nothing of the kind may be in those object files,
nor anything that runs when the module is loaded.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "build"
OBJECTS = sorted(BUILD.glob("cp*/CMakeFiles/kernels_avx*.dir/**/*.o"))

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not OBJECTS or shutil.which("nm") is None,
    reason="needs the object files of an x86-64 build, and nm",
)


def strangers(symbols: str, namespace: str) -> list[str]:
    """Lines of `nm -C` that define something visible outside the namespace, or run at load."""
    found = []
    for line in symbols.splitlines():
        match = re.match(r"[0-9a-f]* +([A-Za-z]) (.*)", line.strip())
        if match is None or match[1] == "U":
            continue
        kind, name = match.groups()
        inside = re.match(rf"(?:[\w ]+ |vtable for |guard variable for )*{namespace}::", name) is not None
        visible = kind.isupper() or kind in "uvwi"
        if (visible and not inside) or name.startswith(("_GLOBAL__sub_I", "__static_initialization")):
            found.append(line)
    return found


def symbols(*flags: str) -> str:
    return subprocess.run(["nm", "-C", *flags], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("path", OBJECTS, ids=lambda p: f"{p.parent.parent.parent.name}/{p.name}")
def test_nothing_compiled_with_avx_is_visible_outside_its_namespace(path: Path) -> None:
    isa = re.search(r"kernels_(avx\w+)\.dir", str(path))
    assert isa is not None
    assert strangers(symbols(str(path)), f"octavo::{isa[1]}") == []


def test_the_check_finds_what_it_looks_for(tmp_path: Path) -> None:
    source = tmp_path / "planted.cpp"
    source.write_text(
        "struct Loud { Loud(); ~Loud(); };\n"
        "namespace octavo { namespace avx2 {\n"
        "template <class T> T twice(T x) { return x + x; }\n"
        "template int twice(int);\n"
        "void kernel() {}\n"
        "Loud loud;\n"
        "} template <class T> T thrice(T x) { return x * 3; }\n"
        "template float thrice(float); }\n"
    )
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    subprocess.run([compiler, "-c", str(source), "-o", str(tmp_path / "planted.o")], check=True)
    found = strangers(symbols(str(tmp_path / "planted.o")), "octavo::avx2")
    assert any("octavo::thrice" in line for line in found)
    assert any("_GLOBAL__sub_I" in line for line in found)
    assert not any("avx2::" in line for line in found)
