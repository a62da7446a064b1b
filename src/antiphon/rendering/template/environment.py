"""Runs chat templates in jinja2's immutable sandbox, with further limits, and records which fields they read.

The sandbox keeps a template away from Python, but does not limit its memory. A model's template was proved in
a process with hard limits, and a request's template runs only in such a process. A model's template then runs
in this process with a caller's values, so this environment limits it. `*`, `**` and `%` produce no large
values, and rendering takes at most `MOST_SECONDS`. Filters and methods that chat templates do not need are
missing.

Most templates read no names of messages, and many read no reasoning. A part counts as read even if the
template does not write it.
"""

import json
import operator
import re
import time
from collections import Counter
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from antiphon.domain.messages import Message
from antiphon.errors import TemplateRefused
from antiphon.rendering.template.shield import apply_uncovered

NAME, REASONING = "name", "reasoning"
PART_OF_KEY = {"name": NAME, "reasoning": REASONING, "reasoning_content": REASONING, "thinking": REASONING}
"""The part of a message that each of its keys contains. Several keys contain the same part."""

PLAIN_FILTERS = (
    "abs batch count d default dictsort first float format groupby indent int items join last length list "
    "map max min reject rejectattr replace reverse round select selectattr slice sort string sum trim "
    "truncate unique wordcount"
).split()
"""The filters of jinja2 that templates may use."""

STRING_METHODS = frozenset(
    "capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal isdigit islower "
    "isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind "
    "rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper".split()
)
"""Methods of texts that a template may call."""

LETTER_CASE_FILTERS = frozenset("capitalize casefold lower swapcase title upper".split())
"""Methods of texts, and filters, that change upper and lower case."""

MOST_SECONDS = 5.0
"""The most seconds of one rendering in this process. The proof takes at most two seconds, but a machine can
be slow."""

MOST_ITEMS = 4_000_000
"""The most characters or items in the result of one operator."""

MOST_BITS = 4096
"""The most bits of an integer. Larger integers are slow to print."""

LARGE_WIDTH = re.compile(r"\d{3,}|\*")
"""A width or precision in a format, if it has more than two digits or comes from an argument."""

NOT_ASCII = re.compile("[^\x00-\x7f\ue000-\uf8ff\U000f0000-\U0010ffff]")
"""Characters that `ensure_ascii` escapes. Private-use characters are excluded, because the shield uses
them."""

PRINTABLE = (str, bool, int, float, list, tuple, dict, set, range, Undefined, type(None))
"""The types that a template can print."""

TIME_LIMIT_FILTER = "_timed"
_deadline: ContextVar[float] = ContextVar("deadline")


class FieldUsage:
    """The parts that the templates of one request have read."""

    def __init__(self) -> None:
        self.read_counts: Counter[str] = Counter()
        """For each part, the number of messages in which a template read it."""

    def list_unread(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """Returns the fields, by the caller's names, that some of these messages have but no template has
        read."""
        name_count = sum(message.name is not None for message in messages)
        reasoning_fields = [message.reasoning_field for message in messages if message.reasoning is not None]
        unread_fields = ["name"] if self.read_counts[NAME] < name_count else []
        if self.read_counts[REASONING] < len(reasoning_fields):
            unread_fields += dict.fromkeys(reasoning_fields)
        return tuple(f"messages[].{field}" for field in unread_fields)


_current_usage: ContextVar[FieldUsage | None] = ContextVar("usage", default=None)


@contextmanager
def watch_fields() -> Iterator[FieldUsage]:
    """Records what templates read inside the block, also in threads."""
    usage = FieldUsage()
    token = _current_usage.set(usage)
    try:
        yield usage
    finally:
        _current_usage.reset(token)


def add_usage(read_counts: Mapping[str, int]) -> None:
    """Adds the reads of a template that ran in another process, if reads are recorded here."""
    usage = _current_usage.get()
    if usage is not None:
        usage.read_counts.update(read_counts)


def watch_messages(messages: list[dict[str, object]], has_reasoning: bool) -> list[dict[str, object]]:
    """Wraps a template's messages so that reads are recorded. `has_reasoning`: whether the messages' content
    contains their reasoning, so that the template reads it in any case."""
    usage = _current_usage.get()
    if usage is None:
        return messages
    return [
        WatchedMessage(each, usage, has_reasoning) if each.keys() & PART_OF_KEY.keys() else each
        for each in messages
    ]


class WatchedMessage(dict[str, object]):
    """A message that records which of its parts a template reads. Each part counts once."""

    __slots__ = ("_unread", "_usage")

    def __init__(self, message: dict[str, object], usage: FieldUsage, has_reasoning: bool) -> None:
        super().__init__(message)
        self._usage = usage
        self._unread = {PART_OF_KEY[key] for key in message.keys() & PART_OF_KEY.keys()}
        if has_reasoning:
            self._record({REASONING})

    def _record(self, parts: set[str]) -> None:
        """Records that the template read these parts."""
        newly_read = parts & self._unread
        self._usage.read_counts.update(newly_read)
        self._unread -= newly_read

    def __getitem__(self, key: str) -> object:
        value = super().__getitem__(key)
        if key in PART_OF_KEY:
            self._record({PART_OF_KEY[key]})
        return value

    def get(self, key: str, default: object = None) -> object:
        try:
            return self[key]
        except KeyError:
            return default

    def __iter__(self) -> Iterator[str]:
        """Yields the keys. Because this class overrides `__iter__`, `dict(message)` looks up each value, and
        each look-up is recorded."""
        return super().__iter__()

    def items(self) -> ItemsView[str, object]:  # type: ignore[override]
        self._record({*self._unread})
        return super().items()

    def values(self) -> ValuesView[object]:  # type: ignore[override]
        self._record({*self._unread})
        return super().values()

    def copy(self) -> dict[str, object]:
        self._record({*self._unread})
        return super().copy()

    def __repr__(self) -> str:
        self._record({*self._unread})
        return super().__repr__()


class GenerationTag(Extension):
    """The tag `{% generation %}`. It marks the assistant's text for training, and does nothing here."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own attribute

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs templates."""

    intercepted_binops = frozenset(("*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=require_printable,
            cache_size=0,
            extensions=[loopcontrols, GenerationTag],
        )
        self.globals = {
            name: self.globals[name] for name in ("range", "dict", "namespace", "cycler", "joiner")
        }
        self.filters = {
            **{name: FILTERS[name] for name in PLAIN_FILTERS},
            **{name: _build_case_filter(FILTERS[name]) for name in LETTER_CASE_FILTERS & set(FILTERS)},
            "tojson": tojson,
            "safe": lambda value: value,  # this environment escapes nothing
            TIME_LIMIT_FILTER: limit_time,
        }

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        if isinstance(obj, str):
            return attr in STRING_METHODS
        if isinstance(obj, int | float | bytes):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, obj: object, /, *args: object, **kwargs: object) -> object:
        text, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(text, str) and name in LETTER_CASE_FILTERS:
            return apply_uncovered(getattr(str, name), text)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        return OPERATORS[operator](left, right)

    def _generate(self, source: nodes.Template, *args: object, **kwargs: object) -> str:
        return super()._generate(LoopTimer().visit(source), *args, **kwargs)  # type: ignore[arg-type]


def require_printable(value: object) -> object:
    """Returns the value if it can be printed into the prompt. Raises TemplateRefused if it cannot."""
    if not isinstance(value, PRINTABLE):
        raise TemplateRefused(f"the chat template prints a {type(value).__name__}")
    return value


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Writes JSON as the transformers library does for templates; it does not escape HTML."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return NOT_ASCII.sub(lambda match: json.dumps(match.group())[1:-1], text) if ensure_ascii else text


def _build_case_filter(function: Callable[[str], str]) -> Callable[[object], str]:
    """Makes a filter from a function that changes upper and lower case."""
    return lambda value: apply_uncovered(function, str(value))


# --- loops --------------------------------------------------------------------------------------------------


class LoopTimer(NodeTransformer):
    """Wraps the items of loops in `limit_time`; jinja2 has no hook for loops."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja2's name
        self.generic_visit(node)
        if isinstance(node.iter, nodes.Expr):
            node.iter = nodes.Filter(
                node.iter, TIME_LIMIT_FILTER, [], [], None, None, lineno=node.iter.lineno
            )
        return node


@contextmanager
def limit_render_time() -> Iterator[None]:
    """Sets the time limit for all rendering inside the block."""
    token = _deadline.set(time.monotonic() + MOST_SECONDS)
    try:
        yield
    finally:
        _deadline.reset(token)


def limit_time(items: Iterable[object]) -> Iterator[object]:
    """Yields the items of a loop. Raises TemplateRefused when the time limit has passed."""
    deadline = _deadline.get()
    for item in items:
        if time.monotonic() > deadline:
            raise TemplateRefused("the chat template takes too much work; send fewer or shorter messages")
        yield item


# --- operators ----------------------------------------------------------------------------------------------


def _require_short(length: int) -> None:
    """Raises TemplateRefused for a result of more than `MOST_ITEMS` characters or items."""
    if length > MOST_ITEMS:
        raise TemplateRefused("the chat template makes too long a text; send fewer or shorter messages")


def _require_small(bits: int) -> None:
    """Raises TemplateRefused for an integer of more than `MOST_BITS` bits."""
    if bits > MOST_BITS:
        raise TemplateRefused("the chat template computes with too large a number")


def _multiply(left: object, right: object) -> object:
    """Multiplies two values. Raises TemplateRefused for a large result."""
    for items, repeats in ((left, right), (right, left)):
        if isinstance(items, str | list | tuple) and isinstance(repeats, int):
            _require_short(len(items) * max(repeats, 0))
    if isinstance(left, int) and isinstance(right, int):
        _require_small(left.bit_length() + right.bit_length())
    return operator.mul(left, right)


def _power(left: object, right: object) -> object:
    """Raises a number to a power. Raises TemplateRefused for a large result."""
    if isinstance(left, int) and isinstance(right, int):
        _require_small(left.bit_length() * max(right, 0))
    return operator.pow(left, right)


def _modulo(left: object, right: object) -> object:
    """Divides with remainder, or formats a text. Raises TemplateRefused for a large result."""
    if isinstance(left, str):
        if LARGE_WIDTH.search(left):
            raise TemplateRefused("the chat template formats with too large a width")
        values: Iterable[object] = (right,)
        if isinstance(right, dict):
            values = right.values()
        elif isinstance(right, tuple):
            values = right
        argument_length = sum(len(value) for value in values if isinstance(value, str))
        _require_short(len(left) + left.count("%") * argument_length)
    return operator.mod(left, right)


OPERATORS: Mapping[str, Callable[[object, object], object]] = MappingProxyType(
    {"*": _multiply, "**": _power, "%": _modulo}
)
