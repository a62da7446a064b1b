"""Writes the pages under docs/ that are made from code; with --check it only says which are stale.

python scripts/generate_docs.py [--check]
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import msgspec
import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from antiphon.cli.main import app
from antiphon.dialects.common.field_table import FieldSupport, Need, RequestField
from antiphon.dialects.common.fields import FIELDS, FieldScope
from antiphon.dialects.common.product_pages import PAGES, UNSTATED, PageRow, ProductPage
from antiphon.domain.sampling import Mirostat, Sampling
from antiphon.engines.base import TokenRequest, TokenSegment
from antiphon.engines.vllm.requests import ModelLimits, build_state, needs_own_sampler
from antiphon.errors import AntiphonError, StartupError, index_by_code
from antiphon.settings.models import (
    LLAMA_ONLY,
    MODEL_DEFAULTS,
    VLLM_ONLY,
    AdapterSettings,
    AliasSettings,
    ModelSettings,
)
from antiphon.settings.providers import (
    ProfileSettings,
    ProviderSettings,
    RoutedModelSettings,
    RouteSettings,
)
from antiphon.settings.schema import SECTIONS, Settings, list_settings
from antiphon.telemetry import exposition as engines
from antiphon.telemetry import metrics as gateway

DOCS = Path(__file__).parents[1] / "docs"
NOTE = "<!-- Made by scripts/generate_docs.py from the code; edit the code and run `make docs`. -->\n"

LISTED: dict[str, type[msgspec.Struct]] = {
    "models": ModelSettings,
    "adapters": AdapterSettings,
    "aliases": AliasSettings,
}
"""Lists of tables in the settings file, and what one of them is."""

VENDOR_TABLES: dict[str, type[msgspec.Struct]] = {
    "[providers.NAME]": ProviderSettings,
    "[[models]] with routes": RoutedModelSettings,
    "[[models.routes]]": RouteSettings,
    "[models.profile]": ProfileSettings,
}
"""Tables of vendors, and what one of them is."""


def configuration() -> str:
    """Every setting: its place in the file, its variable, default and meaning."""
    lines = [
        "# Configuration",
        "",
        NOTE,
        "`antiphon serve` needs no settings. Write settings into `antiphon.toml`, in the current directory "
        "or",
        "in `ANTIPHON_HOME`, or name another file with `--config PATH`. An environment variable overrides "
        "the",
        "file, and a flag overrides both. An unknown key in the file is an error. `antiphon config` prints",
        "each value and its source.",
    ]
    hints = get_type_hints(Settings)
    for section in SECTIONS:
        lines += [
            "",
            f"## `[{section}]`",
            "",
            hints[section].__doc__ or "",
            "",
            "| setting | variable | default | meaning |",
        ]
        lines.append("|---|---|---|---|")
        types = get_type_hints(hints[section])
        lines += [
            f"| `{name}` | `{env}` | {_shown(value)} | {doc}{_choices(types[name])} |"
            for name, env, doc, value in list_settings(section)
        ]
    for name, shape in ({f"[[{name}]]": shape for name, shape in LISTED.items()} | VENDOR_TABLES).items():
        lines += [
            "",
            f"## `{name}`",
            "",
            " ".join((shape.__doc__ or "").split()),
            "",
            "| setting | default | meaning |",
            "|---|---|---|",
            *_listed(shape),
        ]
    return "\n".join(lines) + "\n"


def _listed(shape: type[msgspec.Struct]) -> Iterator[str]:
    """A row for each setting of one in a list."""
    described, types = get_type_hints(shape, include_extras=True), get_type_hints(shape)
    for field in msgspec.structs.fields(shape):
        doc = next(
            item.description for item in get_args(described[field.name]) if isinstance(item, msgspec.Meta)
        )
        is_empty = field.default is msgspec.NODEFAULT or isinstance(field.default, msgspec.Struct)
        default = "required" if field.required else _shown(None if is_empty else field.default)
        yield f"| `{field.name}` | {default} | {doc}{_choices(types[field.name])} |"


def _choices(hint: object) -> str:
    """The values of a setting that takes one or several of a few, as they are written."""
    if get_origin(hint) is Literal:
        return f" Values: {', '.join(f'`{value}`' for value in get_args(hint))}."
    return next(filter(None, map(_choices, get_args(hint))), "")


def errors() -> str:
    """Every error a caller can meet: status, code, meaning, and whether trying again makes sense."""
    lines = [
        "# Errors",
        "",
        NOTE,
        "An error of `/v1` has a `code`, a `message` for people, and in `param` the wrong field. The other",
        "dialects write the same errors in their own form. If the last column says yes, you can send the "
        "same",
        "request again, after `Retry-After` seconds if the answer has this header. In other cases, change",
        "something first.",
        "",
        "| status | code | meaning | try again |",
        "|---|---|---|---|",
    ]
    found = [
        cls
        for cls in index_by_code().values()
        if cls is not AntiphonError and not issubclass(cls, StartupError)
    ]
    for cls in sorted(found, key=lambda cls: (cls.status, cls.code)):
        meaning = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
        lines.append(f"| {cls.status} | `{cls.code}` | {meaning} | {'yes' if cls.retryable else ''} |")
    return "\n".join(lines) + "\n"


SUPPORT = (
    "A field is supported, ignored (the answer's header `x-antiphon-ignored` names it), or refused with a",
    "400 that names it. Fields that are not listed are refused, unless the operator has set",
    '`unknown_fields = "report"`. `null` means that the field is absent.',
)


def api() -> str:
    """What becomes of each field of the requests at /v1 and beside it."""
    lines = ["# API: request fields", "", NOTE, *SUPPORT]
    lines += [
        "",
        "[parameters.md](parameters.md) has the fields of the other products' endpoints.",
        *_needs(),
    ]
    described: dict[Described, str] = {}
    for place in FieldScope:
        fields = [field for field in FIELDS if place in field.scopes]
        lines += ["", f"## `{place}`", "", *_link_described(fields, described)]
        link = f"[`{place}`](#{SLUG.sub('', place).replace(' ', '-')})"
        described |= {_identify(field): link for field in fields if _identify(field) not in described}
    return "\n".join(lines) + "\n"


Described = tuple[str, str, str]
"""A field's name, support and description."""

SLUG = re.compile(r"[^\w -]")
"""What the link to a heading leaves out."""


def _identify(field: RequestField) -> Described:
    return field.name, field.support, _said(field)


def _link_described(fields: Iterable[RequestField], described: dict[Described, str]) -> list[str]:
    """The rows of fields. Several fields that are described elsewhere are only named, with the link."""
    fields = list(fields)
    found: dict[str, list[RequestField]] = {}
    for field in fields:
        if link := described.get(_identify(field)):
            found.setdefault(link, []).append(field)
    lines: list[str] = []
    for link, each in found.items():
        if len(each) >= FEWEST_LINKED:
            lines += [f"The same as in {link}: {', '.join(f'`{field.name}`' for field in each)}.", ""]
            fields = [field for field in fields if field not in each]
    return lines + (_fields(fields) if fields else [])


FEWEST_LINKED = 3
"""Fewer fields are described again: that is shorter to read than a link."""


def _describe_v1() -> dict[Described, str]:
    """The link to the fields that api.md describes."""
    return {_identify(field): "[`/v1`](api.md)" for field in FIELDS}


def parameters() -> str:
    """Every parameter of the products' pages, beside what becomes of it here."""
    lines = ["# Parameters of the products' pages", "", NOTE]
    lines += [
        "The tables compare each parameter of the products' own pages with this server. Ranges include both",
        "ends. For the fields of messages, tools and tool calls, see [api.md](api.md).",
        "",
        *SUPPORT,
        '[api.md](api.md) explains the column "needs".',
    ]
    for page in PAGES:
        lines += ["", f"## {page.product}: `{page.endpoint}`", "", *_page(page)]
    paged = {page.served_at for page in PAGES}
    for dialect in dict.fromkeys(page.dialect for page in PAGES):
        for place, table in import_module(f"antiphon.dialects.{dialect}.fields").FIELD_TABLE.tables.items():
            if place not in paged:
                lines += ["", f"## `{place}`", "", *_unpaged(table.values(), paged)]
    return "\n".join(lines) + "\n"


def _unpaged(fields: Iterable[RequestField], paged: set[str]) -> list[str]:
    """The fields of an object that is on no page. Fields that are the same on a page are only named."""
    fields = list(fields)
    shared = [field for field in fields if any(place in paged for place in field.scopes)]
    lines = ["The product's pages do not list this.", ""]
    if shared:
        names = ", ".join(f"`{field.name}`" for field in shared)
        lines += [f"These fields are the same as in the product's table above: {names}.", ""]
    return lines + _link_described([field for field in fields if field not in shared], _describe_v1())


def _fields(fields: Iterable[RequestField]) -> list[str]:
    """A row for each field of one place. Fields with the same meaning share a row."""
    rows = sorted(fields, key=_order_support)
    names: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        names.setdefault((row.support, _need(row), _said(row)), []).append(f"`{row.name}`")
    return [
        "| field | support | needs | meaning |",
        "|---|---|---|---|",
        *(f"| {', '.join(names[row])} | {' | '.join(row)} |" for row in names),
    ]


def _page(page: ProductPage) -> list[str]:
    table = import_module(f"antiphon.dialects.{page.dialect}.fields").FIELD_TABLE.tables[page.served_at]
    lines = [f"Served at `POST {page.served_at}`.", ""]
    lines += [
        "| parameter | the page | support | needs | meaning here | differs |",
        "|---|---|---|---|---|---|",
    ]
    for row in page.rows:
        field = table[row.name]
        lines.append(
            f"| `{row.name}` | {_paged(row)} | {field.support} | {_need(field)} | {_said(field)} "
            f"| {row.difference} |"
        )
    for header in page.headers:
        stated = "string, required" if header.required else "string"
        lines.append(
            f"| header `{header.name}` | {stated} | supported | | {header.meaning} | {header.difference} |"
        )
    named = {row.name for row in page.rows}
    further = [field for name, field in table.items() if name not in named]
    return [*lines, "", "Not on the page:", "", *_link_described(further, _describe_v1())]


def _paged(row: PageRow) -> str:
    """What the page says: type, default, range."""
    said = [row.type.replace("|", "or")]
    if row.required:
        said.append("required")
    if row.default is not UNSTATED:
        said.append(f"default `{json.dumps(row.default)}`")
    if row.low is not None or row.high is not None:
        said.append(f"at least {row.low}" if row.high is None else f"{row.low} to {row.high}")
    return ", ".join(said)


def _needs() -> list[str]:
    """What the words of the column mean."""
    lines = [
        "",
        'The column "needs" has what a field needs. A model without this refuses the field by name:',
        "",
    ]
    return [*lines, *(f"- {need}: {need.explanation}" for need in Need if need is not Need.NOTHING)]


def _need(row: RequestField) -> str:
    """Empty where every engine will do."""
    return "" if row.needs is Need.NOTHING or row.support is not FieldSupport.SUPPORTED else row.needs


def metrics() -> str:
    """Every name that /metrics shows."""
    lines = [
        "# Metrics",
        "",
        NOTE,
        "`GET /metrics` answers in Prometheus' text format. If the server has keys, it needs one. Times are",
        "in seconds. [operations.md](operations.md) shows how to compute rates and percentiles. Labels never",
        "contain prompts, keys, callers, or names that callers invent. A model with several",
        "[hosts](routes.md#several-engine-hosts-of-one-model) has an engine for each: `chat/1`, `chat/2`.",
    ]
    for title, families in (("The server", gateway.FAMILIES), ("Each engine", engines.FAMILIES)):
        lines += ["", f"## {title}", "", "| name | kind | labels | meaning |", "|---|---|---|---|"]
        for each in families:
            labels = ", ".join(f"`{label}`" for label in each.labels)
            lines.append(f"| `{each.name}` | {each.kind} | {labels} | {each.description} |")
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Every command with its arguments and options."""
    lines = [
        "# Commands",
        "",
        NOTE,
        "`-h` or `--help` of a command prints its help. The default of an option is in brackets. These",
        "options have the same meaning for all commands:",
        "",
        "| option | meaning |",
        "|---|---|",
        *COMMON_ROWS.values(),
        "",
        "Write a project, a user or a key by its name, e-mail address or id. For a key you can also write "
        "its",
        "prefix or note, for a limit its note, and for a price its models. The command prints which object "
        "it",
        "used. If several have the name, it lists their ids and does nothing.",
        "",
        "To complete commands with the tab key in bash, add this line to `~/.bashrc`. `antiphon completion`",
        "also knows zsh and fish:",
        "",
        "```text",
        'eval "$(antiphon completion bash)"',
        "```",
    ]
    root = typer.main.get_command(app)
    context = typer.Context(root)
    found = dict(_walk(root, "antiphon"))
    serving = [_describe_parameter(each, context) for each in found["antiphon serve"].params]
    for path, command in sorted(found.items()):
        usage = " ".join([path, *command.collect_usage_pieces(typer.Context(command))])
        lines += ["", f"## `{path}`", "", " ".join((command.help or "").split()), "", "```text", usage, "```"]
        rows = [_describe_parameter(each, context) for each in command.params]
        taken = [name for name, row in COMMON_ROWS.items() if row in rows]
        if path != "antiphon serve" and set(serving) <= set(rows):
            taken = [
                "those of [`antiphon serve`](#antiphon-serve)",
                *(each for each in taken if each != "`--config`"),
            ]
            rows = [row for row in rows if row not in serving]
        rows = [row for row in rows if row not in COMMON_ROWS.values()]
        if rows:
            lines += ["", "| argument or option | meaning |", "|---|---|", *rows]
        if taken:
            lines += ["", f"{'More options' if rows else 'Options'}: {', '.join(taken)}."]
    return "\n".join(lines) + "\n"


COMMON_ROWS = {
    "`--url`": "| `--url <str>` | Address of the server. [that of the settings: http://127.0.0.1:8000] |",
    "`--json`": "| `--json` | Print one JSON object instead of text. |",
    "`--config`": "| `--config <path>` | Settings file. [antiphon.toml, here or in ANTIPHON_HOME] |",
}
"""The rows of options that most commands have, by their names."""


def _walk(command: object, path: str) -> Iterator[tuple[str, TyperCommand]]:
    """Yields each command that does something, with its whole name."""
    if isinstance(command, TyperGroup):
        for name, each in command.commands.items():
            yield from _walk(each, f"{path} {name}")
    elif isinstance(command, TyperCommand):
        yield path, command


def _describe_parameter(parameter: object, context: typer.Context) -> str:
    """A row for an argument or option of a command."""
    if isinstance(parameter, TyperArgument):
        names, meaning = f"`{parameter.human_readable_name}`", parameter.help
    elif isinstance(parameter, TyperOption):
        value = "" if parameter.is_flag else f" {parameter.make_metavar(context)}"
        names = ", ".join(f"`{name}{value}`" for name in (*parameter.opts, *parameter.secondary_opts))
        usual, meaning = parameter.default, parameter.help
        if parameter.show_default and isinstance(usual, int | float | str) and not isinstance(usual, bool):
            meaning = f"{meaning} [{usual}]"
    else:
        raise TypeError(type(parameter))
    return "| " + " | ".join(each.replace("|", "\\|") for each in (names, meaning or "")) + " |"


def engine_fields() -> str:
    """What each local engine does with each option of a token request, as the code decides it."""
    lines = [
        NOTE,
        "# Fields by engine",
        "",
        "A request has the same meaning on every local engine. The first table shows which sampler draws the",
        "tokens. On a GPU, vLLM's own sampler draws if its distribution is the same. Then equal seeds draw",
        "other tokens than on llama.cpp. See [vLLM](vllm.md).",
        "",
        "| option of the sampler | llama.cpp | vLLM on a processor | vLLM on a GPU |",
        "|---|---|---|---|",
        *(_describe_drawing(name, DRAWN[name]) for name in Sampling.__dataclass_fields__),
        "",
        "| feature | llama.cpp | vLLM |",
        "|---|---|---|",
        *(f"| {feature} | {llama} | {vllm} |" for feature, llama, vllm in ENGINE_FEATURES),
        "",
        "| setting of a model | llama.cpp | vLLM |",
        "|---|---|---|",
        *(
            f"| `{name}` | {'refused' if name in VLLM_ONLY else 'acts'} | "
            f"{'refused' if name in LLAMA_ONLY else 'refused on a GPU' if name == 'cells' else 'acts'} |"
            for name in MODEL_DEFAULTS
            if name not in ("name", "engine")
        ),
        "",
    ]
    return "\n".join(lines)


DRAWN: dict[str, object] = {
    "temperature": 0.7,
    "top_p": 0.5,
    "top_k": 9,
    "min_p": 0.1,
    "seed": 7,
    "typical_p": 0.5,
    "repetition_penalty": 1.5,
    "presence_penalty": 1.0,
    "frequency_penalty": 1.0,
    "logit_bias": ((7, 1.0),),
    "mirostat": Mirostat(),
    "min_tokens": 2,
    "ignore_eos": True,
    "allowed_token_ids": (7,),
    "banned": ((7,),),
}
"""A value that acts, of each field of `Sampling`."""

ENGINE_FEATURES = (
    ("temperature 0", "the most likely token", "the most likely token"),
    ("constraints: JSON Schema, regex, choice, grammar, tool calls", "yes", "yes"),
    ("log-probabilities of the raw distribution, any number of alternatives", "yes", "yes"),
    ("log-probabilities of the prompt", "yes", "yes"),
    ("adapters", "GGUF or PEFT", "PEFT"),
    ("several adapters in one step", "no, they take turns", "yes"),
    ("shared prefixes, salts, priorities, fair turns", "yes", "yes"),
    ("exact mode", "yes", "refused"),
    ("embeddings and rankings", "yes", "refused"),
    ("fill in the middle (`suffix`)", "if the model can", "refused"),
    ("models that are loaded on request", "yes", "refused"),
    ("weights", "one GGUF file, or its parts", "a folder of safetensors"),
)


def _describe_drawing(name: str, value: object) -> str:
    """A row: who draws the tokens of a request with this option."""
    sampling = Sampling(**{"temperature": 0.7} | {name: value})  # type: ignore[arg-type]
    request = TokenRequest((TokenSegment((1,)),), 5, sampling)
    drawers = []
    for draws_all in (True, False):
        limits = ModelLimits(context_length=99, vocabulary=99, ends=(2,), draws_all=draws_all)
        own = needs_own_sampler(request, build_state(request, (1,), limits), limits)
        drawers.append("Antiphon's sampler" if own else "vLLM's sampler")
    return f"| `{name}` | Antiphon's sampler | {drawers[0]} | {drawers[1]} |"


def _order_support(row: RequestField) -> int:
    return list(FieldSupport).index(row.support)


def _said(row: RequestField) -> str:
    harmless = ", ".join(f"`{json.dumps(value)}`" for value in row.accepted_values)
    says = row.description.replace("|", "\\|")
    return f"{says} (accepted: {harmless})" if harmless else says


def _shown(value: object) -> str:
    return "none" if value is None or value == () else f"`{value}`"


MADE = {
    "cli.md": commands,
    "configuration.md": configuration,
    "engine-fields.md": engine_fields,
    "errors.md": errors,
    "api.md": api,
    "metrics.md": metrics,
    "parameters.md": parameters,
}


def main() -> int:
    stale = [name for name, page in MADE.items() if _text(DOCS / name) != page()]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"docs/{name} is stale; run `make docs`")
        return 1 if stale else 0
    for name in stale:
        (DOCS / name).write_text(MADE[name](), "utf-8")
    return 0


def _text(path: Path) -> str | None:
    return path.read_text("utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
