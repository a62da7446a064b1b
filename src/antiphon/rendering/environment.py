"""The environment that chat templates run in: jinja2's immutable sandbox, with everything that can grow or
repeat paid for out of an allowance.

The sandbox keeps a template from reaching Python; it does not keep `'a' * 10**9` from filling the memory, nor
nested loops from running for ever. What calls, operators, filters, loops and literals make is therefore
counted here. What could make too much in one step is computed before it is done, or left out: filters and
methods that no chat template needs are not there, and a template that uses one is refused when it is
compiled.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from antiphon.errors import TemplateRefused
from antiphon.rendering.allowance import allowance, held, require_small, weigh
from antiphon.rendering.growth import BOUNDED_FILTERS, before_join, before_replace, require_format
from antiphon.rendering.shield import uncovered

PLAIN_FILTERS = (
    "abs count d default dictsort first float groupby int items last length list map max "
    "min reject rejectattr reverse select selectattr sort string trim truncate unique wordcount"
).split()
"""Filters of jinja2 whose result is no larger than what they are given."""

STRING_METHODS = frozenset(
    "capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal isdigit islower "
    "isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind "
    "rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper".split()
)
"""Methods of texts that a template may call."""

CASES = frozenset("capitalize casefold lower swapcase title upper".split())
"""Methods of texts, and filters, that need letters."""

LARGEST_RANGE = 100_000

Guard = Callable[..., tuple[object, ...]]
GUARDS: Mapping[str, Guard] = MappingProxyType({"replace": before_replace, "join": before_join})
"""What is computed before a method of a text is called; gives the arguments to call it with."""


class Generation(Extension):
    """`{% generation %}` marks what the assistant says, for training; for generating it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own attribute

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs templates that cannot take more than their allowance."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=printable,
            cache_size=0,
            extensions=[loopcontrols, Generation],
        )
        self.globals = {
            **{name: self.globals[name] for name in ("dict", "namespace", "cycler", "joiner")},
            "range": bounded_range,
        }
        self.filters = {
            **{name: paid(FILTERS[name]) for name in PLAIN_FILTERS},
            **{name: recased(FILTERS[name]) for name in CASES & set(FILTERS)},
            **BOUNDED_FILTERS,
            EACH: each,
            HELD: held,
            JOINED: joined,
        }

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        if isinstance(obj, str):
            return attr in STRING_METHODS
        if isinstance(obj, int | float | bytes):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        text = getattr(value, "__self__", None)
        if wrapped is None or not isinstance(text, str):
            return wrapped
        run = wrapped

        def bounded(*args: object, **kwargs: object) -> str:
            require_format(text, [*args, *kwargs.values()])
            return run(*args, **kwargs)

        return bounded

    def call(self, context: Context, obj: object, /, *args: object, **kwargs: object) -> object:
        text = getattr(obj, "__self__", None)
        if isinstance(text, str):
            allowance().copy(len(text))
            name = getattr(obj, "__name__", "")
            if name in CASES:
                return uncovered(getattr(str, name), text)
            guard = GUARDS.get(name)
            args = args if guard is None else guard(text, *args)
        return held(super().call(context, obj, *args, **kwargs))

    def concat(self, parts: Iterable[str]) -> str:
        """What a block or macro gives."""
        return joined(list(parts))

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        return held(OPERATORS[operator](left, right))

    def _generate(self, source: nodes.Template, *args: object, **kwargs: object) -> str:
        counted = Counting().visit(source)
        return super()._generate(counted, *args, **kwargs)  # type: ignore[arg-type]


# --- what is counted ----------------------------------------------------------------------------------------

EACH, HELD, JOINED = "_each", "_held", "_joined"


class Counting(NodeTransformer):
    """Puts what jinja2 lets nobody intercept (loops, literals, `~`) through filters that count."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja2's name
        self.generic_visit(node)
        if isinstance(node.iter, nodes.Expr):
            node.iter = _filtered(node.iter, EACH)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), JOINED)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._literal(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._literal(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._literal(node) if node.ctx == "load" else self.generic_visit(node)

    def _literal(self, node: nodes.Expr) -> nodes.Node:
        """Constants hold nothing that could have grown."""
        self.generic_visit(node)
        plain = all(isinstance(part, nodes.Const) for part in node.iter_child_nodes())
        return node if plain else _filtered(node, HELD)


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def each(items: Iterable[object]) -> Iterator[object]:
    """The items of a loop, one unit each."""
    spend = allowance().spend
    for item in items:
        spend(1)
        yield item


def paid(function: Callable[..., object]) -> Callable[..., object]:
    """A filter that pays for what it reads and for what it gives."""

    def filtered(*args: object, **kwargs: object) -> object:
        for argument in args[:2]:
            if isinstance(argument, str | list | tuple | dict | range):
                allowance().copy(len(argument))
        return held(function(*args, **kwargs))

    filtered.__dict__.update(getattr(function, "__dict__", {}))  # how jinja2 wants it called
    return filtered


def recased(function: Callable[[str], str]) -> Callable[[object], str]:
    """A filter that changes letters."""

    def filtered(value: object) -> str:
        text = str(value)
        allowance().copy(len(text))
        return uncovered(function, text)

    return filtered


def printable(value: object) -> object:
    """What may be written into the prompt. Raises TemplateRefused for what has no text of its own."""
    if not isinstance(value, str):
        weigh(value)
    return value


def joined(parts: Sequence[object]) -> str:
    """`a ~ b`."""
    texts = [str(printable(part)) for part in parts]
    allowance().copy(sum(map(len, texts)))
    return "".join(texts)


def bounded_range(*args: int) -> range:
    found = range(*args)
    if len(found) > LARGEST_RANGE:
        raise TemplateRefused(f"the chat template counts further than {LARGEST_RANGE}")
    return found


def _add(left: object, right: object) -> object:
    if isinstance(left, str) and isinstance(right, str):
        allowance().copy(len(left) + len(right))
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        allowance().copy((len(left) + len(right)) * 16)
    return operator.add(left, right)


def _multiply(left: object, right: object) -> object:
    for items, times in ((left, right), (right, left)):
        if isinstance(items, str | list | tuple) and isinstance(times, int):
            allowance().copy(len(items) * max(times, 0) * (1 if isinstance(items, str) else 16))
    if isinstance(left, int) and isinstance(right, int):
        require_small(left.bit_length() + right.bit_length())
    return operator.mul(left, right)


def _power(left: object, right: object) -> object:
    if isinstance(left, int) and isinstance(right, int):
        require_small(left.bit_length() * max(right, 0))
    return operator.pow(left, right)


def _modulo(left: object, right: object) -> object:
    if isinstance(left, str):
        require_format(left, [right])
    return operator.mod(left, right)


OPERATORS: Mapping[str, Callable[[object, object], object]] = MappingProxyType(
    {"+": _add, "*": _multiply, "**": _power, "%": _modulo}
)
