"""The vendors of LiteLLM that Antiphon knows, and the providers that deployments need."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from antiphon.cli.litellm.reading import ImportNotes, Table, get_number, get_text, get_variable
from antiphon.domain.upstream_headers import RESERVED_HEADERS, is_header_name, is_protected

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

KEYLESS = frozenset(
    {"none", "null", "empty", "dummy", "fake", "fake-key", "anything", "no-key", "sk-1234", "key", "na"}
)
"""Keys that people write for servers that ask for none."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """How Antiphon calls a vendor of LiteLLM."""

    preset: str | None
    """None: another server that speaks OpenAI's API."""
    variable: str | None = None
    """LiteLLM's variable of the key; None for a server that may ask for none."""
    suffix: str = ""
    """What Antiphon's addresses have at their end, and LiteLLM's lack."""


VENDORS: Mapping[str, Vendor] = {
    "openai": Vendor("openai", "OPENAI_API_KEY"),
    "text-completion-openai": Vendor("openai", "OPENAI_API_KEY"),
    "azure": Vendor("azure", "AZURE_API_KEY", "/openai/v1"),
    "anthropic": Vendor("anthropic", "ANTHROPIC_API_KEY", "/v1"),
    "gemini": Vendor("gemini", "GEMINI_API_KEY"),
    "xai": Vendor("xai", "XAI_API_KEY"),
    "mistral": Vendor("mistral", "MISTRAL_API_KEY"),
    "groq": Vendor("groq", "GROQ_API_KEY"),
    "deepseek": Vendor("deepseek", "DEEPSEEK_API_KEY"),
    "together_ai": Vendor("together", "TOGETHERAI_API_KEY"),
    "fireworks_ai": Vendor("fireworks", "FIREWORKS_AI_API_KEY"),
    "openrouter": Vendor("openrouter", "OPENROUTER_API_KEY"),
    "cohere": Vendor("cohere", "COHERE_API_KEY"),
    "cohere_chat": Vendor("cohere", "COHERE_API_KEY"),
    "hosted_vllm": Vendor("vllm"),
    "ollama": Vendor("ollama", suffix="/v1"),
    "ollama_chat": Vendor("ollama", suffix="/v1"),
    "openai_like": Vendor(None),
    "custom_openai": Vendor(None),
    "litellm_proxy": Vendor(None),
    "lm_studio": Vendor(None),
    "llamafile": Vendor(None),
}

GUESSES = (
    (re.compile(r"(gpt|chatgpt|o[1-9]|text-embedding|ft:gpt)[-0-9].*|o[1-9]"), "openai"),
    (re.compile(r"claude.*"), "anthropic"),
)
"""Vendors of models that are named without one."""

OPENAI_ADDRESS = "https://api.openai.com/v1"

OWN_FIELDS = {
    "model",
    "custom_llm_provider",
    "api_base",
    "base_url",
    "api_key",
    "organization",
    "extra_headers",
}
OWN_FIELDS |= {"timeout", "stream_timeout"}
"""Fields of a deployment that its provider takes."""


@dataclass(slots=True)
class ProviderTables:
    """The `[providers]` tables. Deployments with the same address, key and times share one."""

    environ: Mapping[str, str]
    notes: ImportNotes
    timeout: float | None = None
    """Seconds for an answer, where a deployment says nothing."""
    tables: dict[str, dict[str, object]] = field(default_factory=dict)

    def find(self, place: str, params: Table) -> tuple[str, str] | None:
        """Returns the provider of a deployment and the vendor's model; None for a deployment that cannot be
        served, with a note."""
        named = get_text(params.get("model"), self.environ)
        vendor_name, model = split_model(
            named or "", get_text(params.get("custom_llm_provider"), self.environ)
        )
        vendor = VENDORS.get(vendor_name)
        if not model or vendor is None:
            told = (
                f"the vendor {vendor_name!r} is not served" if vendor_name else f"{named!r} names no vendor"
            )
            self.notes.add(place, f"left out; {told}")
            return None
        table = self._build(place, vendor_name, vendor, params)
        return None if table is None else (self._add(table, vendor_name), model)

    def _build(self, place: str, name: str, vendor: Vendor, params: Table) -> dict[str, object] | None:
        """Builds the provider of a deployment; None with a note if its address is missing."""
        given, other = params.get("api_base"), params.get("base_url")
        if given is not None and other not in (None, given):
            self.notes.add(f"{place}.base_url", "left out; api_base comes before it")
        given = other if given is None else given
        address = get_text(given, self.environ)
        if address is None and (given is not None or vendor.preset in (None, "azure")):
            where = (
                f"the variable {get_variable(given)} is not set here"
                if get_variable(given)
                else "it has no api_base"
            )
            self.notes.add(place, f"left out; {where}")
            return None
        address = address and complete_address(address, vendor)
        is_foreign = vendor.preset == "openai" and address not in (None, OPENAI_ADDRESS)
        preset = None if is_foreign else vendor.preset
        table: dict[str, object] = {"preset": preset} if preset else {"kind": "openai"}
        if address is not None and address != OPENAI_ADDRESS:
            table["base_url"] = address
            if is_private(address):
                table["private"] = True
        key = self._find_key(place, name, None if is_foreign else vendor.variable, params)
        table |= {"key": f"env:{key}"} if key else {}
        return table | self._find_times(place, params) | self._find_headers(place, params)

    def _find_key(self, place: str, name: str, usual: str | None, params: Table) -> str | None:
        """Returns the variable of a deployment's key; None if it needs none. A key itself is never taken."""
        given = params.get("api_key")
        if (variable := get_variable(given)) is not None:
            if VARIABLE.fullmatch(variable):
                return variable
            self.notes.add(f"{place}.api_key", f"{variable!r} cannot be the name of a variable here")
            return usual
        if given is None or (usual is None and str(given).lower() in KEYLESS):
            return usual
        variable = usual or f"{re.sub(r'[^A-Za-z0-9]+', '_', name).upper()}_API_KEY"
        self.notes.add(
            f"{place}.api_key", f"the file holds the key itself; set the variable {variable} to it"
        )
        return variable

    def _find_times(self, place: str, params: Table) -> dict[str, object]:
        """Returns the time limits of a deployment's provider."""
        times: dict[str, object] = {"timeout": self.timeout} if self.timeout else {}
        for name, ours in (("timeout", "timeout"), ("stream_timeout", "first_byte_timeout")):
            if params.get(name) is not None:
                seconds = get_number(params.get(name))
                if seconds is None:
                    self.notes.add(f"{place}.{name}", "left out; it is no number of seconds")
                else:
                    times[ours] = seconds
        return times

    def _find_headers(self, place: str, params: Table) -> dict[str, object]:
        """Returns the further headers of a deployment's provider."""
        self.notes.require_shapes(f"{place}.", params, ["extra_headers"], [])
        given = params.get("extra_headers")
        named = dict(given) if isinstance(given, dict) else {}
        named |= {"OpenAI-Organization": params["organization"]} if params.get("organization") else {}
        headers = {}
        for name, value in named.items():
            if not isinstance(value, str) or get_variable(value) or not _is_usable(str(name), value):
                self.notes.add(f"{place}.{name}", "left out; write it into headers of the provider yourself")
            else:
                headers[str(name)] = value
        return {"headers": headers} if headers else {}

    def _add(self, table: dict[str, object], vendor_name: str) -> str:
        """Adds a provider unless there is an equal one; returns its name."""
        for name, other in self.tables.items():
            if other == table:
                return name
        first = str(table.get("preset") or f"{re.sub(r'[^a-z0-9]+', '-', vendor_name.lower())}-compatible")
        numbers = (f"{first}-{number}" for number in range(2, len(self.tables) + 3))
        chosen = next(name for name in (first, *numbers) if name not in self.tables)
        self.tables[chosen] = table
        return chosen


def _is_usable(name: str, value: str) -> bool:
    """Whether a provider can have a header. Headers of credentials are written by hand."""
    is_secret = name.lower() in RESERVED_HEADERS or is_protected(name)
    return is_header_name(name) and value.isprintable() and not is_secret


def split_model(named: str, vendor: str | None) -> tuple[str, str]:
    """Splits `vendor/model`; the vendor is empty if it is unknown."""
    if vendor:
        return vendor, named.removeprefix(f"{vendor}/")
    first, slash, rest = named.partition("/")
    if slash:
        return first, rest
    return next((name for pattern, name in GUESSES if pattern.fullmatch(named)), ""), named


def complete_address(address: str, vendor: Vendor) -> str:
    """Returns an address of LiteLLM as Antiphon's providers have it."""
    address = address.rstrip("/")
    if vendor.preset == "azure":
        address = address.partition("/openai")[0]
    return address if not vendor.suffix or address.endswith(vendor.suffix) else address + vendor.suffix


def is_private(address: str) -> bool:
    """Whether an address is one of a private network, as far as its text tells."""
    host = (urlsplit(address).hostname or "").lower()
    try:
        return not ip_address(host).is_global
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".localhost", ".lan", ".svc"))
