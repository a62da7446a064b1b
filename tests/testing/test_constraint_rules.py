"""The kit's rules about constraints: kept by an engine that follows them with the toy model, seen where they
are broken."""

from collections.abc import AsyncIterator

import pytest

from antiphon.constraints.checking_process import check_constraint
from antiphon.constraints.mask_workers import build_token_table
from antiphon.constraints.matching import CompilerVocabulary, Matcher
from antiphon.domain.request import Constraint
from antiphon.domain.values import replace
from antiphon.engines.base import TextPiece, TokenEvent, TokenRequest
from antiphon.errors import InvalidValue
from antiphon_testing import Failure, Script, ScriptedTokenEngine, scripted_info
from antiphon_testing.rules import TokenProbe
from antiphon_testing.sequence_rules import CONSTRAINT_RULES
from antiphon_testing.token_kit import SENTENCES
from antiphon_testing.toy_model import ToySampler


class Guided(ScriptedTokenEngine):
    """Follows a constraint from token to token, each drawn by the toy model among those that are allowed."""

    forces = False
    """Whether tokens that must follow come without a draw."""

    def __init__(self) -> None:
        super().__init__(info=scripted_info(context_length=256))
        self.words = CompilerVocabulary(build_token_table(self.table))

    async def check(self, constraint: Constraint) -> None:
        check_constraint(constraint, self.words)

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenEvent]:  # type: ignore[override]
        self.script = Script() if request.constraint is None else self.walked(request, request.constraint)
        async for event in super().generate(replace(request, constraint=None)):
            yield event

    def refused(self, request: TokenRequest) -> InvalidValue:
        return InvalidValue("no token is left that may be drawn")

    def walked(self, request: TokenRequest, constraint: Constraint) -> Script:
        matcher, made = Matcher(check_constraint(constraint, self.words), self.words), list[int]()
        ends = {*self.table.end_ids, *request.stop_token_ids}
        while len(made) < request.max_tokens and not (made and made[-1] in ends):
            forced = matcher.find_forced()
            if forced and self.forces:
                token = forced[0]
            else:
                drawn = self.drawn(request, made, self.allowed(matcher, forced))
                if drawn is None:
                    return Script(tokens=tuple(made), failure=Failure(self.refused(request), len(made)))
                token = drawn
            made.append(token)
            if token not in self.table.end_ids:
                matcher.consume([token])
        return Script(tokens=tuple(made))

    def allowed(self, matcher: Matcher, forced: list[int]) -> set[int]:
        if forced:
            return {forced[0]}
        bits = int.from_bytes(matcher.compute_mask(), "little")
        return {token for token in range(self.words.size) if bits >> token & 1}

    def drawn(self, request: TokenRequest, made: list[int], allowed: set[int]) -> int | None:
        least, ends = request.sampling.min_tokens, {*self.table.end_ids, *request.stop_token_ids}
        left = allowed - ends if len(made) < least else allowed
        sampling = replace(request.sampling, allowed_token_ids=tuple(sorted(left)), min_tokens=0)
        row = [-1.0 * (token % 7) for token in range(self.words.size)]
        return ToySampler(sampling, request.choice, (), frozenset()).draw_next(row) if left else None


class Forcing(Guided):
    """Takes forced tokens without a look at what may not come yet."""

    forces = True


class Hasty(Guided):
    def drawn(self, request: TokenRequest, made: list[int], allowed: set[int]) -> int | None:
        return super().drawn(
            replace(request, sampling=replace(request.sampling, min_tokens=0)), made, allowed
        )


class Refusing(Guided):
    """Refuses what the constraint could reach."""

    def walked(self, request: TokenRequest, constraint: Constraint) -> Script:
        if request.sampling.min_tokens:
            return Script(failure=Failure(self.refused(request)))
        return super().walked(request, constraint)


class Wordy(Guided):
    """Has a sentence for each constraint."""

    def refused(self, request: TokenRequest) -> InvalidValue:
        return InvalidValue(f"{request.constraint} cannot be so long")


class Free(Guided):
    def walked(self, request: TokenRequest, constraint: Constraint) -> Script:
        return Script()


class Careless(ScriptedTokenEngine):
    """Takes no constraints, and says nothing."""

    def generate(self, request):
        return super().generate(replace(request, constraint=None))


BROKEN = {
    Forcing: "if only end or stop tokens are allowed before min_tokens",
    Hasty: "if only end or stop tokens are allowed before min_tokens",
    Refusing: "may end once min_tokens is reached",
    Wordy: "all constraints give the same error",
    Free: "satisfies its constraint",
    Careless: "refuses requests that have one with UnsupportedParameter",
}


async def examine(engine: ScriptedTokenEngine) -> None:
    probe = await TokenProbe.create(engine, 0.0, 0.5)
    probe.prompts = tuple([await engine.tokenize([TextPiece(text)], True) for text in SENTENCES])
    for rule in CONSTRAINT_RULES:
        await rule(probe)


@pytest.mark.parametrize("kind", [Guided, ScriptedTokenEngine])
async def test_engines_may_follow_constraints_or_refuse_them(
    kind: type[ScriptedTokenEngine],
) -> None:
    await examine(kind())


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
async def test_an_engine_that_breaks_one_is_told_so(broken: type[ScriptedTokenEngine]) -> None:
    with pytest.raises(AssertionError, match=BROKEN[broken]):
        await examine(broken())
