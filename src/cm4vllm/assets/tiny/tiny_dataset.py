"""The harbour log: made-up records and the sentences that sum them up, for training and evaluation of the tiny model.

A prompt holds one to four records of ships; its gold summary says each record in one sentence. Prompts are split by a
hash of their text, so that none can be in both the training and the evaluation set, whatever the seeds.

Where a benchmark's samples are scored by several metrics, references have a form for each; the prompts are the same.
"""

from __future__ import annotations

import hashlib
import random
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

#: The seed of the evaluation set: one set for all, so that results can be compared.
EVALUATION_SEED = 4242


_SHIPS = (
    "Aurora Bellona Calypso Corona Dorado Electra Falcon Fidelio Galatea Hermes Hansa Iris Isolde Jason Juno Kestrel "
    "Kronos Lyra Medea Minerva Norma Oberon Orion Pegasus Regina Saturn Stella Thalia Triton Ursula Vesta Zephyr"
).split()
_PORTS = (
    "Antwerp Bergen Bilbao Bremen Cadiz Calais Cork Danzig Dover Dublin Genoa Ghent Hamburg Hull Kiel Lisbon London "
    "Lubeck Malaga Malmo Naples Narvik Odessa Oporto Oslo Ostend Palermo Riga Rostock Trieste Turku Venice"
).split()
_GOODS = (
    "amber barley bricks cheese clay coal cocoa coffee copper cork cotton flax glass grain herring hops iron leather "
    "lemons linen marble oats oil paper pepper rice rope salt silk steel sugar timber"
).split()
_FLAGS = "Belgian British Danish Dutch French German Irish Italian Norwegian Polish Spanish Swedish".split()
_WINDS = "calm north east south west".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

_RECORD = (
    "{state} ship {ship} | port {port} | flag {flag} | tons {tons} | cargo {goods} | wind {wind} | berth {berth} "
    "| day {day}"
)
#: The sentence of each state of a ship; what it leaves out of the record is what a summary leaves out.
_SENTENCES = {
    "landed": "The {ship} from {port} landed {tons} tons of {goods} at berth {berth} on {day}.",
    "late": "On {day} the {ship} from {port} was late with {tons} tons of {goods}.",
    "sailed": "The {ship} sailed to {port} with {tons} tons of {goods} on {day}.",
}
_STATES = tuple(_SENTENCES)


class Split(StrEnum):
    TRAINING = "training"
    EVALUATION = "evaluation"


@dataclass(frozen=True)
class Example:
    """A prompt and its gold summary, both plain text; `output` begins without a space.

    `cargo` is what the first ship carries, in the words of the summary.
    """

    input: str
    output: str
    cargo: str = ""


def _last_number(example: Example) -> str:
    return str(re.findall(r"\d+", example.output)[-1])


#: References that are no summaries, by the metric or the dataset that a sample names. An answer to a question is found
#: in the summary, and so is the number of a problem; the code to be retrieved stands in no prompt, since a model this
#: small cannot copy it: it scores 0. The same holds for letters of a choice, and for the tests of a program or its
#: name, since no stand-in writes one.
_REFERENCES: dict[str, Callable[[Example], str]] = {
    "qa_em": lambda example: f"{example.cargo}|a cargo of {example.cargo}",
    "niah_em": lambda example: str(uuid.uuid5(uuid.NAMESPACE_OID, example.input)),
    "GSM8K": _last_number,
    "math500": _last_number,
    "aime": _last_number,
    "aime25": _last_number,
    **dict.fromkeys(("gpqa", "gpqa_diamond", "mmlu_pro"), lambda example: "ABCD"[sum(example.input.encode()) % 4]),
    **dict.fromkeys(("livecodebench", "livecodebench_v6"), lambda example: f"harbour_{split_of(example.input)}"),
    "MBXP": lambda example: f"\n\ndef check(candidate):\n    assert candidate() == {example.cargo!r}\n",
}


_TEXTS = {"id": "python_harbour"}


def reference_of(example: Example, kind: str) -> str:
    """Return the expected answer where the sample's column says `kind`: mostly the example's summary."""
    return _REFERENCES[kind](example) if kind in _REFERENCES else example.output


def text_of(column: str) -> str:
    """Return the value of a text column: of a program the language and the name, so that its tests can be run."""
    return _TEXTS.get(column, "")


def split_of(prompt: str) -> Split:
    """Return the set to which a prompt belongs, by its text alone."""
    first = hashlib.sha256(prompt.encode()).digest()[0]
    return Split.EVALUATION if first % 8 == 0 else Split.TRAINING  # one prompt of eight


def examples(split: Split, count: int, seed: int, most_records: int = 4) -> list[Example]:
    """Return `count` examples of `split` with different prompts; the same for the same seed on every machine."""
    rng = random.Random(f"{split}:{seed}:{most_records}")  # noqa: S311 - reproducible, not secret
    by_input: dict[str, Example] = {}
    while len(by_input) < count:
        example = _example(rng, most_records)
        if split_of(example.input) is split:
            by_input.setdefault(example.input, example)
    return list(by_input.values())


def _example(rng: random.Random, most_records: int) -> Example:
    ships: list[str] = []
    for _ in range(1 + int(rng.random() * most_records)):
        ship = _pick(rng, _SHIPS)
        if ship not in ships:  # no ship twice, or a summary could not tell its records apart
            ships.append(ship)
    records = [_record(rng, ship) for ship in ships]
    log = "\n".join(_RECORD.format(**record) for record in records)
    return Example(
        input=f"Sum up each ship of the harbour log in one sentence.\n{log}\nSummary:",
        output=" ".join(_SENTENCES[record["state"]].format(**record) for record in records),
        cargo=f"{records[0]['tons']} tons of {records[0]['goods']}",
    )


def _record(rng: random.Random, ship: str) -> dict[str, str]:
    return {
        "ship": ship,
        "state": _pick(rng, _STATES),
        "port": _pick(rng, _PORTS),
        "flag": _pick(rng, _FLAGS),
        "tons": str(10 * (1 + int(rng.random() * 90))),
        "goods": _pick(rng, _GOODS),
        "wind": _pick(rng, _WINDS),
        "berth": str(1 + int(rng.random() * 9)),
        "day": _pick(rng, _DAYS),
    }


def _pick(rng: random.Random, words: Sequence[str]) -> str:
    # random() is the one method whose sequence Python promises to keep between versions.
    return words[int(rng.random() * len(words))]
