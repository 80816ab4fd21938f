"""The tiny model: a Llama of half a million parameters, trained here in less than a minute on the harbour log.

It makes every part of a run real on a machine without GPU and without a model hub. It is no benchmark's model.
"""

from __future__ import annotations

from cm4vllm.assets.tiny.tiny_dataset import Split, examples

SEED = 0
#: Pairs of one record, then pairs of up to four.
STAGES = ((1, 2600), (4, 5800))
#: The inputs of the training beside the code; they are in the model's record.
RECIPE = {
    "task": "harbour log summaries",
    "seed": str(SEED),
    "training_pairs": " then ".join(f"{count} of up to {records} records" for records, count in STAGES),
}


def training_data() -> list[list[tuple[str, str]]]:
    """Return the pairs of prompt and answer of each stage of the training; none is in the evaluation set."""
    return [
        [(example.input, example.output) for example in examples(Split.TRAINING, count, SEED, records)]
        for records, count in STAGES
    ]
