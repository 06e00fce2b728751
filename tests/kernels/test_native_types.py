"""The type stub of the native module names what the module has, no more and no less."""

from __future__ import annotations

import ast
from pathlib import Path

from octavo import _native

STUB = ast.parse((Path(__file__).parents[2] / "src" / "octavo" / "_native.pyi").read_text())


def test_names() -> None:
    stubbed = {node.name for node in STUB.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert stubbed == {name for name in dir(_native) if not name.startswith("_")}


def test_members_of_classes() -> None:
    for node in STUB.body:
        if isinstance(node, ast.ClassDef):
            stubbed = {item.name for item in node.body if isinstance(item, ast.FunctionDef)} - {"__init__"}
            members = {name for name in vars(getattr(_native, node.name)) if not name.startswith("_")}
            assert stubbed == members, node.name
