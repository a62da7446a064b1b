"""Everything that `antiphon doctor` can find, with the general remedies. docs/troubleshooting.md has a
section for each. It checks nothing itself."""

from dataclasses import dataclass
from enum import StrEnum

from antiphon.errors import AntiphonError, explain_extra


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
    "pip install --no-deps --requirement requirements/serve.txt",
    "library-unusable": "Install the xllamacpp version that requirements/serve.txt names, or unset "
    "ANTIPHON_ENGINE_LIBRARY.",
    "library-crashes": "It is damaged, or was built for another processor: install it again, or name "
    "another with ANTIPHON_ENGINE_LIBRARY.",
    "library-passed-over": "Remove it, or install a version that Antiphon knows.",
    "cpu-features-unused": "Build a library for this processor, which Antiphon then takes: make native, or "
    "in another environment the wheel with [native]. It needs a C++ compiler and CMake; "
    "docs/native-build.md",
    "gpu-unused": "Install the device's toolkit, and build a library for it, which Antiphon then takes: make "
    "native BACKEND={backend}; docs/gpu.md",
    "device-missing": "Check the driver, and whether the user that runs engines can open the device, or set "
    "gpu_layers = 0; docs/gpu.md",
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
    "knowledge-unusable": "Install pgvector on the PostgreSQL server, or keep knowledge tables in files: "
    "ANTIPHON_KNOWLEDGE_STORAGE=files",
    "limits-unusable": "Let ANTIPHON_LIMITS_URL name a Redis or Valkey that answers from here, with its "
    "password where it has one, or leave it out: then this server counts alone.",
    "sign-on-unusable": f"Install the library of tokens: {explain_extra('oidc')}",
    "provider-invalid": "Mend it in [providers.NAME]; docs/vendors.md tells how.",
    "provider-unreachable": "Look whether the vendor works, whether base_url is right, and whether a proxy "
    "is needed.",
    "provider-key-refused": "Put a valid key where `key` of the provider says.",
    "provider-model-missing": "Compare the name with the vendor's list, or leave it: some vendors do not "
    "list every model.",
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
