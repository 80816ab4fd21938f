"""The harbour log: the same everywhere, no prompt in both sets, and a summary that follows from its prompt."""

import hashlib
import re

import pytest

from cm4vllm.assets.tiny.tiny_dataset import EVALUATION_SEED, Split, examples, reference_of, split_of
from cm4vllm.rules import benchmark_names, benchmark_terms

SHIP = re.compile(r"^\w+ ship (\w+) \|", re.MULTILINE)


def test_the_same_seed_gives_the_same_examples():
    text = "\n".join(example.input + example.output for example in examples(Split.EVALUATION, 200, EVALUATION_SEED))
    # Changes only when the dataset does: results before and after cannot be compared then.
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "c115feeb5f5d7ab0"


def test_more_examples_begin_with_the_same_ones_and_another_seed_gives_others():
    assert examples(Split.TRAINING, 50, 7)[:20] == examples(Split.TRAINING, 20, 7)
    first, second = (examples(Split.EVALUATION, 50, seed) for seed in (1, 2))
    assert not {example.input for example in first} & {example.input for example in second}


@pytest.mark.parametrize("seed", [0, EVALUATION_SEED])
def test_the_sets_do_not_overlap_even_for_the_same_seed(seed):
    training, evaluation = (examples(split, 2000, seed) for split in Split)
    assert not {example.input for example in training} & {example.input for example in evaluation}
    assert {split_of(example.input) for example in training} == {Split.TRAINING}
    assert {split_of(example.input) for example in evaluation} == {Split.EVALUATION}


def test_prompts_differ_and_hold_one_to_four_records():
    made = examples(Split.EVALUATION, 3000, EVALUATION_SEED)
    assert len({example.input for example in made}) == 3000
    counts = [len(SHIP.findall(example.input)) for example in made]
    assert set(counts) == {1, 2, 3, 4}


def test_each_record_has_one_sentence_with_its_ship_and_its_numbers():
    for example in examples(Split.EVALUATION, 300, EVALUATION_SEED):
        assert set(re.findall(r"\d+", example.output)) <= set(re.findall(r"\d+", example.input))
        ships = SHIP.findall(example.input)
        sentences = re.findall(r"[^.]+\.", example.output)
        assert len(set(ships)) == len(ships) == len(sentences)
        assert all(ship in sentence for ship, sentence in zip(ships, sentences, strict=True))


def test_a_problems_number_is_the_last_of_its_summary():
    for example in examples(Split.EVALUATION, 300, EVALUATION_SEED):
        number = reference_of(example, "GSM8K")
        assert number == re.findall(r"\d+", example.output)[-1]
        assert reference_of(example, "gpqa_diamond") in "ABCD"
        assert reference_of(example, "OpenOrca") == example.output
        assert "assert candidate()" in reference_of(example, "MBXP")


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-r1", "gpt-oss-120b"])
def test_each_dataset_of_a_benchmark_has_references_of_its_own(name):
    assert name in benchmark_names("v6.0")
    example = examples(Split.EVALUATION, 1, EVALUATION_SEED)[0]
    kinds = benchmark_terms("v6.0", name).columns["dataset"].values
    summaries = [kind for kind in kinds if reference_of(example, kind) == example.output]
    assert summaries == (["OpenOrca"] if "OpenOrca" in kinds else [])
