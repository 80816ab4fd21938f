"""The server settings that a search tries: `--search=OPTION:LOW..HIGH,...`, and the candidates of that space."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from cm4vllm.common import input_types
from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.settings import Key, Settings, env_keys
from cm4vllm.records.vllm.given_options import given_options
from cm4vllm.serving.options.arguments import ServerSettings
from cm4vllm.serving.options.presets import option_words
from cm4vllm.serving.options.searchable_options import SearchableOption, searchable_options, searched_name

#: The least number of steps from the lower end of a range to the upper one.
_STEPS = 2
#: More candidates than this are a mistake of the space: their starts alone take days.
MOST_CANDIDATES = 10_000
#: Minutes of a search over server settings where the user gives none.
SEARCH_MINUTES = 30.0
_HOW = "write --search=max-num-seqs:128..1024,max-num-batched-tokens:2048..16384"

Value = int | float
#: The values of searched options by name; empty for the server as it is without the search.
Candidate = Mapping[str, Value]


@dataclass(frozen=True)
class Axis:
    """One option with its range, both ends of which are tried."""

    option: SearchableOption
    low: Value
    high: Value

    @property
    def values(self) -> tuple[Value, ...]:
        """The values that are tried: equal steps of the logarithm, of a factor of about 2, and two steps at least."""
        steps = max(_STEPS, round(math.log2(self.high / self.low)))
        points = [self.low * (self.high / self.low) ** (step / steps) for step in range(steps + 1)]
        whole = self.option.kind == "integer"
        return tuple(dict.fromkeys(round(point) if whole else float(f"{point:.4g}") for point in points))


@dataclass(frozen=True)
class Space:
    """The options that are searched, each with its range."""

    axes: tuple[Axis, ...]

    @classmethod
    def parse(cls, text: str) -> Space:
        """Parse what --search says. Raises UsageError."""
        axes = tuple(_axis(part.strip()) for part in text.split(","))
        names = [axis.option.option for axis in axes]
        twice = next((name for name in names if names.count(name) > 1), "")
        if twice:
            raise UsageError(f"--search names {twice} more than once", remedy="give one range of each option")
        space = cls(axes)
        if space.size > MOST_CANDIDATES:
            raise UsageError(
                f"--search={text} has {space.size:,} candidates",
                cause=f"more than {MOST_CANDIDATES:,} cannot be tried",
                remedy="name fewer options, or smaller ranges",
            )
        return space

    @property
    def size(self) -> int:
        """The number of candidates, without the server as it is."""
        return math.prod(len(axis.values) for axis in self.axes)

    def candidates(self, as_it_is: Candidate) -> tuple[Candidate, ...]:
        """Return all candidates: first the server as it is, then each as far as can be from those before it.

        So what is tried is spread over the space wherever the time ends. `as_it_is` are the values that the server has
        without the search, of the options whose values are known: the same ones are not tried twice.
        """
        names = [axis.option.option for axis in self.axes]
        places = list(itertools.product(*(range(len(axis.values)) for axis in self.axes)))
        sizes = [max(1, len(axis.values) - 1) for axis in self.axes]
        at = {place: tuple(index / size for index, size in zip(place, sizes, strict=True)) for place in places}
        made = {
            place: {name: axis.values[index] for name, axis, index in zip(names, self.axes, place, strict=True)}
            for place in places
        }
        left = [place for place in places if made[place] != dict(as_it_is)]
        begin = tuple(_place_of(axis, as_it_is) for axis in self.axes)
        near = {place: math.dist(at[place], begin) for place in left}
        ordered: list[Candidate] = [{}]
        while left:
            furthest = max(left, key=lambda place: near[place])
            left.remove(furthest)
            ordered.append(made[furthest])
            for place in left:
                near[place] = min(near[place], math.dist(at[place], at[furthest]))
        return tuple(ordered)

    def require_free(self, server: ServerSettings) -> None:
        """Refuse an option whose value the user or a published result has given. Raises UsageError."""
        given = {key: getattr(server, field) for field, key in env_keys(ServerSettings).items()}
        try:
            extra = given_options(shlex.split(server.extra))
        except ValueError:  # what starts the server says why
            extra = {}
        for axis in self.axes:
            name, key = axis.option.option, axis.option.key
            if key and given[key] not in (None, ""):
                raise UsageError(
                    f"--search varies {name}, which is given: --{axis.option.input}={given[key]}",
                    cause="an option is either searched for or given; --published gives those of the published result",
                    remedy=f"leave one of them out: --{axis.option.input}, or {name} in --search",
                )
            if name in extra:
                raise UsageError(
                    f"--search varies {name}, which is given in --extra_args",
                    cause="an option is either searched for or given",
                    remedy=f"leave one of them out: --{name} in --extra_args, or {name} in --search",
                )


def asked_space(search: str, minutes: float | None, *, given: bool, simulated: bool) -> Space | None:
    """Return the space that a job's flags ask for, None where nothing is searched. Raises UsageError.

    `given`: the job has a server that runs already; `simulated`: those that it starts are simulated.
    """
    if not search:
        if minutes is not None:
            raise UsageError(
                f"--search_minutes={minutes:g} is given without --search",
                remedy="name what is searched, as --search=max-num-seqs:128..1024, or leave it out",
            )
        return None
    if given:
        raise UsageError(
            "--search cannot be given with --api_server",
            cause="other settings take another start of vLLM, and the job starts none",
            remedy="leave --api_server out, and vLLM is started for each candidate; or leave --search out",
        )
    space = Space.parse(search)
    unknown = [axis.option.option for axis in space.axes if not axis.option.simulated]
    if simulated and unknown:
        raise UsageError(
            f"--search={search} cannot be given with --rehearse",
            cause=f"the simulated server does not have the option {unknown[0]}; it has "
            f"{', '.join(name for name, option in searchable_options().items() if option.simulated)}",
            remedy=f"leave {', '.join(unknown)} out of --search, or leave --rehearse out",
        )
    return space


class SettingsInputs(Settings, frozen=True, kw_only=True):
    """Inputs that the recipe reads from its environment, beside those of a server and of a run."""

    search: input_types.Search = ""
    minutes: input_types.SearchMinutes = None
    scenarios: Annotated[str, Key("CM_MLPERF_SEARCH_SCENARIOS")] = ""
    results_dir: input_types.ResultsDir = ""
    output_dir: input_types.OutputDir = ""
    dataset_record: input_types.DatasetRecordPath = ""
    performance_dataset_record: input_types.PerformanceDatasetRecordPath = ""
    model_record: input_types.ModelRecordPath = ""
    rehearse: input_types.Rehearse = ""

    @property
    def most_minutes(self) -> float:
        """The minutes after which no further evaluation begins."""
        return SEARCH_MINUTES if self.minutes is None else self.minutes


def words_of(candidate: Candidate) -> list[str]:
    """Return a candidate as words for `vllm serve`."""
    return option_words(dict(candidate))


def candidate_words(candidate: Candidate) -> str:
    """Return a candidate for people."""
    return " ".join(words_of(candidate)) or "as without the search"


def _axis(part: str) -> Axis:
    name, (_, colon, ends) = searched_name(part), part.partition(":")
    known = searchable_options()
    if name not in known:
        meant = nearest(name, list(known))
        raise UsageError(
            f"--search={part} names no option of vLLM that can be searched",
            cause=f"these can: {', '.join(known)}",
            remedy=meant if meant.startswith("did you mean") else _HOW,
        )
    low_text, dots, high_text = ends.partition("..")
    if not (colon and dots):
        raise UsageError(f"--search={part} has no range", remedy=_HOW)
    option = known[name]
    low, high = _value(option, part, low_text), _value(option, part, high_text)
    if low > high:
        raise UsageError(
            f"--search={part} has a range from high to low", remedy=f"give the lower end first: {name}:{high}..{low}"
        )
    if low == high:
        flag = f"--{option.input}={low}" if option.input else f"--extra_args=--{name}={low}"
        raise UsageError(
            f"--search={part} has an empty range", remedy=f"give {flag} in its place: one value needs no search"
        )
    return Axis(option, low, high)


def _value(option: SearchableOption, part: str, text: str) -> Value:
    try:
        value: Value = int(text) if option.kind == "integer" else float(text)
    except ValueError:
        raise UsageError(
            f"--search={part} is not usable",
            cause=f"{text.strip() or 'nothing'!r} is no {'whole number' if option.kind == 'integer' else 'number'}",
            remedy=_HOW,
        ) from None
    most = math.inf if option.most is None else option.most
    if not option.least <= value <= min(most, 2**31 - 1):
        raise UsageError(
            f"--search={part} is not usable",
            cause=f"{option.option} is from {option.least:g} {f'to {most:g}' if option.most is not None else 'on'}, "
            "and below 2,147,483,648",
            remedy=_HOW,
        )
    return value


def _place_of(axis: Axis, candidate: Candidate) -> float:
    """Return the place of a candidate between the ends of an axis, as a part of its logarithm; 1/2 where not known."""
    value = candidate.get(axis.option.option)
    if value is None or value <= 0:
        return 0.5
    return min(1.0, max(0.0, math.log(value / axis.low) / math.log(axis.high / axis.low)))
