"""Reads LiteLLM's config.yaml, and builds the `[providers]` tables of its deployments.

It knows the vendors that both LiteLLM and Antiphon support, and collects notes about fields that Antiphon
lacks.
"""

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from antiphon.domain.values import Struct, field
from antiphon.domain.vendor_fields import RESERVED_HEADERS, is_header_name, is_protected
from antiphon.errors import SettingsError

LARGEST_FILE = 4 * 1024 * 1024
"""Most bytes of a file."""

VARIABLE_PREFIX = "os.environ/"
"""The prefix of a value that names an environment variable."""

Table = Mapping[str, object]

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

PLACEHOLDER_KEYS = frozenset(
    {"none", "null", "empty", "dummy", "fake", "fake-key", "anything", "no-key", "sk-1234", "key", "na"}
)
"""Common values of keys for servers that need no key."""

VENDOR_PATTERNS = (
    (re.compile(r"(gpt|chatgpt|o[1-9]|text-embedding|ft:gpt)[-0-9].*|o[1-9]"), "openai"),
    (re.compile(r"claude.*"), "anthropic"),
)
"""Vendors by model names, for models without a vendor prefix."""

OPENAI_ADDRESS = "https://api.openai.com/v1"

PROVIDER_FIELDS = {
    "model",
    "custom_llm_provider",
    "api_base",
    "base_url",
    "api_key",
    "organization",
    "extra_headers",
    "timeout",
    "stream_timeout",
}
"""Fields of a deployment that become settings of its provider."""


class ImportNotes(Struct):
    """Notes for the operator about omitted settings and remaining work."""

    lines: list[str] = field(default_factory=list)

    def add(self, field_path: str, reason: str) -> None:
        """Adds a note about a field of the file, unless the same note exists. `field_path`: as in
        `model_list[0].litellm_params`."""
        line = f"{field_path}: {reason}"
        if line not in self.lines:
            self.lines.append(line)

    def read_number(self, field_path: str, value: object, minimum: float = 0) -> float | None:
        """Returns a number above 0 and of at least `minimum`.

        Returns None for any other value, and adds a note unless the value is None.
        """
        number = get_number(value)
        if number is not None and number >= minimum:
            return number
        if value is not None:
            bound = f"of at least {minimum:g}" if minimum else "above 0"
            self.add(field_path, f"left out; it is no number {bound}")
        return None

    def read_count(self, field_path: str, value: object) -> int | None:
        """Returns a whole number above 0.

        Returns None for any other value, and adds a note unless the value is None.
        """
        number = get_number(value)
        if number is not None and number.is_integer():
            return int(number)
        if value is not None:
            self.add(field_path, "left out; it is no whole number above 0")
        return None

    def note_wrong_types(
        self, path_prefix: str, table: Table, table_names: Iterable[str], list_names: Iterable[str]
    ) -> None:
        """Adds a note for each of `table_names` that is no table, and for each of `list_names` that is no
        list.

        `path_prefix`: the path of `table` with a dot at its end; empty for the whole file.
        """
        for names, cls, noun in ((table_names, dict, "table"), (list_names, list, "list")):
            for name in names:
                if table.get(name) is not None and not isinstance(table[name], cls):
                    self.add(f"{path_prefix}{name}", f"left out; it is no {noun}")

    def note_unknown_fields(self, field_path: str, table: Table, handled_fields: set[str]) -> None:
        """Adds a note for each field that the conversion does not handle."""
        for name, value in table.items():
            if name not in handled_fields and value not in (None, [], {}):
                self.add(f"{field_path}.{name}", "left out; Antiphon has no such setting")


def read_config(path: Path) -> Table:
    """Reads a configuration file. Raises SettingsError."""
    import yaml  # type: ignore[import-untyped]  # noqa: TID251 - only with the safe loader

    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as problem:
        raise SettingsError(f"{path} cannot be read: {problem.strerror or problem}") from None
    if len(content) > LARGEST_FILE:
        raise SettingsError(f"{path} has more than {LARGEST_FILE:,} bytes")
    try:
        config = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as problem:
        mark = getattr(problem, "problem_mark", None)
        position = f" in line {mark.line + 1}" if mark is not None else ""
        raise SettingsError(f"{path} is no YAML{position}") from None
    if not isinstance(config, dict):
        raise SettingsError(f"{path} has no model_list: name LiteLLM's config.yaml")
    return {str(name): value for name, value in config.items()}


def get_table(parent: Table, name: str) -> Table:
    """Returns a table inside a table; an empty table if the field is missing or has another type."""
    value = parent.get(name)
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def get_list(parent: Table, name: str) -> list[object]:
    """Returns a list inside a table; an empty list if the field is missing or has another type."""
    value = parent.get(name)
    return value if isinstance(value, list) else []


def get_variable(value: object) -> str | None:
    """Returns the name of the environment variable in a value; None for any other value."""
    if isinstance(value, str) and value.startswith(VARIABLE_PREFIX):
        return value.removeprefix(VARIABLE_PREFIX) or None
    return None


def resolve_text(value: object, environ: Mapping[str, str]) -> str | None:
    """Returns a text, or the value of the environment variable that it names; None without one."""
    variable = get_variable(value)
    if variable is not None:
        return environ.get(variable) or None
    return value if isinstance(value, str) and value else None


def get_number(value: object) -> float | None:
    """Returns a positive number; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 < number < float("inf") else None


class Vendor(Struct, frozen=True):
    """The settings for a vendor of LiteLLM."""

    preset: str | None
    """The provider preset; None for other servers with OpenAI's API."""
    variable: str | None = None
    """LiteLLM's environment variable of the key; None if servers may need no key."""
    suffix: str = ""
    """The end of Antiphon's base URLs, which LiteLLM's URLs lack."""


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


class ProviderTables(Struct):
    """The `[providers]` tables. Deployments with equal settings share one table."""

    environ: Mapping[str, str]
    notes: ImportNotes
    timeout: float | None = None
    """The default seconds for a response."""
    tables: dict[str, dict[str, object]] = field(default_factory=dict)

    def add_provider(self, field_path: str, params: Table) -> tuple[str, str] | None:
        """Adds the provider of a deployment. Returns the provider's name and the vendor's model.

        Returns None and adds a note for a deployment that Antiphon cannot serve.
        """
        model_reference = resolve_text(params.get("model"), self.environ)
        vendor_name, model = split_model(
            model_reference or "", resolve_text(params.get("custom_llm_provider"), self.environ)
        )
        vendor = VENDORS.get(vendor_name)
        if not model or vendor is None:
            reason = (
                f"the vendor {vendor_name!r} is not supported"
                if vendor_name
                else f"{model_reference!r} names no vendor"
            )
            self.notes.add(field_path, f"left out; {reason}")
            return None
        table = self._build_table(field_path, vendor_name, vendor, params)
        return None if table is None else (self._add_table(table, vendor_name), model)

    def _build_table(
        self, field_path: str, name: str, vendor: Vendor, params: Table
    ) -> dict[str, object] | None:
        """Builds the provider's table. Returns None and adds a note if the address is missing."""
        api_base, base_url = params.get("api_base"), params.get("base_url")
        if api_base is not None and base_url not in (None, api_base):
            self.notes.add(f"{field_path}.base_url", "left out; api_base takes precedence")
        api_base = base_url if api_base is None else api_base
        address = resolve_text(api_base, self.environ)
        if address is None and (api_base is not None or vendor.preset in (None, "azure")):
            reason = (
                f"the variable {get_variable(api_base)} is not set"
                if get_variable(api_base)
                else "it has no api_base"
            )
            self.notes.add(field_path, f"left out; {reason}")
            return None
        address = address and complete_address(address, vendor)
        is_compatible_server = vendor.preset == "openai" and address not in (None, OPENAI_ADDRESS)
        preset = None if is_compatible_server else vendor.preset
        table: dict[str, object] = {"preset": preset} if preset else {"kind": "openai"}
        if address is not None and address != OPENAI_ADDRESS:
            table["base_url"] = address
            if is_private(address):
                table["private"] = True
        key = self._find_key(field_path, name, None if is_compatible_server else vendor.variable, params)
        table |= {"key": f"env:{key}"} if key else {}
        return table | self._read_timeouts(field_path, params) | self._read_headers(field_path, params)

    def _find_key(self, field_path: str, name: str, default: str | None, params: Table) -> str | None:
        """Returns the environment variable of the deployment's key; None if it needs no key.

        `default`: LiteLLM's variable for this vendor. The key itself is never copied.
        """
        value = params.get("api_key")
        if (variable := get_variable(value)) is not None:
            if VARIABLE_NAME.fullmatch(variable):
                return variable
            self.notes.add(
                f"{field_path}.api_key", f"{variable!r} cannot be the name of an environment variable"
            )
            return default
        if value is None or (default is None and str(value).lower() in PLACEHOLDER_KEYS):
            return default
        variable = default or f"{re.sub(r'[^A-Za-z0-9]+', '_', name).upper()}_API_KEY"
        self.notes.add(
            f"{field_path}.api_key", f"the file contains the key; set the variable {variable} to it"
        )
        return variable

    def _read_timeouts(self, field_path: str, params: Table) -> dict[str, object]:
        """Returns the timeouts of the deployment's provider."""
        timeouts: dict[str, object] = {"timeout": self.timeout} if self.timeout else {}
        for name, setting in (("timeout", "timeout"), ("stream_timeout", "first_byte_timeout")):
            if params.get(name) is not None:
                seconds = get_number(params.get(name))
                if seconds is None:
                    self.notes.add(f"{field_path}.{name}", "left out; it is no number of seconds")
                else:
                    timeouts[setting] = seconds
        return timeouts

    def _read_headers(self, field_path: str, params: Table) -> dict[str, object]:
        """Returns the additional headers of the deployment's provider."""
        self.notes.note_wrong_types(f"{field_path}.", params, ["extra_headers"], [])
        extra_headers = params.get("extra_headers")
        candidates = dict(extra_headers) if isinstance(extra_headers, dict) else {}
        candidates |= {"OpenAI-Organization": params["organization"]} if params.get("organization") else {}
        headers = {}
        for name, value in candidates.items():
            # A header with a credential cannot be copied.
            is_secret = str(name).lower() in RESERVED_HEADERS or is_protected(str(name))
            is_text = isinstance(value, str) and value.isprintable() and not get_variable(value)
            if is_text and is_header_name(str(name)) and not is_secret:
                headers[str(name)] = value
            else:
                self.notes.add(f"{field_path}.{name}", "left out; add it to the provider's headers yourself")
        return {"headers": headers} if headers else {}

    def _add_table(self, table: dict[str, object], vendor_name: str) -> str:
        """Adds a table unless an equal one exists. Returns its name."""
        for name, existing_table in self.tables.items():
            if existing_table == table:
                return name
        base_name = str(
            table.get("preset") or f"{re.sub(r'[^a-z0-9]+', '-', vendor_name.lower())}-compatible"
        )
        numbers = (f"{base_name}-{number}" for number in range(2, len(self.tables) + 3))
        new_name = next(name for name in (base_name, *numbers) if name not in self.tables)
        self.tables[new_name] = table
        return new_name


def split_model(model_reference: str, vendor: str | None) -> tuple[str, str]:
    """Splits `vendor/model`. The vendor is empty if it is unknown."""
    if vendor:
        return vendor, model_reference.removeprefix(f"{vendor}/")
    prefix, slash, model = model_reference.partition("/")
    if slash:
        return prefix, model
    return next(
        (name for pattern, name in VENDOR_PATTERNS if pattern.fullmatch(model_reference)), ""
    ), model_reference


def complete_address(address: str, vendor: Vendor) -> str:
    """Converts a base URL of LiteLLM to a base URL of Antiphon."""
    address = address.rstrip("/")
    if vendor.preset == "azure":
        address = address.partition("/openai")[0]
    return address if not vendor.suffix or address.endswith(vendor.suffix) else address + vendor.suffix


def is_private(address: str) -> bool:
    """Whether an address belongs to a private network, judged by its text only."""
    host = (urlsplit(address).hostname or "").lower()
    try:
        return not ip_address(host).is_global
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".localhost", ".lan", ".svc"))
