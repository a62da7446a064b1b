"""`antiphon doctor`: checks everything that `antiphon serve` needs, and reports problems with their remedies.
It changes nothing."""

import json
import os
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from antiphon.cli.commands.serve import find_refusals
from antiphon.cli.doctor.checks import (
    check_adapters,
    check_cache,
    check_confinement,
    check_engine,
    check_models,
    check_port,
    check_settings,
    check_sockets,
)
from antiphon.cli.serve_options import ServeOptions
from antiphon.errors import AntiphonError
from antiphon.processes.supervisor import build_load_spec


class FindingSeverity(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    ADVICE = "advice"
    """The server works, but could work better."""
    BROKEN = "broken"
    """`antiphon serve` would fail to start or to run."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    id: str
    """One of REMEDIES; the name of the check where nothing is wrong."""
    standing: FindingSeverity
    said: str
    remedy: str = ""


REMEDIES = {
    "settings-invalid": "Mend it; docs/configuration.md lists every setting. The rest was checked with the "
    "defaults.",
    "settings-refused": "Do what it says; docs/configuration.md lists every setting.",
    "interpreter-unusable": "Unset ANTIPHON_ENGINE_INTERPRETER, or let it name a Python that runs and has "
    "Antiphon installed.",
    "library-missing": "Install the locked one: make serve, or in Antiphon's environment: "
    "pip install --requirement requirements/serve.txt",
    "library-unusable": "Install the xllamacpp version that requirements/serve.txt names, or unset "
    "ANTIPHON_ENGINE_LIBRARY.",
    "library-crashes": "It is damaged, or was built for another processor: install it again, or name "
    "another with ANTIPHON_ENGINE_LIBRARY.",
    "library-passed-over": "Remove it, or install a version that Antiphon knows.",
    "cpu-features-unused": "Build a library for this processor, which Antiphon then takes: make native, or "
    "in another environment: pip install 'antiphon[native]'. It needs a C++ compiler and CMake; "
    "docs/native-build.md",
    "model-invalid": "Name a whole GGUF file with --model.",
    "model-not-fetched": "Fetch it now with `antiphon models pull`, or let `antiphon serve` do it.",
    "model-not-loadable": "Try another quantization of it, or another model.",
    "adapter-invalid": "Name a GGUF adapter or a PEFT directory that was made for this model, with --lora "
    "NAME=PATH.",
    "memory-short": "Lower --context-length or --sequences, or take a smaller quantization.",
    "threads-too-many": "Leave --threads out: more threads than processors wait for each other.",
    "port-taken": "Stop what listens there, or choose another port with --port.",
    "address-unavailable": "Listen on an address of this machine: --host 127.0.0.1",
    "cache-unusable": "Give it back to the user that runs Antiphon, or name another directory with "
    "ANTIPHON_HUB_CACHE.",
    "engine-as-root": "Name an unprivileged user that can read the model files: ANTIPHON_ENGINE_USER=nobody, "
    "or start the server as one.",
    "engine-user-unusable": "Name another user, or unset ANTIPHON_ENGINE_USER.",
    "confinement-partial": "Nothing has to be done; only Linux can forbid it.",
    "store-unusable": "Let ANTIPHON_STORE name a database that answers, or ANTIPHON_HOME a directory that "
    "can be written.",
    "store-outdated": "Bring it up to date, which keeps every row: antiphon store upgrade",
    "store-newer": "Run the version that made it, or name another database with ANTIPHON_STORE.",
    "pepper-unusable": "Copy the file pepper from the node that made the keys, or set ANTIPHON_PEPPER to "
    "what is in it.",
    "spool-unusable": "Give it back to the user that runs Antiphon, or name another directory with "
    "ANTIPHON_SPOOL.",
    "spool-short": "Make room, or name a directory on another disk with ANTIPHON_SPOOL, or lower "
    "ANTIPHON_SPOOL_BYTES.",
    "limits-unusable": "Let ANTIPHON_LIMITS_URL name a Redis or Valkey that answers from here, with its "
    "password where it has one, or leave it out: then this server counts alone.",
    "sign-on-unusable": "Install the library of tokens in Antiphon's environment: pip install "
    "'antiphon[oidc]'",
    "no-socket-place": "Set XDG_RUNTIME_DIR to a writable directory with a short path.",
}
"""General remedies, by the finding's id."""


def report_ok(check: str, message: str) -> Finding:
    """Makes a finding without a problem."""
    return Finding(check, FindingSeverity.OK, message)


def report_problem(name: str, message: str, standing: FindingSeverity = FindingSeverity.BROKEN) -> Finding:
    """Makes a finding with a problem and its remedy."""
    return Finding(name, standing, message, REMEDIES[name])


def to_finding(name: str, error: AntiphonError, mark: str = "; ") -> Finding:
    """Converts an error. The part of its message after the last mark is the remedy."""
    message, marked, remedy = error.message.rstrip(".").rpartition(mark)
    if not marked:
        return report_problem(name, error.message)
    return Finding(name, FindingSeverity.BROKEN, message, remedy[0].upper() + remedy[1:])


MARKS = {FindingSeverity.OK: "ok", FindingSeverity.ADVICE: "advice", FindingSeverity.BROKEN: "BROKEN"}
INDENT = 8
NARROWEST, WIDEST = 60, 110
"""Least and most columns of the text."""


def run(serve_options: ServeOptions, load: bool, as_json: bool) -> int:
    """Prints the findings; returns 1 if something is broken."""
    findings = list(examine(serve_options, load))
    broken = sum(finding.standing is FindingSeverity.BROKEN for finding in findings)
    print(to_object(findings, broken) if as_json else format_text(findings, broken))
    return 1 if broken else 0


def examine(serve_options: ServeOptions, load: bool) -> Iterator[Finding]:
    """Yields every finding, in the order in which a server would meet the problems."""
    settings, finding = check_settings(serve_options)
    yield finding
    yield from (to_finding("settings-refused", error, ": ") for error in find_refusals(settings))
    models, of_models = check_models(settings)
    yield from check_engine(
        settings, [build_load_spec(one.model, settings) for one in models] if load else []
    )
    yield from of_models
    yield from check_adapters(settings, models)
    yield check_port(settings.server)
    yield check_cache(settings)
    yield from check_sockets()
    yield check_confinement(settings)
    if settings.keys.enabled:
        from antiphon.cli.doctor.tenancy_checks import check_tenancy

        yield from check_tenancy(settings, os.environ, Path.home())


def to_object(findings: list[Finding], broken: int) -> str:
    """Formats the findings as one JSON object."""
    return json.dumps({"broken": broken, "findings": [asdict(finding) for finding in findings]}, indent=2)


def format_text(findings: list[Finding], broken: int) -> str:
    """Formats a paragraph for each finding with its remedy, and then a summary."""
    width = min(WIDEST, max(NARROWEST, shutil.get_terminal_size().columns))
    lines = [line for finding in findings for line in _format_paragraph(finding, width)]
    return "\n".join([*lines, "", _format_summary(findings, broken)])


def _format_paragraph(finding: Finding, width: int) -> list[str]:
    """Wraps a paragraph between words only, so that paths and commands can be copied."""
    parts = [(f"{MARKS[finding.standing]:{INDENT}}", f"{finding.id}: {finding.said}")]
    if finding.remedy:
        parts.append((" " * INDENT, f"-> {finding.remedy}"))
    return [
        line
        for first, text in parts
        for line in textwrap.wrap(
            text,
            width,
            initial_indent=first,
            subsequent_indent=" " * INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def _format_summary(findings: list[Finding], broken: int) -> str:
    advice = sum(finding.standing is FindingSeverity.ADVICE for finding in findings)
    summary = f"{broken} things are broken" if broken else "Nothing is broken"
    summary = "1 thing is broken" if broken == 1 else summary
    better = f"; {advice} could be better" if advice else ""
    return f"{summary}{better}.{' docs/troubleshooting.md says more.' if broken or advice else ''}"
