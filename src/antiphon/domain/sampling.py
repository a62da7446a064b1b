"""How the next token is drawn: what the caller asked for, and what the engine gets.

Order and meaning are decided in ARCHITECTURE.md ("Semantics"): temperature, then min-p, top-k, top-p;
temperature 0 is greedy. Each draw depends on hash(seed, choice, position) alone.
"""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the engine draws with: every value known."""

    temperature: float = 1.0
    """0 is greedy; at most 2 by the dialects' ranges."""
    top_p: float = 1.0
    """Smallest set of tokens whose probability reaches this; 1 keeps all."""
    top_k: int = 0
    """The k likeliest tokens; 0 keeps all."""
    min_p: float = 0.0
    """Tokens at least this fraction as likely as the likeliest; 0 keeps all."""
    seed: int = 0
    """Any 64-bit integer; equal seeds give equal draws."""


@dataclass(frozen=True, slots=True)
class AskedSampling:
    """What somebody said about sampling, the caller or a model's profile; None is silence."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None

    def settle(self, defaults: "AskedSampling", seed: int) -> Sampling:
        """The caller's value, else the profile's, else the dialect-independent default; `seed` when nobody
        said one."""
        said = {
            field.name: mine
            if (mine := getattr(self, field.name)) is not None
            else getattr(defaults, field.name)
            for field in fields(self)
        }
        known = {name: value for name, value in said.items() if value is not None}
        return Sampling(**({"seed": seed} | known))
