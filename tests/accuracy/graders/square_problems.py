"""Problems in LiveCodeBench's format, of the tests' own: the square of a number."""

import base64
import json
import pickle
import zlib


def row(question_id, kind, *, packed=False):
    """Return a problem; `packed` private tests are compressed, as most of the data set are."""
    private = json.dumps([{"input": str(n), "output": str(n * n), "testtype": kind} for n in (3, 4)])
    if packed:
        private = base64.b64encode(zlib.compress(pickle.dumps(private))).decode()
    return {
        **{"question_title": "Square", "question_content": "The square of a number.", "question_id": question_id},
        **{"platform": "atcoder" if kind == "stdin" else "leetcode", "contest_id": "own", "starter_code": ""},
        **{"contest_date": "2026-01-01T00:00:00", "difficulty": "easy", "private_test_cases": private},
        "public_test_cases": json.dumps([{"input": "2", "output": "4", "testtype": kind}]),
        "metadata": json.dumps({"func_name": "square"} if kind == "functional" else {}),
    }


def write_problems(folder, names):
    """Write a file of each name, with a problem of both kinds in each."""
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(names):
        rows = row(f"stdin{number}", "stdin", packed=True), row(f"method{number}", "functional")
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
