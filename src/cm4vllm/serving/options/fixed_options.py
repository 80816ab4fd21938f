"""Options of `vllm serve` that users may not give: the result rests on the values that they have here.

vLLM 0.32 takes an option in many forms: `--a-b`, `--a_b`, `--a-b=1`, parts of a JSON value (`--a-b.part 1`), short
names, any beginning of a name that fits no other (argparse), and a whole file of options. All are refused alike.
"""

from collections.abc import Iterable, Mapping

from cm4vllm.common.errors import UsageError
from cm4vllm.records.vllm.options import spellings, split_options

_REUSE = "answers may not be reused between queries: the rules forbid it"
_SAMPLING = "sampling is as the benchmark says"
_SPECULATION = "speculative decoding is not declared in what is submitted"
_INPUT = "it has an input of its own: {}"

#: Full names of others that begin a fixed one.
_OTHERS = ("--watermark",)
#: Each fixed option with the reason, by its name in records.
_REASONS: Mapping[str, str] = {
    "--enable-prefix-caching": _REUSE,
    "--mm-processor-cache-gb": _REUSE,
    "--kv-transfer-config": _REUSE,
    "--kv-offloading-size": _REUSE,
    "--kv-offloading-backend": _REUSE,
    "--generation-config": _SAMPLING,
    "--override-generation-config": _SAMPLING,
    "--logits-processors": _SAMPLING,
    "--watermark-config": _SAMPLING,
    "--speculative-config": _SPECULATION,
    "-sc": _SPECULATION,
    "--spec-method": _SPECULATION,
    "--spec-model": _SPECULATION,
    "--spec-tokens": _SPECULATION,
    "--speculative-model": _SPECULATION,
    "--num-speculative-tokens": _SPECULATION,
    "--api-key": "every user of the machine can read a command line; VLLM_API_KEY in the environment does the same",
    "--config": "options in a file are neither checked nor recorded: give them in --extra_args",
    "--model": _INPUT.format("--vllm_model_name"),
    "--served-model-name": _INPUT.format("--served_model_name"),
    "--host": _INPUT.format("--host"),
    "--port": _INPUT.format("--port"),
    "--uds": "the server listens at --host and --port",
}
_FIXED = {
    f"--{spelled}" if flag.startswith("--") else flag: reason
    for flag, reason in _REASONS.items()
    for spelled in spellings().get(flag.lstrip("-"), [flag.lstrip("-")])
}

#: Options that may be given, but not with this value.
_FIXED_VALUES: Mapping[str, str] = {"--load-format": "dummy"}


def refuse_fixed(words: Iterable[str]) -> None:
    """Raise UsageError for the first word that gives a fixed option, in whatever form, or a value that is refused."""
    for option in split_options(words)[1]:
        if name := written_in_full(option.name, _FIXED):
            raise UsageError(
                f"{option.as_written} cannot be given in --extra_args", cause=_FIXED[name], remedy="remove it"
            )
        name = written_in_full(option.name, _FIXED_VALUES)
        if name and _FIXED_VALUES[name] in option.values:
            raise UsageError(
                f"{name} {_FIXED_VALUES[name]} cannot be given in --extra_args",
                cause="random weights would be recorded as the model's own",
                remedy="name the model as a dummy: _dummy.NAME among the tags; every page then says so",
            )


def speculative_options(words: Iterable[str]) -> list[str]:
    """Return the words among options of `vllm serve` that switch speculative decoding on, in whatever form."""
    names = [name for name, reason in _FIXED.items() if reason == _SPECULATION]
    return [option.as_written for option in split_options(words)[1] if written_in_full(option.name, _FIXED) in names]


def written_in_full(begin: str, names: Iterable[str]) -> str:
    """Return the option among `names` whose name begins so; empty where none does.

    A beginning counts as the option that it begins: that of another, as `--conf` of `--config-format`, can be written
    in full.
    """
    return next((name for name in names if name.startswith(begin)), "") if begin not in _OTHERS else ""
