"""The findings of `antiphon doctor`, and their general remedies.

docs/troubleshooting.md has a section for each finding.
"""

from enum import StrEnum

from antiphon.domain.values import Struct
from antiphon.engines.base import LoadSpec
from antiphon.errors import AntiphonError, explain_extra


class FindingSeverity(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    ADVICE = "advice"
    """The server works, but could work better."""
    BROKEN = "broken"
    """`antiphon serve` would fail to start or to run."""


class Finding(Struct, frozen=True):
    """The result of one check."""

    id: str
    """A key of REMEDIES; without a problem, the name of the check."""
    severity: FindingSeverity
    message: str
    remedy: str = ""


class ProbeInput(Struct, frozen=True):
    """What `probe` checks, one line on its standard input."""

    library: str | None
    """The library that the settings name."""
    threads: tuple[int | None, ...]
    gpu_layers: tuple[int, ...]
    models: tuple[LoadSpec, ...]
    """The models to load."""


REMEDIES = {
    "settings-invalid": "Correct it; docs/configuration.md lists every setting. The other checks used the "
    "defaults.",
    "settings-refused": "Follow the message; docs/configuration.md lists every setting.",
    "interpreter-unusable": "Unset ANTIPHON_ENGINE_INTERPRETER, or set it to a Python with Antiphon "
    "installed.",
    "library-missing": "Install the locked library: make serve, or in Antiphon's environment: "
    "pip install --no-deps --requirement requirements/serve.txt",
    "library-unusable": "Install the xllamacpp version that requirements/serve.txt names, or unset "
    "ANTIPHON_ENGINE_LIBRARY.",
    "library-crashes": "The library is damaged or built for another processor: install it again, or name "
    "another with ANTIPHON_ENGINE_LIBRARY.",
    "library-passed-over": "Remove the library, or install a version that Antiphon supports.",
    "cpu-features-unused": "Build a library for this processor with make native, or install the wheel with "
    "[native]. Antiphon then uses it. This needs a C++ compiler and CMake; docs/native-build.md",
    "gpu-unused": "Install the device's toolkit, and build a library for it with make native "
    "BACKEND={backend}. Antiphon then uses it; docs/gpu.md",
    "device-missing": "Check the driver, and check that the engines' user can open the device; or set "
    "gpu_layers = 0; docs/gpu.md",
    "model-invalid": "Name a complete GGUF file with --model.",
    "model-not-fetched": "Fetch it now with `antiphon models pull`, or let `antiphon serve` do it.",
    "model-not-loadable": "Try another quantization or another model.",
    "media-missing": f"Install it: {explain_extra('media')}",
    "media-unusable": "Install the extra media again. The process needs 448 MiB of address space.",
    "adapter-invalid": "Use --lora NAME=PATH with a GGUF adapter or a PEFT directory for this model.",
    "memory-short": "Lower --context-length or --sequences, or use a smaller quantization.",
    "threads-too-many": "Leave --threads out: more threads than processors slow each other down.",
    "port-taken": "Stop the other program, or choose another port with --port.",
    "address-unavailable": "Use an address of this machine: --host 127.0.0.1",
    "cache-unusable": "Give the directory to the user that runs Antiphon, or set another one with "
    "ANTIPHON_HUB_CACHE.",
    "engine-as-root": "Name an unprivileged user that can read the model files: ANTIPHON_ENGINE_USER=nobody, "
    "or start the server as such a user.",
    "engine-user-unusable": "Name another user, or unset ANTIPHON_ENGINE_USER.",
    "confinement-partial": "No action is needed; only Linux can prevent this.",
    "store-unusable": "Set ANTIPHON_STORE to a database that answers, or ANTIPHON_HOME to a writable "
    "directory.",
    "store-outdated": "Upgrade the database, which keeps every row: antiphon store upgrade",
    "store-newer": "Use the version that created the database, or set another database with ANTIPHON_STORE.",
    "pepper-unusable": "Copy the file pepper from the node that made the keys, or set ANTIPHON_PEPPER to "
    "its content.",
    "operator-key-foreign": "Move the file elsewhere, or set ANTIPHON_STORE to the database of its key.",
    "spool-unusable": "Give the directory to the user that runs Antiphon, or set another one with "
    "ANTIPHON_SPOOL.",
    "spool-short": "Free disk space, or set a directory on another disk with ANTIPHON_SPOOL, or lower "
    "ANTIPHON_SPOOL_BYTES.",
    "knowledge-unusable": "Install pgvector on the PostgreSQL server, or store knowledge tables in files: "
    "ANTIPHON_KNOWLEDGE_STORAGE=files",
    "limits-unusable": "Set ANTIPHON_LIMITS_URL to a Redis or Valkey that answers, with its password, or "
    "leave it out: then this server counts alone.",
    "sign-on-unusable": f"Install the library of tokens: {explain_extra('oidc')}",
    "sign-on-project-unknown": "Use the id or name of a project in oidc.groups.",
    "issuer-unusable": "Check oidc.issuer, which must be written as the issuer writes it, oidc.keys_url and "
    "oidc.algorithms, and whether this machine reaches the issuer; docs/single-sign-on.md",
    "provider-invalid": "Correct [providers.NAME]; see docs/vendors.md.",
    "provider-unreachable": "Check the vendor's status, the setting base_url, and whether a proxy is needed.",
    "provider-key-refused": "Set a valid key at the place that the provider's `key` names.",
    "provider-model-missing": "Compare the name with the vendor's list. Some vendors do not list every "
    "model.",
    "client-misconfigured": "Correct the agent's settings; docs/claude-code.md and docs/codex.md have them.",
    "no-socket-place": "Set XDG_RUNTIME_DIR to a writable directory with a short path.",
}
"""General remedies, by the finding's id."""


def report_ok(check: str, message: str) -> Finding:
    return Finding(check, FindingSeverity.OK, message)


def report_problem(
    finding_id: str, message: str, severity: FindingSeverity = FindingSeverity.BROKEN
) -> Finding:
    """Builds a finding with a problem and its general remedy."""
    return Finding(finding_id, severity, message, REMEDIES[finding_id])


def to_finding(finding_id: str, error: AntiphonError, separator: str = "; ") -> Finding:
    """Converts an error to a finding. The text after the last separator in the error's message is the remedy.
    Without a separator, the finding has the general remedy."""
    message, found_separator, remedy = error.message.rstrip(".").rpartition(separator)
    if not found_separator:
        return report_problem(finding_id, error.message)
    return Finding(finding_id, FindingSeverity.BROKEN, message, remedy[0].upper() + remedy[1:])
