"""audit.config: the settings by which LoadGen makes the run of a compliance test, and whether it did.

LoadGen reads the file after mlperf.conf and user.conf and overrides what they set (loadgen/loadgen.cc, StartTest). It
ignores a key that its version does not know, and a file that is not found, without an error: what counts is what its
detail log says of the run.
"""

from cm4vllm.common.errors import RunFailed
from cm4vllm.loadgen.measurement import RunInputs, settings_of
from cm4vllm.records.logs.detail_log import DetailLog
from cm4vllm.records.run import RunSettings
from cm4vllm.rules import Audit, audit

#: The keys of audit.config that the detail log has under another name. In Offline LoadGen issues one query, and the
#: least number of queries becomes that of its samples.
_LOGGED = {"mode": "test_mode", "min_duration": "min_duration_ms", "min_query_count": "min_sample_count"}
_UNIQUE = "performance_issue_unique"
#: Settings that LoadGen 4.1.30 to 5.0.4 does not take (loadgen/process/main.py): these draw the answers that they log.
_NOT_TAKEN = ("accuracy_log_sampling_target", "sample_concatenate_permutation")
_FLAGS = (_UNIQUE, "sample_concatenate_permutation")


def audit_config(test: str, benchmark: str = "") -> str:
    """Return the text of the audit.config of a benchmark's test, empty where no test is named. Raises UsageError."""
    return config_text(audit(test, benchmark)) if test else ""


def run_settings_of(inputs: RunInputs) -> RunSettings:
    """Return the settings of the run that the inputs describe, with audit.config where it is one of a test.

    Raises UsageError when something is not given.
    """
    return settings_of(inputs, audit_config(inputs.compliance_test, inputs.model))


def config_text(test: Audit) -> str:
    """Return the settings of a test in LoadGen's format; its thresholds, which LoadGen does not read, come last."""
    lines = [f"# {test.name}: {test.title}"]
    lines += [f"*.*.{key} = {value}" for key, value in test.audit.items()]
    lines += [f"*.*.{test.name.lower()}_{key} = {value}" for key, value in test.thresholds.items()]
    return "\n".join(lines) + "\n"


def require_applied(log: DetailLog, test: Audit) -> None:
    """Raise RunFailed unless LoadGen made the run with the settings of the test."""
    drawn = log.number("effective_accuracy_log_probability") > 0
    for key, value in test.audit.items():
        if drawn and key in _NOT_TAKEN:
            continue
        if key == "min_query_count" and test.audit.get(_UNIQUE):
            continue  # each sample that is loaded is issued once, however many there are
        wanted: object = {2: "PerformanceOnly"}[value] if key == "mode" else bool(value) if key in _FLAGS else value
        used = log.values.get(f"effective_{_LOGGED.get(key, key)}")
        if used != wanted:
            raise RunFailed(
                f"{log.path} is not the log of a run of {test.name}",
                cause=f"LoadGen ran with {key} {used!r}, the test's audit.config has {wanted!r}",
                remedy="run the test again: --rerun",
            )
