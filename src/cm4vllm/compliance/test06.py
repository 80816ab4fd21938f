"""TEST06: the tokens of an answer are those that were reported, and it does not end with repeated end tokens.

The official verification (compliance/TEST06/run_verification.py) decides by three checks. The checks of this module
refuse all that it refuses. They also refuse what it lets pass because of these faults:

- given an end token with -e it compares numbers with a text, so that its EOS check passes always;
- it knows one end token, where a model may have several (llama3.1: 128001, 128008, 128009);
- it leaves out the first token, so that an answer of two end tokens passes;
- an answer without any reported first token passes its first token check.
"""

from collections.abc import Callable, Sequence, Set
from itertools import takewhile
from pathlib import Path

from cm4vllm.common.errors import ModelError
from cm4vllm.compliance.run_verdict import LoggedRun, Verdict
from cm4vllm.records.compliance import CheckResult
from cm4vllm.records.logs.answers import LoggedAnswer
from cm4vllm.records.weights.config_json import json_object

FIRST_TOKEN, EOS, SAMPLE_LENGTH = "First token check pass", "EOS check pass", "Sample length check pass"


def verify(run: LoggedRun) -> Verdict:
    """Return the verdict on a run. Raises RunFailed for too few answers, ModelError where no end tokens are known."""
    run.require_answers(run.test.samples)
    return verdict(run.answers, eos=end_tokens(run.settings.model.path), first_token=run.settings.terms.first_token)


def verdict(answers: Sequence[LoggedAnswer], *, eos: Set[int], first_token: bool) -> Verdict:
    """Return the verdict on a log: `eos` are the end tokens, `first_token` says that first ones are reported."""
    first = CheckResult(name=FIRST_TOKEN, passed=None, found="no first tokens are reported in this scenario")
    if first_token:
        first = _check(FIRST_TOKEN, answers, _wrong_first_token, "begin with the token that was reported first")
    ids = ", ".join(map(str, sorted(eos)))
    return Verdict(
        (
            first,
            _check(EOS, answers, lambda answer: _wrong_end(answer, eos), f"end with one end token ({ids}) at most"),
            _check(SAMPLE_LENGTH, answers, _wrong_length, "have as many tokens as were reported"),
        ),
        last=("TEST06 verification complete", "TEST06 verification failed"),
    )


def end_tokens(model: str) -> frozenset[int]:
    """Return the tokens that end an answer of the model in a folder, by its generation_config.json or config.json.

    Raises ModelError where neither file names any, and where the folder is not given.
    """
    for name in ("generation_config.json", "config.json") if model else ():
        if (file := Path(model) / name).is_file():
            stated = json_object(file).get("eos_token_id")
            ids = stated if isinstance(stated, list) else [stated]
            if ids and all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
                return frozenset(ids)
    raise ModelError(
        "the end tokens of the model are not known",
        cause=f"no eos_token_id in the files of {model}" if model else "its files are not on this machine",
        remedy="name the model with its files: --vllm_model_name",
    )


def _check(name: str, answers: Sequence[LoggedAnswer], wrong: Callable[[LoggedAnswer], str], right: str) -> CheckResult:
    """Return the check that `wrong` finds no fault in any answer; `right` says in words what must hold."""
    faults = [f"sample {answer.sample}: {why}" for answer in answers if (why := wrong(answer))]
    if not faults:
        return CheckResult(name=name, passed=True, found=f"all {len(answers)} answers {right}")
    return CheckResult(
        name=name, passed=False, found=f"{len(faults)} of {len(answers)} answers do not {right}; {faults[0]}"
    )


def _wrong_first_token(answer: LoggedAnswer) -> str:
    if not answer.first:
        return "no first token was reported"
    begin = answer.tokens[: len(answer.first)]
    return "" if begin == answer.first else f"reported {list(answer.first)}, the answer begins with {list(begin)}"


def _wrong_end(answer: LoggedAnswer, eos: Set[int]) -> str:
    count = sum(1 for _ in takewhile(eos.__contains__, reversed(answer.tokens)))
    return f"it ends with {count} end tokens" if count > 1 else ""


def _wrong_length(answer: LoggedAnswer) -> str:
    """Return what is wrong with the number of tokens of an answer, empty if nothing is."""
    if answer.damaged:
        return "its data is no whole number of 32-bit tokens"
    if (count := len(answer.tokens)) == answer.reported:
        return ""
    wide = " (the tokens may have 64 bits)" if count == 2 * answer.reported else ""
    return f"{answer.reported} tokens were reported, it has {count}{wide}"
