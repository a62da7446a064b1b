"""Writes the pages under docs/ that are made from code; with --check it only says which are stale.

python scripts/generate_docs.py [--check]
"""

import json
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec

from antiphon.dialects.openai.fields import FIELDS
from antiphon.dialects.openai.places import Place
from antiphon.dialects.table import Field, Standing
from antiphon.errors import AntiphonError, StartupError, classes_by_code
from antiphon.settings import SECTIONS, Settings, declared
from antiphon.settings_model import ModelSettings
from antiphon.telemetry import engines
from antiphon.telemetry import metrics as gateway

DOCS = Path(__file__).parents[1] / "docs"
NOTE = "<!-- Made by scripts/generate_docs.py from the code; edit the code and run `make docs`. -->\n"


def configuration() -> str:
    """Every setting: its place in the file, its variable, default and meaning."""
    lines = [
        "# Configuration",
        "",
        NOTE,
        "A flag beats an environment variable, which beats `antiphon.toml` (here, or in the directory that",
        "`ANTIPHON_HOME` names; `--config PATH` names another). Unknown keys are errors. A bare",
        "`antiphon serve` needs none of it.",
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
        lines += [
            f"| `{name}` | `{env}` | {_shown(value)} | {doc} |" for name, env, doc, value in declared(section)
        ]
    lines += [
        "",
        "## `[[models]]`",
        "",
        ModelSettings.__doc__ or "",
        "",
        "| setting | default | meaning |",
        "|---|---|---|",
    ]
    described = get_type_hints(ModelSettings, include_extras=True)
    for field in msgspec.structs.fields(ModelSettings):
        doc = next(
            item.description for item in get_args(described[field.name]) if isinstance(item, msgspec.Meta)
        )
        default = "required" if field.required else _shown(field.default)
        lines.append(f"| `{field.name}` | {default} | {doc} |")
    return "\n".join(lines) + "\n"


def errors() -> str:
    """Every error a caller can meet: status, code, meaning, and whether trying again makes sense."""
    lines = ["# Errors", "", NOTE, "| status | code | meaning | try again |", "|---|---|---|---|"]
    found = [
        cls
        for cls in classes_by_code().values()
        if cls is not AntiphonError and not issubclass(cls, StartupError)
    ]
    for cls in sorted(found, key=lambda cls: (cls.status, cls.code)):
        meaning = (cls.__doc__ or "").split("\n")[0]
        lines.append(f"| {cls.status} | `{cls.code}` | {meaning} | {'yes' if cls.retryable else ''} |")
    return "\n".join(lines) + "\n"


def api() -> str:
    """What becomes of each field of the requests."""
    lines = ["# API: request fields", "", NOTE]
    lines += [
        "A field is supported, accepted and ignored (the header `x-antiphon-ignored` then names it), or",
        "refused with status 400 and its name. A field that is not listed is refused too, unless the",
        'operator set `unknown_fields = "report"`: then the header names it. null means absent.',
    ]
    for place in Place:
        lines += ["", f"## `{place}`", "", "| field | | |", "|---|---|---|"]
        rows = [field for field in FIELDS if place in field.places]
        lines += [
            f"| `{row.name}` | {row.standing} | {_said(row)} |" for row in sorted(rows, key=_by_standing)
        ]
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """Every name that /metrics shows."""
    lines = [
        "# Metrics",
        "",
        NOTE,
        "`GET /metrics` answers in Prometheus' text format and asks for the key as every route does. Times",
        "are in seconds; rates and percentiles are the reader's to compute, as",
        "[operations.md](operations.md) shows. Labels are names of the settings and the code, adapters'",
        "digests, and adapters' names until they are unloaded: never a prompt, a key, a caller, or another",
        "name that a caller made up.",
    ]
    for title, families in (("The server", gateway.FAMILIES), ("Each engine", engines.FAMILIES)):
        lines += ["", f"## {title}", "", "| name | kind | labels | |", "|---|---|---|---|"]
        for each in families:
            labels = ", ".join(f"`{label}`" for label in each.labels)
            lines.append(f"| `{each.name}` | {each.kind} | {labels} | {each.says} |")
    return "\n".join(lines) + "\n"


def _by_standing(row: Field) -> int:
    return list(Standing).index(row.standing)


def _said(row: Field) -> str:
    harmless = ", ".join(f"`{json.dumps(value)}`" for value in row.harmless)
    return f"{row.says} (taken: {harmless})" if harmless else row.says


def _shown(value: object) -> str:
    return "none" if value is None or value == () else f"`{value}`"


PAGES = {"configuration.md": configuration, "errors.md": errors, "api.md": api, "metrics.md": metrics}


def main() -> int:
    stale = [name for name, page in PAGES.items() if _text(DOCS / name) != page()]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"docs/{name} is stale; run `make docs`")
        return 1 if stale else 0
    for name in stale:
        (DOCS / name).write_text(PAGES[name](), "utf-8")
    return 0


def _text(path: Path) -> str | None:
    return path.read_text("utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
