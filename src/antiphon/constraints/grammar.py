"""A grammar as the compiler reads it, and where in its texts JSON stands whose keys have to be watched."""

from dataclasses import dataclass, replace

from antiphon.constraints.groups import Group, Marks, Prelude


@dataclass(frozen=True, slots=True)
class JsonPlaces:
    """What comes right before a value of JSON in a text."""

    at_start: tuple[Marks, ...] = ()
    """At the text's beginning; no marks are the beginning itself."""
    anywhere: tuple[Marks, ...] = ()
    """Wherever it stands. Never empty marks."""
    after_json: tuple[Marks, ...] = ()
    """Right behind another value of JSON."""
    keys_run_out: bool = False
    """Whether keys are held to patterns, so that none may be left that is new."""

    def after_prelude(self, prelude: Prelude) -> "JsonPlaces":
        """The places in a text that a prelude stands before."""
        starts = tuple((*prelude.answer, *start) for start in self.at_start)
        closes = (frame.close or () for frame in prelude.frames)
        behind = tuple((*close, *start) for close in closes for start in starts)
        at_start = starts if prelude.optional else ()
        return replace(self, at_start=at_start, anywhere=(*self.anywhere, *behind))

    def __or__(self, other: "JsonPlaces") -> "JsonPlaces":
        """The places of both."""
        return JsonPlaces(
            (*self.at_start, *other.at_start),
            (*self.anywhere, *other.anywhere),
            (*self.after_json, *other.after_json),
            self.keys_run_out or other.keys_run_out,
        )


@dataclass(frozen=True, slots=True)
class Grammar:
    """What one constraint becomes."""

    text: str
    """What the compiler reads."""
    places: JsonPlaces | None = None
    """Where its texts hold JSON whose keys the compiler does not keep apart: objects that take keys which
    their schema does not list. None where there is none."""


WHOLE_TEXT = JsonPlaces(at_start=((),))
"""The text is one value of JSON."""


def places_of_arguments(group: Group) -> JsonPlaces:
    """Where the arguments of a group's calls stand."""
    begins = tuple(call.begin for call in group.calls)
    first = tuple((*group.open, *begin) for begin in begins)
    ends = dict.fromkeys(call.end for call in group.calls)
    between = group.between
    later = () if between is None else tuple((*end, *between, *begin) for end in ends for begin in begins)
    # Where no mark opens them, calls stand at the beginning alone.
    return JsonPlaces((), first, later) if group.sign is None else JsonPlaces(first, (), later)


def places_of_format(group: Group, alone: JsonPlaces) -> JsonPlaces:
    """Where a text of the group's format stands in an output that makes no calls. `alone`: its places in a
    text that is nothing else."""
    if not group.frames:
        return alone
    framed = tuple(frame.open for frame in group.frames if frame.close is None)
    return replace(alone, at_start=(), anywhere=framed)
