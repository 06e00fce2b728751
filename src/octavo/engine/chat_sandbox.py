"""A jinja2 environment that model files may be trusted with.

Templates come with a model, so they are data from a stranger. On top of jinja2's immutable sandbox (no internals, no
changing of what was passed in) a rendering may take only so many turns and seconds and make only so much text: loops
and calls are counted, and every way to make a text longer than its parts is checked before it is taken.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from jinja2.exceptions import SecurityError

MAX_OUTPUT_CHARS = 32 << 20
"""Longest text a template may make, in one piece or in all."""
MAX_TURNS = 1_000_000
"""Turns of all loops and calls in one rendering."""
MAX_RENDER_S = 5.0
MAX_POWER_BITS = 4096
MAX_DEPTH = 200
"""Nodes inside nodes in a template."""


class Budget:
    """What one rendering may still take."""

    def __init__(self) -> None:
        self._turns_left = MAX_TURNS
        self._deadline_s = time.monotonic() + MAX_RENDER_S

    def take_turn(self) -> None:
        self._turns_left -= 1
        if self._turns_left < 0:
            raise TemplateLimitError(f"its loops and calls take more than {MAX_TURNS} turns")
        if time.monotonic() > self._deadline_s:
            raise TemplateLimitError(f"it takes longer than {MAX_RENDER_S:g} seconds")


budget: ContextVar[Budget] = ContextVar("budget")
"""Of the rendering under way in this thread."""

# What chat templates use, and all that they may: much of the rest can make a huge value from a small one.
_FILTERS = """
    abs attr capitalize count d default dictsort e escape first float groupby int items last length list lower map max
    min reject rejectattr reverse round safe select selectattr sort string sum title trim unique upper
"""
_STR_METHODS = """
    capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal isdigit islower isnumeric
    isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit
    rstrip split splitlines startswith strip swapcase title upper
"""
_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(_STR_METHODS.split()),
    dict: frozenset({"get", "items", "keys", "values", "copy"}),
    list: frozenset({"count", "index", "copy"}),
    tuple: frozenset({"count", "index"}),
}


class TemplateLimitError(jinja2.TemplateError):
    """A rendering takes more than it may."""


class TemplateRaisedError(jinja2.TemplateError):
    """The template itself refused its input, by `raise_exception`."""


def check_length(length: int) -> None:
    if length > MAX_OUTPUT_CHARS:
        raise TemplateLimitError(f"it makes a text of more than {MAX_OUTPUT_CHARS} characters")


def _counted(items: Any) -> Iterator[Any]:
    take_turn = budget.get().take_turn
    for item in items:
        take_turn()
        yield item


def _bounded(text: str) -> str:
    check_length(len(text))
    return text


def _checked_parts(separator: str, parts: Iterable[Any]) -> list[Any]:
    kept = list(_counted(parts))
    check_length(sum(len(str(part)) + len(separator) for part in kept))
    return kept


def _sized(value: object) -> bool:
    return isinstance(value, str | bytes | list | tuple)


class ChatEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment chat templates are written for, with limits."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationExtension]
        )
        self.filters = {name: self.filters[name] for name in _FILTERS.split()} | {
            "bounded": _bounded,
            "counted": _counted,
            "indent": _indent,
            "join": self._join,
            "replace": _replace,
            "tojson": _to_json,
        }
        for name in ("lipsum", "cycler", "joiner"):
            del self.globals[name]
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for value, count in ((left, right), (right, left)):
                if _sized(value) and isinstance(count, int):
                    check_length(len(value) * count)
        elif operator == "**":
            if not all(isinstance(value, int | float) and abs(value) < 1 << 31 for value in (left, right)):
                raise TemplateLimitError("it raises a number to too high a power")
            if abs(right) * max(abs(int(left)).bit_length(), 1) > MAX_POWER_BITS:
                raise TemplateLimitError("it raises a number to too high a power")
        elif operator == "%" and isinstance(left, str):
            raise TemplateLimitError("it formats with the % operator")
        elif operator == "+" and _sized(left) and _sized(right):
            check_length(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, callee: Any, *args: Any, **kwargs: Any) -> Any:
        budget.get().take_turn()
        owner, name = getattr(callee, "__self__", None), getattr(callee, "__name__", "")
        for kind, allowed in _METHODS.items():
            if isinstance(owner, kind) and name not in allowed:
                raise TemplateLimitError(f"it calls {kind.__name__}.{name}")
        if isinstance(owner, bytes | int | float):
            raise TemplateLimitError(f"it calls {type(owner).__name__}.{name}")
        if isinstance(owner, str) and name == "replace":
            return _replace(owner, *args)
        if isinstance(owner, str) and name == "join" and args:
            args = (_checked_parts(owner, args[0]),)
        return super().call(context, callee, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        format_safely = super().wrap_str_format(value)
        if format_safely is None:
            return None

        def format_short(*args: Any, **kwargs: Any) -> str:
            pattern = str(value.__self__)
            if ":" in pattern or value.__name__ != "format":
                raise TemplateLimitError("it formats with a width")
            longest = max((len(str(arg)) for arg in (*args, *kwargs.values())), default=0)
            check_length(len(pattern) + pattern.count("{") * longest)
            return format_safely(*args, **kwargs)

        return format_short

    @jinja2.pass_eval_context
    def _join(self, eval_context: Any, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        join: Callable[..., str] = jinja2.filters.FILTERS["join"]
        make_attrgetter = jinja2.filters.make_attrgetter
        parts = map(make_attrgetter(self, attribute), value) if attribute is not None else value
        return join(eval_context, _checked_parts(d, parts), d)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        _check_depth(tree)
        _refuse_internals(tree)
        for loop in tree.find_all(jinja2.nodes.For):
            loop.iter = _filtered(loop.iter, "counted")
        return _bound_concatenations(tree)


class GenerationExtension(jinja2.ext.Extension):
    """`{% generation %}` ... `{% endgeneration %}` marks an assistant's words for training; here it does nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own way to declare them

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _filtered(node: Any, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _bound_concatenations(tree: jinja2.nodes.Template) -> jinja2.nodes.Template:
    """Put the check around every `a ~ b`."""

    def rewrite(node: jinja2.nodes.Node) -> jinja2.nodes.Node:
        for field, value in node.iter_fields():
            if isinstance(value, jinja2.nodes.Node):
                setattr(node, field, rewrite(value))
            elif isinstance(value, list):
                setattr(node, field, [rewrite(v) if isinstance(v, jinja2.nodes.Node) else v for v in value])
        return _filtered(node, "bounded") if isinstance(node, jinja2.nodes.Concat) else node

    rewrite(tree)
    return tree


def _check_depth(tree: jinja2.nodes.Node) -> None:
    level, depth = [tree], 0
    while level:
        level = [child for node in level for child in node.iter_child_nodes()]
        depth += 1
        if depth > MAX_DEPTH:
            raise TemplateLimitError(f"it nests more than {MAX_DEPTH} deep")


def _refuse_internals(tree: jinja2.nodes.Node) -> None:
    """The sandbox would stop these when they are reached; a file that holds them is refused as a whole."""
    for node in tree.find_all((jinja2.nodes.Getattr, jinja2.nodes.Getitem, jinja2.nodes.Filter)):
        names: list[Any] = []
        if isinstance(node, jinja2.nodes.Getattr):
            names = [node.attr]
        elif isinstance(node, jinja2.nodes.Getitem):
            names = [getattr(node.arg, "value", None)]
        elif isinstance(node, jinja2.nodes.Filter) and node.name in ("attr", "map"):
            names = [getattr(arg, "value", None) for arg in node.args]
        for name in names:
            if isinstance(name, str) and name.startswith("__"):
                raise SecurityError(f"it reads the attribute {name[:40]!r}")


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    check_length(len(text) + text.count(old) * len(new))
    result: str = text.replace(old, new, -1 if count is None else count)
    return result


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    columns = width if isinstance(width, int) else len(width)
    check_length(len(text) + (text.count("\n") + 1) * columns)
    return jinja2.filters.do_indent(text, width, first, blank)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: not escaped for HTML."""
    if isinstance(indent, int) and indent > 16:
        raise TemplateLimitError("it indents JSON by more than 16")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> None:
    raise TemplateRaisedError(str(message))


def _strftime_now(format: str) -> str:
    if len(format) > 200:
        raise TemplateLimitError("it formats the time at length")
    return datetime.now().strftime(format)
