"""Make the small files beside this one, in the formats that the benchmarks' datasets are published in.

    python make.py SUFFIX

Run once with pandas 1.5.3 (SUFFIX pandas1) and once with 2.2.3 (pandas2), both with numpy 1.26.4: the published files
were written by pandas of those years. Every frame has an index that is no range, as a sampled one has.
"""

import gzip
import pickle
import sys
from pathlib import Path

import numpy
import pandas

HERE = Path(__file__).parent
SUFFIX = sys.argv[1]

orca = pandas.DataFrame(
    {
        "system_prompt": ["", "Be brief."],
        "question": ["What is a harbour?", "And a pier?"],
        "output": ["A port.", "A quay."],
        "origin": ["flan", "cot"],
        "tok_input": [[1, 5, 9], [1, 7]],
        "tok_output": [[3, 2], [4, 2]],
        "tok_input_len": numpy.array([3, 2]),
        "score": numpy.array([0.5, 1.0]),
        "flag": [True, False],
    },
    index=[17, 4],
)
with gzip.open(HERE / f"open_orca.{SUFFIX}.pkl.gz", "wb") as file:
    pickle.dump(orca, file, protocol=4)

mixtral = pandas.DataFrame(
    {
        "id": ["a", "b"],
        "dataset": ["GSM8K", "MBXP"],
        "input": ["2 + 2?", "def f():"],
        "tok_input": [[1, 2, 3], [1, 4]],
        "gt_output": ["4", "pass"],
        "stop_sequence": ["</s>", "\n```"],
    },
    index=[3, 1],
)
mixtral.to_pickle(HERE / f"mixtral.{SUFFIX}.pkl")

long = pandas.DataFrame(
    {
        "input": ["Sum up.", "Find it."],
        "tok_input": [numpy.array([1, 2, 3]), numpy.array([1, 4])],
        "tok_input_len": [3, 2],
        "gt_output": ["All.", "Here."],
        "metric": ["rouge", "exact_match"],
    }
)
long.to_pickle(HERE / f"llama3.1-405b.{SUFFIX}.pkl")
