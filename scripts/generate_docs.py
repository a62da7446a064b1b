"""Writes the pages under docs/ that are generated from code. With --check it only prints the stale ones.

python scripts/generate_docs.py [--check]
"""

import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import msgspec
import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from antiphon.assembly.dialects import DIALECTS
from antiphon.cli.main import HelpGroup, build_command
from antiphon.dialects.common.field_table import FieldSupport, RequestField, Table
from antiphon.dialects.common.fields import FIELD_TABLE, FieldScope
from antiphon.dialects.common.product_pages import UNSTATED, PageRow, ProductPage
from antiphon.domain.fields import EXPLANATIONS, Need
from antiphon.domain.request import Mirostat, Sampling
from antiphon.engines.base import PromptTokens, TokenRequest
from antiphon.engines.vllm.translation import ModelLimits, build_state, needs_antiphon_sampler
from antiphon.errors import AntiphonError, StartupError, index_by_code
from antiphon.settings.changes import MAX_REMOVED_MODELS
from antiphon.settings.models import (
    LLAMA_ONLY,
    MODEL_DEFAULTS,
    VLLM_ONLY,
    AdapterSettings,
    AliasSettings,
    ModelSettings,
)
from antiphon.settings.providers import ProfileSettings, ProviderSettings, RoutedModelSettings, RouteSettings
from antiphon.settings.schema import SECTIONS, Settings, list_settings
from antiphon.telemetry import exposition as engines
from antiphon.telemetry import metrics as gateway

DOCS = Path(__file__).parents[1] / "docs"
NOTE = "<!-- Made by scripts/generate_docs.py from the code; edit the code and run `make docs`. -->\n"

LIST_TABLES: dict[str, type[msgspec.Struct]] = {
    "models": ModelSettings,
    "adapters": AdapterSettings,
    "aliases": AliasSettings,
}
"""Lists of tables in the settings file, with the type of their items."""

VENDOR_TABLES: dict[str, type[msgspec.Struct]] = {
    "[providers.NAME]": ProviderSettings,
    "[[models]] with routes": RoutedModelSettings,
    "[[models.routes]]": RouteSettings,
    "[models.profile]": ProfileSettings,
}
"""Tables about vendors in the settings file, with their types."""


def build_configuration_page() -> str:
    """Builds the page of all settings: their section, variable, default and meaning."""
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
            f"| `{name}` | `{env}` | {_format_default(value)} | "
            f"{description}{_describe_choices(types[name])} |"
            for name, env, description, value in list_settings(section)
        ]
    for name, table_type in (
        {f"[[{name}]]": table_type for name, table_type in LIST_TABLES.items()} | VENDOR_TABLES
    ).items():
        lines += [
            "",
            f"## `{name}`",
            "",
            " ".join((table_type.__doc__ or "").split()),
            "",
            "| setting | default | meaning |",
            "|---|---|---|",
            *_list_settings(table_type),
        ]
    return "\n".join(lines) + "\n"


def _list_settings(table_type: type[msgspec.Struct]) -> Iterator[str]:
    """Yields a row for each setting of a table."""
    annotated_types, types = get_type_hints(table_type, include_extras=True), get_type_hints(table_type)
    for field in msgspec.structs.fields(table_type):
        description = next(
            item.description
            for item in get_args(annotated_types[field.name])
            if isinstance(item, msgspec.Meta)
        )
        is_empty = field.default is msgspec.NODEFAULT or isinstance(field.default, msgspec.Struct)
        default = "required" if field.required else _format_default(None if is_empty else field.default)
        yield f"| `{field.name}` | {default} | {description}{_describe_choices(types[field.name])} |"


def _describe_choices(hint: object) -> str:
    """Describes the allowed values of a setting that has only a few."""
    if get_origin(hint) is Literal:
        return f" Values: {', '.join(f'`{value}`' for value in get_args(hint))}."
    return next(filter(None, map(_describe_choices, get_args(hint))), "")


def build_errors_page() -> str:
    """Builds the page of all errors: status, code, meaning, and whether to try again."""
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
    error_types = [
        error_type
        for error_type in index_by_code().values()
        if error_type is not AntiphonError and not issubclass(error_type, StartupError)
    ]
    for error_type in sorted(error_types, key=lambda error_type: (error_type.status, error_type.code)):
        meaning = " ".join((error_type.__doc__ or "").split("\n\n")[0].split())
        retry = "yes" if error_type.retryable else ""
        lines.append(f"| {error_type.status} | `{error_type.code}` | {meaning} | {retry} |")
    return "\n".join(lines) + "\n"


SUPPORT = (
    "A field is supported, ignored (the answer's header `x-antiphon-ignored` names it), or refused with a",
    "400 that names it. Fields that are not listed are refused, unless the operator has set",
    '`unknown_fields = "report"`. `null` means that the field is absent.',
)


def build_api_page() -> str:
    """Builds the page of the request fields at /v1 and at related endpoints."""
    lines = ["# API: request fields", "", NOTE, *SUPPORT]
    lines += [
        "",
        "[parameters.md](parameters.md) has the fields of the other products' endpoints.",
        *_explain_needs(),
    ]
    described: dict[Described, str] = {}
    for scope in FieldScope:
        fields = FIELD_TABLE.tables[scope].values()
        lines += ["", f"## `{scope}`", "", *_link_described(fields, described)]
        link = f"[`{scope}`](#{SLUG.sub('', scope).replace(' ', '-')})"
        described |= {_identify(field): link for field in fields if _identify(field) not in described}
    return "\n".join(lines) + "\n"


Described = tuple[str, str, str]
"""A field's name, support and description."""

SLUG = re.compile(r"[^\w -]")
"""The characters of a heading that its link leaves out."""


def _identify(field: RequestField) -> Described:
    return field.name, field.support, _format_description(field)


def _link_described(fields: Iterable[RequestField], described: dict[Described, str]) -> list[str]:
    """Builds the table of fields. Names several fields that are described elsewhere with a link only."""
    fields = list(fields)
    by_link: dict[str, list[RequestField]] = {}
    for field in fields:
        if link := described.get(_identify(field)):
            by_link.setdefault(link, []).append(field)
    lines: list[str] = []
    for link, linked in by_link.items():
        if len(linked) >= FEWEST_LINKED:
            lines += [f"The same as in {link}: {', '.join(f'`{field.name}`' for field in linked)}.", ""]
            fields = [field for field in fields if field not in linked]
    return lines + (_build_field_table(fields) if fields else [])


FEWEST_LINKED = 3
"""Fewer fields are described again: that is shorter to read than a link."""


def _describe_v1() -> dict[Described, str]:
    """Returns the link to each field that api.md describes."""
    fields = (field for table in FIELD_TABLE.tables.values() for field in table.values())
    return {_identify(field): "[`/v1`](api.md)" for field in fields}


def build_parameters_page() -> str:
    """Builds the page that compares the parameters of the products' pages with this server."""
    lines = ["# Parameters of the products' pages", "", NOTE]
    lines += [
        "The tables compare each parameter of the products' own pages with this server. Ranges include both",
        "ends. For the fields of messages, tools and tool calls, see [api.md](api.md).",
        "",
        *SUPPORT,
        '[api.md](api.md) explains the column "needs".',
    ]
    pages = [(each.page, each.field_table.tables) for each in DIALECTS if each.page is not None]
    for page, tables in pages:
        table = tables[page.served_at]
        lines += ["", f"## {page.product}: `{page.endpoint}`", "", *_build_page_section(page, table)]
    for page, tables in pages:
        on_page = {_identify(field) for field in tables[page.served_at].values()}
        for endpoint, table in tables.items():
            if endpoint != page.served_at:
                lines += ["", f"## `{endpoint}`", "", *_build_unpaged_section(table.values(), on_page)]
    for dialect in DIALECTS:
        if dialect.page is None and dialect.prefix:
            endpoint, table = next(iter(dialect.field_table.tables.items()))
            lines += ["", f"## `POST {endpoint}`", "", *_build_field_table(table.values())]
    return "\n".join(lines) + "\n"


def _build_unpaged_section(fields: Iterable[RequestField], on_page: Collection[Described]) -> list[str]:
    """Builds the section of an object that no product page has. Only names the fields that the dialect's page
    also has."""
    fields = list(fields)
    fields_on_pages = [field for field in fields if _identify(field) in on_page]
    lines = ["The product's pages do not list this.", ""]
    if fields_on_pages:
        names = ", ".join(f"`{field.name}`" for field in fields_on_pages)
        lines += [f"These fields are the same as in the product's table above: {names}.", ""]
    return lines + _link_described(
        [field for field in fields if field not in fields_on_pages], _describe_v1()
    )


def _build_field_table(fields: Iterable[RequestField]) -> list[str]:
    """Builds the table of fields. Fields with the same meaning share a row."""
    rows = sorted(fields, key=_order_support)
    names: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        names.setdefault((row.support, _format_need(row), _format_description(row)), []).append(
            f"`{row.name}`"
        )
    return [
        "| field | support | needs | meaning |",
        "|---|---|---|---|",
        *(f"| {', '.join(names[row])} | {' | '.join(row)} |" for row in names),
    ]


def _build_page_section(page: ProductPage, table: Table) -> list[str]:
    lines = [f"Served at `POST {page.served_at}`.", ""]
    lines += [
        "| parameter | the page | support | needs | meaning here | differs |",
        "|---|---|---|---|---|---|",
    ]
    for row in page.rows:
        field = table[row.name]
        lines.append(
            f"| `{row.name}` | {_describe_stated(row)} | {field.support} | {_format_need(field)} | "
            f"{_format_description(field)} "
            f"| {row.difference} |"
        )
    for header in page.headers:
        type_text = "string, required" if header.required else "string"
        lines.append(
            f"| header `{header.name}` | {type_text} | supported | | {header.meaning} | {header.difference} |"
        )
    page_fields = {row.name for row in page.rows}
    other_fields = [field for name, field in table.items() if name not in page_fields]
    return [*lines, "", "Not on the page:", "", *_link_described(other_fields, _describe_v1())]


def _describe_stated(row: PageRow) -> str:
    """Describes a parameter as the product's page states it: type, default, range."""
    facts = [row.type.replace("|", "or")]
    if row.required:
        facts.append("required")
    if row.default is not UNSTATED:
        facts.append(f"default `{json.dumps(row.default)}`")
    if row.low is not None or row.high is not None:
        facts.append(f"at least {row.low}" if row.high is None else f"{row.low} to {row.high}")
    return ", ".join(facts)


def _explain_needs() -> list[str]:
    """Explains the words in the column of needs."""
    lines = [
        "",
        'The column "needs" has what a field needs. A model without this refuses the field by name:',
        "",
    ]
    return [*lines, *(f"- {need}: {explanation}" for need, explanation in EXPLANATIONS.items())]


def _format_need(row: RequestField) -> str:
    """Formats what a field needs; empty if every engine supports it."""
    return "" if row.need is Need.NOTHING else row.need


def build_metrics_page() -> str:
    """Builds the page of all metrics."""
    lines = [
        "# Metrics",
        "",
        NOTE,
        "`GET /metrics` answers in Prometheus' text format. If the server has keys, it needs one. Times are",
        "in seconds. [operations.md](operations.md) shows how to compute rates and percentiles. Labels never",
        "contain prompts, keys or callers. Of the names that callers invent, only",
        "`antiphon_unused_fields_total` has some: names of JSON fields, at most 50 in each HTTP process.",
        "A model with several",
        "[hosts](routes.md#several-engine-hosts-of-one-model) has an engine for each: `chat/1`, `chat/2`.",
        "",
        "The counters of a model that a [reload](reload.md) removes stay until the server restarts. This",
        f"holds for the last {MAX_REMOVED_MODELS} removed models. The metrics of its engine and routes",
        "vanish at once. Those of an adapter vanish when it is unloaded.",
    ]
    for title, families in (("The server", gateway.FAMILIES), ("Each engine", engines.FAMILIES)):
        lines += ["", f"## {title}", "", "| name | kind | labels | meaning |", "|---|---|---|---|"]
        for family in families:
            labels = ", ".join(f"`{label}`" for label in family.labels)
            lines.append(f"| `{family.name}` | {family.kind} | {labels} | {family.description} |")
    return "\n".join(lines) + "\n"


def build_commands_page() -> str:
    """Builds the page of all commands with their arguments and options."""
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
    root = build_command()
    root_commands = root.commands if isinstance(root, TyperGroup) else {}
    lines += ["", "| group | commands |", "|---|---|"]
    for group in HelpGroup:
        names = [
            name for name, each in root_commands.items() if getattr(each, "rich_help_panel", None) == group
        ]
        lines.append(f"| {group.lower()} | {', '.join(f'`{name}`' for name in names)} |")
    context = typer.Context(root)
    commands = dict(_iterate_commands(root, "antiphon"))
    serve_rows = [_describe_parameter(parameter, context) for parameter in commands["antiphon serve"].params]
    for command_name, command in sorted(commands.items()):
        usage = " ".join([command_name, *command.collect_usage_pieces(typer.Context(command))])
        lines += [
            "",
            f"## `{command_name}`",
            "",
            " ".join((command.help or "").split()),
            "",
            "```text",
            usage,
            "```",
        ]
        rows = [_describe_parameter(parameter, context) for parameter in command.params]
        common_options = [name for name, row in COMMON_ROWS.items() if row in rows]
        if command_name != "antiphon serve" and set(serve_rows) <= set(rows):
            common_options = [
                "those of [`antiphon serve`](#antiphon-serve)",
                *(parameter for parameter in common_options if parameter != "`--config`"),
            ]
            rows = [row for row in rows if row not in serve_rows]
        rows = [row for row in rows if row not in COMMON_ROWS.values()]
        if rows:
            lines += ["", "| argument or option | meaning |", "|---|---|", *rows]
        if common_options:
            lines += ["", f"{'More options' if rows else 'Options'}: {', '.join(common_options)}."]
    return "\n".join(lines) + "\n"


COMMON_ROWS = {
    "`--url`": "| `--url <str>` | Address of the server. [that of the settings: http://127.0.0.1:8000] |",
    "`--wide`": "| `--wide` | Show all columns, also those of ids. |",
    "`--json`": "| `--json` | Print one JSON object instead of text. |",
    "`--config`": "| `--config <path>` | Settings file. [antiphon.toml, here or in ANTIPHON_HOME] |",
}
"""The rows of the options that most commands have, by name."""


def _iterate_commands(command: object, path: str) -> Iterator[tuple[str, TyperCommand]]:
    """Yields each command that is not a group, with its full name."""
    if isinstance(command, TyperGroup):
        for name, subcommand in command.commands.items():
            yield from _iterate_commands(subcommand, f"{path} {name}")
    elif isinstance(command, TyperCommand):
        yield path, command


def _describe_parameter(parameter: object, context: typer.Context) -> str:
    """Builds the row of an argument or option."""
    if isinstance(parameter, TyperArgument):
        names, meaning = f"`{parameter.human_readable_name}`", parameter.help
    elif isinstance(parameter, TyperOption):
        value = "" if parameter.is_flag else f" {parameter.make_metavar(context)}"
        names = ", ".join(f"`{name}{value}`" for name in (*parameter.opts, *parameter.secondary_opts))
        default, meaning = parameter.default, parameter.help
        if (
            parameter.show_default
            and isinstance(default, int | float | str)
            and not isinstance(default, bool)
        ):
            meaning = f"{meaning} [{default}]"
    else:
        raise TypeError(type(parameter))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (names, meaning or "")) + " |"


def build_engine_fields_page() -> str:
    """Builds the page that compares the local engines by the options of a token request."""
    lines = [
        NOTE,
        "# Fields by engine",
        "",
        "A request has the same meaning on every local engine. The first table shows which sampler draws the",
        "tokens. On a GPU, vLLM's own sampler draws if its distribution is the same. Then equal seeds draw",
        "other tokens than on llama.cpp. See [vLLM](vllm.md).",
        "",
        "In a [Ray cluster](ray.md) each replica is one of these engines, so its column holds there too.",
        'Only `hosts`, `devices` of vLLM, `mmproj` and `load = "request"` are refused there.',
        "",
        "| option of the sampler | llama.cpp | vLLM on a processor | vLLM on a GPU |",
        "|---|---|---|---|",
        *(_describe_sampler(name, SAMPLING_EXAMPLES[name]) for name in Sampling.__struct_fields__),
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


SAMPLING_EXAMPLES: dict[str, object] = {
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
"""For each field of `Sampling`, a value that has an effect."""

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
    ("images and recordings", "with a projector", "refused"),
    ("models that are loaded on request", "yes", "refused"),
    ("weights", "one GGUF file, or its parts", "a folder of safetensors"),
)


def _describe_sampler(name: str, value: object) -> str:
    """Builds a row with the sampler that draws the tokens of a request with this option."""
    sampling = Sampling(**{"temperature": 0.7} | {name: value})  # type: ignore[arg-type]
    request = TokenRequest(PromptTokens((1,)), 5, sampling)
    samplers = []
    for draws_all in (True, False):
        limits = ModelLimits(context_length=99, vocabulary=99, end_ids=(2,), draws_all=draws_all)
        is_antiphon = needs_antiphon_sampler(request, build_state(request, (1,), limits), limits)
        samplers.append("Antiphon's sampler" if is_antiphon else "vLLM's sampler")
    return f"| `{name}` | Antiphon's sampler | {samplers[0]} | {samplers[1]} |"


def _order_support(row: RequestField) -> int:
    return list(FieldSupport).index(row.support)


def _format_description(row: RequestField) -> str:
    accepted = ", ".join(f"`{json.dumps(value)}`" for value in row.accepted_values)
    description = row.description.replace("|", "\\|")
    return f"{description} (accepted: {accepted})" if accepted else description


def _format_default(value: object) -> str:
    return "none" if value is None or value == () else f"`{value}`"


PAGE_BUILDERS = {
    "cli.md": build_commands_page,
    "configuration.md": build_configuration_page,
    "engine-fields.md": build_engine_fields_page,
    "errors.md": build_errors_page,
    "api.md": build_api_page,
    "metrics.md": build_metrics_page,
    "parameters.md": build_parameters_page,
}


def main() -> int:
    stale = [name for name, build_page in PAGE_BUILDERS.items() if _read_text(DOCS / name) != build_page()]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"docs/{name} is stale; run `make docs`")
        return 1 if stale else 0
    for name in stale:
        (DOCS / name).write_text(PAGE_BUILDERS[name](), "utf-8")
    return 0


def _read_text(path: Path) -> str | None:
    return path.read_text("utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
