"""A jinja2 environment that model files may be trusted with.

Templates come with a model, so they are data from a stranger. On top of jinja2's immutable sandbox (no internals, no
changing of what was passed in) a rendering may take only so many turns and seconds and make only so much
(`chat_budget`). Whatever can make a value larger than its parts is checked before it is made; whatever looks at all of
a value is asked only for those that are small enough.
"""

from __future__ import annotations

import functools
import json
import string
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils
from jinja2.exceptions import SecurityError

from octavo.engine.chat_budget import (
    TemplateLimitError,
    budget,
    check_items,
    check_length,
    counted,
    joined,
    made,
    made_parts,
    weigh,
)

MAX_POWER_BITS = 4096
MAX_DEPTH = 200
"""Nodes inside nodes in a template."""
MAX_NODES = 30_000
"""Of a template. The longest in use have some thousand; to compile so many takes a second or two."""

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


class TemplateRaisedError(jinja2.TemplateError):
    """The template itself refused its input, by `raise_exception`."""


_ONE_BY_ONE = """
    attr d default first items last list map reject rejectattr reverse safe select selectattr
"""
"""Filters that take what they are given element by element, or do not look inside at all."""
_COUNTING = frozenset({"count", "length"})
_COMPARING = frozenset({"max", "min", "sort", "sum", "unique"})
"""Filters that look at all of every element; a string's are characters."""
_COMPARISONS = "== != < <= > >= eq equalto ge greaterthan gt in le lessthan lt ne"
"""Tests that look at all of a value."""
_STARTS_OF_LINES = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def _sized(value: object) -> bool:
    return isinstance(value, str | bytes | list | tuple)


def _check_elements(value: Any) -> None:
    if _sized(value):
        check_items(len(value))


def _check_compared(value: object) -> None:
    if isinstance(value, str):
        check_items(len(value))
    else:
        weigh(value)


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or a test that refuses values too large for it, and whose result counts."""
    takes_turn = name in _COUNTING or name in _ONE_BY_ONE.split()
    check: Callable[[object], None] | None = weigh
    if name in _COUNTING:
        check = None
    elif name in _COMPARING:
        check = _check_compared
    elif takes_turn:
        check = _check_elements

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if takes_turn:
            budget.get().take_turns()
        if check is not None:
            for value in (*args, *kwargs.values()):
                check(value)
        result = function(*args, **kwargs)
        if isinstance(result, list) and args and isinstance(args[-1], str):
            made_parts(len(result))
        return made(result)

    return checked


class ChatEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment chat templates are written for, with limits. Used with a `budget` set, to compile too."""

    concat = staticmethod(functools.partial(joined, ""))
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationExtension]
        )
        own: dict[str, Any] = {**self.filters}
        plain = {name: own[name] for name in _FILTERS.split()}
        plain |= {"indent": _indent, "replace": _replace, "sum": _sum, "tojson": _to_json}
        self.filters = {name: _bounded(name, function) for name, function in plain.items()} | {
            "concatenated": functools.partial(joined, ""),
            "counted": counted,
            "join": self._join,
            "sliced": made,
            "weighed": weigh,
        }
        tests: dict[str, Any] = {**self.tests}
        self.tests = tests | {name: _bounded(name, tests[name]) for name in _COMPARISONS.split()}
        self.finalize = _written
        for name in ("lipsum", "cycler", "joiner"):
            del self.globals[name]
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _check_product(left, right)
        elif operator == "**":
            if not all(isinstance(value, int | float) and abs(value) < 1 << 31 for value in (left, right)):
                raise TemplateLimitError("it raises a number to too high a power")
            if abs(right) * max(abs(int(left)).bit_length(), 1) > MAX_POWER_BITS:
                raise TemplateLimitError("it raises a number to too high a power")
        elif operator == "%" and isinstance(left, str):
            raise TemplateLimitError("it formats with the % operator")
        elif operator == "+" and _sized(left) and _sized(right):
            _check_sized(left, len(left) + len(right))
        budget.get().take_turns()
        return made(super().call_binop(context, operator, left, right))

    def call(self, context: Any, callee: Any, *args: Any, **kwargs: Any) -> Any:
        budget.get().take_turns()
        owner, name = getattr(callee, "__self__", None), getattr(callee, "__name__", "")
        for kind, allowed in _METHODS.items():
            if isinstance(owner, kind) and name not in allowed:
                raise TemplateLimitError(f"it calls {kind.__name__}.{name}")
        if isinstance(owner, bytes | int | float):
            raise TemplateLimitError(f"it calls {type(owner).__name__}.{name}")
        if isinstance(owner, str) and name == "replace":
            return _replace(owner, *args)
        if isinstance(owner, str) and name == "join" and args:
            return joined(owner, args[0])
        if isinstance(owner, str):
            _check_split(owner, name, args, kwargs)
        if isinstance(owner, list | tuple):  # count and index compare
            for value in (owner, *args):
                weigh(value)
        return made(super().call(context, callee, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        format_safely = super().wrap_str_format(value)
        if format_safely is None:
            return None

        def format_short(*args: Any, **kwargs: Any) -> str:
            pattern = str(value.__self__)
            has_width = any(width for _, _, width, _ in string.Formatter().parse(pattern))
            if has_width or value.__name__ != "format":
                raise TemplateLimitError("it formats with a width")
            longest = max((budget.get().weight_of(arg) for arg in (*args, *kwargs.values())), default=0)
            check_length(len(pattern) + pattern.count("{") * longest)
            return format_safely(*args, **kwargs)

        return format_short

    @jinja2.pass_eval_context
    def _join(self, eval_context: Any, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        make_attrgetter = jinja2.filters.make_attrgetter
        parts = map(make_attrgetter(self, attribute), value) if attribute is not None else value
        return joined(str(weigh(d)), parts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        _check_size(tree)
        _refuse_internals(tree)
        for loop in tree.find_all(jinja2.nodes.For):
            loop.iter = _filtered(loop.iter, "counted")
        _bound_expressions(tree)
        return tree


class GenerationExtension(jinja2.ext.Extension):
    """`{% generation %}` ... `{% endgeneration %}` marks an assistant's words for training; here it does nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own way to declare them

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _filtered(node: Any, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _bound_expressions(tree: jinja2.nodes.Template) -> None:
    """Put checks around what the compiler makes code of that asks the environment nothing: `a ~ b`, `a[1:]`, `a == b`.

    A constant is compared as it is: it is in the source, and no larger.
    """

    def rewrite(node: jinja2.nodes.Node) -> jinja2.nodes.Node:
        for field, value in node.iter_fields():
            if isinstance(value, jinja2.nodes.Node):
                setattr(node, field, rewrite(value))
            elif isinstance(value, list):
                setattr(node, field, [rewrite(v) if isinstance(v, jinja2.nodes.Node) else v for v in value])
        if isinstance(node, jinja2.nodes.Concat):
            return _filtered(jinja2.nodes.List(node.nodes, lineno=node.lineno), "concatenated")
        if isinstance(node, jinja2.nodes.Getitem) and isinstance(node.arg, jinja2.nodes.Slice):
            return _filtered(node, "sliced")
        if isinstance(node, jinja2.nodes.Compare):
            node.expr = _weighed(node.expr)
        if isinstance(node, jinja2.nodes.Operand):
            node.expr = _weighed(node.expr)
        return node

    rewrite(tree)


def _weighed(node: Any) -> Any:
    return node if isinstance(node, jinja2.nodes.Const) else _filtered(node, "weighed")


def _check_size(tree: jinja2.nodes.Node) -> None:
    level, depth, count = [tree], 0, 0
    while level:
        count += len(level)
        if count > MAX_NODES:
            raise TemplateLimitError(f"it has more than {MAX_NODES} parts")
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


def _check_sized(value: Any, length: int) -> None:
    """Before a text or a list of that length is made."""
    if isinstance(value, str | bytes):
        check_length(length)
    else:
        check_items(length)


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_POWER_BITS:
            raise TemplateLimitError("it multiplies numbers that are too large")
        return
    for value, count in ((left, right), (right, left)):
        if _sized(value) and isinstance(count, int):
            _check_sized(value, len(value) * count)


def _check_split(text: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before a text is split in many: each part is a string of its own."""
    if method == "splitlines":
        made_parts(1 + sum(map(text.count, _STARTS_OF_LINES)))
    elif method in ("split", "rsplit"):
        separator = args[0] if args else kwargs.get("sep")
        most = args[1] if len(args) > 1 else kwargs.get("maxsplit", -1)
        count = text.count(separator) if isinstance(separator, str) and separator else len(text) // 2
        made_parts(1 + (min(count, most) if isinstance(most, int) and most >= 0 else count))


def _written(value: Any) -> str:
    """A value as the template puts it out."""
    return str(value if isinstance(value, str) else weigh(value))


@jinja2.pass_environment
def _sum(environment: jinja2.Environment, values: Iterable[Any], attribute: str | None = None, start: Any = 0) -> Any:
    """Of numbers: lists, added one after another, would grow."""
    get = (lambda value: value) if attribute is None else jinja2.filters.make_attrgetter(environment, attribute)
    total = start
    for value in map(get, counted(values)):
        if not isinstance(value, int | float) or not isinstance(total, int | float):
            raise TemplateLimitError("it sums up what is no number")
        total += value
    return total


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
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, check_circular=False
    )
    if indent is None:  # the values were weighed, and nothing grows much
        return encoder.encode(value)
    length, pieces = 0, []
    for piece in encoder.iterencode(value):
        length += len(piece)
        check_length(length)
        pieces.append(piece)
    return "".join(pieces)


def _raise_exception(message: Any) -> None:
    raise TemplateRaisedError(str(message))


def _strftime_now(format: str) -> str:
    if len(format) > 200:
        raise TemplateLimitError("it formats the time at length")
    return datetime.now().strftime(format)
