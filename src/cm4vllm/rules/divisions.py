"""The rules of each division, and the speculative decoding that a benchmark allows in it."""

from msgspec.structs import replace

from cm4vllm.rules.entries import DivisionRule, Speculation
from cm4vllm.rules.tables import division_rule_entries, matching, sources
from cm4vllm.rules.terms import family_of
from cm4vllm.rules.vocabulary import Category, Division, Scenario

#: The rule by which LoadGen gets the system's name from the machines that serve.
_ASKS_NODES = "QDL-NAME"


def division_rules(division: Division, category: Category) -> dict[str, DivisionRule]:
    """Return the rules of a division by code, as they hold for systems of a category; each names its document."""
    return {
        rule.code: replace(rule, source=_document(rule.source))
        for rule in division_rule_entries()
        if division in rule.divisions and (not rule.categories or category in rule.categories)
    }


def over_network(division: Division) -> bool:
    """Return True if the systems of a division are machines apart from LoadGen's, which are asked for their names."""
    return any(_ASKS_NODES in division_rules(division, category) for category in Category)


def _document(source: str) -> str:
    """Return a source with the name of the document that its first word stands for."""
    word, _, place = source.partition(" ")
    return f"{sources()[word].partition(' at ')[0]}, {place}"


def speculation(round_name: str, benchmark: str, scenario: Scenario) -> Speculation | None:
    """Return the speculative decoding that the closed division allows; None where it allows none."""
    entries = matching(family_of(round_name, benchmark).speculative_decoding, round_name, benchmark, scenario)
    return next(iter(entries), None)
