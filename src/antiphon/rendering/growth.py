"""Filters and methods of templates whose result can be far larger than what they are given, each made to
compute that size before doing it."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from jinja2 import pass_environment, pass_eval_context
from jinja2.environment import Environment
from jinja2.filters import do_batch, do_format, do_indent, do_join, do_replace, do_round, do_slice, do_sum
from jinja2.nodes import EvalContext

from antiphon.errors import TemplateRefused
from antiphon.rendering.allowance import allowance, held, weigh

LARGEST_COUNT = 10_000
"""Columns, batches, repetitions that a filter's parameter may ask for."""

WIDEST = 64
"""Characters of one indentation or separator."""

LARGE_WIDTH = re.compile(r"\d{3,}|\*")
"""In a format: a width or precision of more than two digits, or one taken from an argument."""

NESTED_FIELD = re.compile(r"\{[^{}]*\{")
NOT_ASCII = re.compile("[^\x00-\x7f\ue000-\uf8ff\U000f0000-\U0010ffff]")
"""What `ensure_ascii` escapes: not the private-use characters, which may stand for others."""


def before_replace(text: str, old: str, new: str, count: int = -1) -> tuple[str, str, int]:
    """What `text.replace` is called with."""
    found = text.count(old) if count < 0 else min(count, text.count(old))
    allowance().copy(len(text) + found * max(len(new) - len(old), 0))
    return old, new, count


def before_join(text: str, parts: Iterable[object]) -> tuple[list[object]]:
    """What `text.join` is called with: a list, since a stream would be used up by looking."""
    listed = list(parts)
    allowance().copy(weigh(listed) + len(text) * len(listed))
    return (listed,)


def require_format(text: str, arguments: Sequence[object]) -> None:
    if LARGE_WIDTH.search(text) or NESTED_FIELD.search(text):
        raise TemplateRefused("the chat template formats with too large a width")
    fields = text.count("%") + text.count("{")
    allowance().copy(len(text) + fields * (100 + weigh(list(arguments))))


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise TemplateRefused(f"the chat template asks for a larger {what} than any prompt needs")


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> object:
    """JSON as the transformers library writes it for templates; not escaped for HTML."""
    _require(indent is None or 0 <= indent <= WIDEST, "indentation")
    _require(separators is None or max(map(len, separators)) <= WIDEST, "separator")
    allowance().copy(weigh(value) * (2 if indent is None else 2 + indent))
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return held(NOT_ASCII.sub(lambda found: json.dumps(found.group())[1:-1], text) if ensure_ascii else text)


@pass_eval_context
def join(
    context: EvalContext, value: Iterable[object], d: str = "", attribute: str | int | None = None
) -> object:
    (listed,) = before_join(str(d), value)
    return held(do_join(context, listed, d, attribute))


@pass_eval_context
def replace(context: EvalContext, s: str, old: str, new: str, count: int | None = None) -> object:
    before_replace(str(s), str(old), str(new), -1 if count is None else count)
    return held(do_replace(context, s, old, new, count))


def indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> object:
    size = width if isinstance(width, int) else len(width)
    _require(size <= WIDEST, "indentation")
    allowance().copy(len(s) + (s.count("\n") + 1) * size)
    return held(do_indent(s, width, first, blank))


def formatted(value: str, *args: object, **kwargs: object) -> object:
    require_format(str(value), [*args, *kwargs.values()])
    return held(do_format(value, *args, **kwargs))


def batch(value: Iterable[object], linecount: int, fill_with: object = None) -> object:
    _require(0 < linecount <= LARGEST_COUNT, "batch")
    return held(list(do_batch(list(value), linecount, fill_with)))


def sliced(value: Iterable[object], slices: int, fill_with: object = None) -> object:
    _require(0 < slices <= LARGEST_COUNT, "number of slices")
    return held(list(do_slice(list(value), slices, fill_with)))


def rounded(value: float, precision: int = 0, method: str = "common") -> object:
    _require(abs(precision) <= WIDEST, "precision")
    return held(do_round(value, precision, method))  # type: ignore[arg-type]


@pass_environment
def total(
    environment: Environment, iterable: Iterable[object], attribute: str | int | None = None, start: float = 0
) -> object:
    """Adds numbers; adding lists would copy them again and again."""
    listed = list(iterable)
    allowance().spend(len(listed))
    if not isinstance(start, int | float):
        raise TemplateRefused("the chat template sums something that is no number")
    return held(do_sum(environment, listed, attribute, start))


def unchanged(value: object) -> object:
    """`safe`: nothing is escaped here, so nothing has to be kept from it."""
    return value


BOUNDED_FILTERS: Mapping[str, Callable[..., object]] = MappingProxyType(
    {
        "tojson": tojson,
        "join": join,
        "replace": replace,
        "indent": indent,
        "format": formatted,
        "batch": batch,
        "slice": sliced,
        "round": rounded,
        "sum": total,
        "safe": unchanged,
    }
)
