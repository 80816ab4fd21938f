"""The consent of a replay: flags, variables and vLLM options that it takes from a foreign capsule, or asks for."""

import io
import re
import shlex

import pytest
from tests.submission.capsule.foreign_capsule import ENVIRON, HELP, MAIN, ROOT, TAGS, capsule, words_of

from cm4vllm.common.errors import UsageError
from cm4vllm.records.vllm.options import stored_options
from cm4vllm.results.capsule import Capsule, CapsuleServer
from cm4vllm.submission.capsule.capsules_at_path import capsules_at
from cm4vllm.submission.capsule.consent import question, replayed
from cm4vllm.submission.capsule.replay import replay_words
from cm4vllm.submission.capsule.rerun_file import read_capsule
from recipes import recipes

DANGEROUS = [
    *(
        "--vllm_index_url=http://evil.example/simple/ --vllm-index-url=http://evil.example/simple/ "
        "--vllm_extra_index_url=http://evil.example/simple/ --vllm_wheel=http://evil.example/vllm.whl "
        "--vllm_python=/tmp/evil/python --vllm_version=0.32.0,_system --trust_remote_code "
        "--trust_remote_code=yes --api_server=http://evil.example "
        "--api_server=http://localhost.evil.example:8000 "
        "--api_server=http://127.0.0.1:8000@evil.example "
        "--api_server=http://127.0.0.1:8000,http://evil.example --api_server=unix:///run/docker.sock "
        "--api_key_env=AWS_SECRET_ACCESS_KEY --api_headers_env=AWS_SECRET_ACCESS_KEY "
        "--env.LD_PRELOAD=/tmp/evil.so --const.CM_VLLM_WHEEL=http://evil.example/x.whl "
        "--adr.vllm.tags=_system --add_deps_recursive.vllm.tags=_system --path=/tmp/evil "
        "--inference_src=https://evil.example/inference.git --dataset_path=/home/me/.ssh/id_ed25519"
    ).split(),
    "--dataset_path=${DATASET_PATH:?}/../../.ssh/id_ed25519",
    *(
        "--system_file=/home/me/.netrc --vllm_model_name=/tmp/evil --vllm_model_name=./evil "
        "--vllm_model_name=evil/model --revision=refs/pr/1 --host=0.0.0.0 "
        "--ray_address=evil.example:6379 --distributed_executor_backend=evil.Executor "
        "--rehearse=./evil.yaml --hw_name=../../evil --unknown_flag=1"
    ).split(),
]


EXTRA = [
    *(
        "--trust-remote-code --trust_remote_code --trust --no-trust-remote-code "
        "--hf-config-path=/tmp/x --middleware=evil.Middleware"
    ).split(),
    "--middleware evil.Middleware",
    "--load-format=pt",
    "--download-dir=/home/me",
    "--allowed-local-media-path=/",
    "--max-num-seqs=16 --worker-cls=evil.Worker",
    "--max-num-seqs=16 evil/model",
    "--max-num-seqs 16 17",
    "--seed=${EXTRA_ARGS:?}",
    '--compilation-config={"backend":"evil.backend"}',
    *(
        "-cc.backend=evil --distributed-executor-backend=evil.Executor --scheduler-cls=evil.Scheduler "
        "--logits-processors=evil.P --tool-parser-plugin=/tmp/evil.py "
        "--otlp-traces-endpoint=http://evil.example"
    ).split(),
    "--enforce-eager evil/model",
    "-- evil/model",
    "evil/model",
]


@pytest.mark.parametrize("flag", [*DANGEROUS, *(f"--extra_args={words}" for words in EXTRA)])
def test_a_flag_that_is_not_on_the_list_is_shown_and_needs_to_be_accepted(flag):
    name = re.split("[=]", flag[2:])[0].replace("-", "_")
    variables = re.findall(r"\{(\w+):", flag)
    with pytest.raises(UsageError, match="asks for more than a replay takes by itself") as refused:
        words_of(flag)
    assert f"--accept={name}" in refused.value.remedy
    assert name.partition(".")[0] in refused.value.cause.replace("-", "_")
    accepted = words_of(flag, accept=[name], fill=variables)
    assert [word for word in accepted if word.partition("=")[0] == f"--{name}"]


def test_every_flag_of_the_job_is_listed_left_out_or_asked_for():
    """Also in the other spellings that cm takes; consent is asked for each new flag until the list has it."""
    listed = {name for entry in replayed().flags for name in entry.names} | {"extra_args"}
    dropped = {"output_dir", "results_dir", "submitter", "plan", "rerun", "clean", "serve", "published_results"}
    dropped |= {"search", "search_minutes", "find_target_qps"}
    taken = []
    for name in {*MAIN.input_mapping, *MAIN.input_description} - listed - dropped:
        for flag in (name, name.replace("_", "-"), f"{name},", f"-{name}"):
            try:
                taken += [word for word in words_of(f"--{flag}=1") if word != TAGS]
            except UsageError as refused:
                assert "asks for more" in refused.what or "is refused" in refused.what, flag
    assert taken == []


def test_what_a_flag_does_is_shown_in_the_words_of_the_recipe():
    with pytest.raises(UsageError) as refused:
        words_of(
            "--vllm_index_url=http://evil.example/simple/", "--extra_args=--seed=1 --trust-remote-code", "--env.A=b"
        )
    assert "--vllm_index_url=http://evil.example/simple/: the only package index" in refused.value.cause
    assert "options of vLLM that are not on the list: --trust-remote-code" in refused.value.cause
    assert "sets a variable in the environment" in refused.value.cause
    assert refused.value.remedy.endswith("--accept=vllm_index_url,extra_args,env.A")
    with pytest.raises(UsageError) as still:
        words_of("--vllm_wheel=x", "--env.A=b", accept=["env.A"])
    assert "env.A=b" not in still.value.cause and still.value.remedy.endswith("--accept=env.A,vllm_wheel")
    with pytest.raises(UsageError, match="no flag vllm_whee") as misspelt:
        words_of("--vllm_wheel=x", accept=["vllm_whee"])
    assert "vllm_wheel" in misspelt.value.remedy


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("@evil.yaml",), "form --name=value"),
        (("evil",), "form --name=value"),
        (("--",), "form --name=value"),
        (("--tags =detect,os",), "form --name=value"),
        (("---tags=detect,os",), "form --name=value"),
        (("--tags,=detect,os",), "another script"),
        (("-tags=detect,os",), "another script"),
        (("--artifact=detect-os",), "another script"),
        (("--parsed_artifact,=detect-os",), "another script"),
        (("--automation=cache", "--action=rm"), "another script"),
        (("--x y=1",), "form --name=value"),
        (("--hw_name=box\u202e",), "does not show"),
        (("--env.A=\x1b]0;evil\x07",), "does not show"),
        (("--extra_args=--max-num-seqs=16\n--worker-extension-cls=evil.Worker",), "does not show"),
    ],
)
def test_words_that_choose_another_script_or_file_are_refused_always(words, why):
    names = [word.strip("-").partition("=")[0] for word in words]
    with pytest.raises(UsageError, match="is refused") as refused:
        words_of(*words, accept=names)
    assert why in refused.value.cause


@pytest.mark.parametrize(
    "tags",
    [
        "run-mlperf,mlperf",
        *(
            "install,vllm,run-mlperf detect,os mlperf,inference run-mlperf,inference,-run "
            "run-mlperf,inference,_vllm,_evil run-mlperf,inference,_vllm,_-vllm"
        ).split(),
        "run-mlperf,inference,_vllm evil",
        "run-mlperf,inference,_<<<HF_TOKEN>>>",
    ],
)
def test_tags_are_those_of_the_main_job(tags):
    with pytest.raises(UsageError, match=r"does not run the main job|asks for the variation"):
        words_of(tags=f"--tags={tags}", accept=["tags"])
    with pytest.raises(UsageError, match="unknown round 'v6.1,_evil'"):
        words_of(tags="--tags=run-mlperf,inference", round="v6.1,_evil")


def test_a_model_outside_the_catalogue_has_to_be_accepted_as_a_variation_too():
    for model in ("_hf.evil/model", "_path./tmp/evil", "_dummy.evil"):
        tags = f"--tags=run-mlperf,inference,{model},_r6.1"
        with pytest.raises(UsageError, match="asks for more") as refused:
            words_of(tags=tags)
        assert "--accept=tags" in refused.value.remedy
        assert words_of(tags=tags, accept=["tags"]) == [tags]
    for model in ("_hf.nm-testing/Llama-2-70b-chat-hf-FP8", "_catalogue.llama-2-70b-chat", "_tiny", "_dummy"):
        assert words_of(tags=f"--tags=run-mlperf,inference,{model},_r6.1")
    path = "--tags=run-mlperf,inference,_path.${DATASET_PATH:?},_r6.1"
    assert words_of(tags=path, fill=["DATASET_PATH"]) == [path.replace("${DATASET_PATH:?}", "/data/cnn.json")]


def test_fields_beside_the_command_pass_the_same_gate():
    served = CapsuleServer(software="vLLM", version="0.32.0,_system", command=["serve", "m"])
    with pytest.raises(UsageError, match="asks for more"):
        words_of(server=served)
    assert "--vllm_version=0.32.0" in words_of(server=CapsuleServer(software="vLLM", version="0.32.0+cpu"))
    for value in ("16 --trust-remote-code", "evil"):
        searched = CapsuleServer(software="vLLM", command=["serve", f"--block-size={value}", f"--max-num-seqs={value}"])
        for name in ("block-size", "max-num-seqs"):
            with pytest.raises(UsageError, match=f"no number for --{name}"):
                words_of(f"--search={name}:16..32", server=searched, given={"extra_args": "--seed=1"})
    with pytest.raises(UsageError, match="asks for more"):
        words_of("--vllm_model_name=llama-2-70b-chat", model={"hub": "a/b", "revision": "refs/pr/1"})


def test_what_the_capsule_says_of_where_its_files_went_is_not_taken():
    flags = ("--output-dir=/etc", "--output_dir,=/etc", "--results_dir=/etc", "--serve=0.0.0.0:80", "--quiet")
    assert words_of(*flags, given={"output_dir": "/again"}) == [TAGS, "--output_dir=/again"]


def test_a_usual_capsule_needs_no_consent():
    flags = [
        *(
            "--scenario=Offline,Server --execution_mode=test --model=llama3.1-8b "
            "--vllm_model_name=nm-testing/Llama-2-70b-chat-hf-FP8 "
            "--api_server=http://127.0.0.1:8000,http://localhost:8001/v1 --offline_target_qps=1.5e-3 "
            "--test_query_count=64 --find_target_qps --run_checker=no --quantize=int8,kv-fp8 "
            "--max_num_seqs=128 --kv_cache_dtype=fp8_e4m3"
        ).split(),
        "--extra_args=--block-size=16 --no-enable-chunked-prefill --scheduling-policy fcfs",
        "--rehearse=4xh100-llama2-70b-fp8",
        "--rehearse_faults=hang@60-90,die@120",
        "--hw_name=2 x box",
    ]
    words = words_of(*flags)
    assert "--extra_args=--block-size=16 --no-enable-chunked-prefill --scheduling-policy fcfs" in words


def test_the_pages_of_a_published_tree_pass_the_same_gate(neural_magic):
    (fp8,) = (capsule for capsule in capsules_at(neural_magic) if capsule.system.startswith("4xH100-SXM-80GB_vLLM_FP8"))
    with pytest.raises(UsageError, match="asks for more") as refused:
        replay_words(fp8, {}, {}, help_of=HELP)
    assert refused.value.cause.count("\n") == 0 and "github.com/neuralmagic/inference" in refused.value.cause
    assert refused.value.remedy.endswith("--accept=adr.mlperf-implementation.tags")


def test_on_a_terminal_the_user_is_asked_once_with_all_flags_shown(monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    asked = []

    def ask(flags):
        asked.append([flag.flag for flag in flags])
        return question(flags)

    def words(answer):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        hostile = capsule("--vllm_wheel=x.whl", "--env.A=b")
        return replay_words(hostile, {}, ENVIRON, help_of=HELP, ask=ask)

    assert "--vllm_wheel=x.whl" in words("y\n")
    assert asked == [["vllm_wheel", "env.A"]]
    shown = capsys.readouterr().out
    assert "--vllm_wheel=x.whl: a wheel of vLLM" in shown and "--env.A=b" in shown
    for answer in ("n\n", "\n", ""):
        with pytest.raises(UsageError, match="asks for more"):
            words(answer)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError, match="asks for more"):
        replay_words(capsule("--vllm_wheel=x.whl"), {}, ENVIRON, ask=question)


def test_the_list_names_what_the_recipe_and_vllm_have():
    flags = {name for entry in replayed().flags for name in entry.names}
    assert flags <= set(MAIN.input_mapping), "no input of the main job"
    known = set(stored_options()) | {f"--{name}" for name in renamed()}
    options = {f"--{name}" for entry in replayed().vllm_options for name in entry.names}
    assert options <= known, "no option of vLLM"
    kinds = {
        form for part in ("flags", "variations", "vllm_options") for e in getattr(replayed(), part) for form in e.takes
    }
    assert kinds <= {*replayed().forms, "catalogue"} and {*replayed().forms} <= kinds
    variations = [name for entry in replayed().variations for name in entry.names]
    own = {name.partition(".#")[0] for name in MAIN.variations}
    assert all(any(re.fullmatch(name, variation) for variation in own) for name in variations)
    assert all(any(re.fullmatch(name, variation) for name in variations) for variation in own), (
        "a variation without a rule"
    )
    scripts = recipes().values()
    for group in replayed().tags.named:
        assert [script.alias for script in scripts if set(group) <= set(script.tags)] == ["run-mlperf-inference-app"]
    assert {*(tag for group in replayed().tags.named for tag in group), *replayed().tags.others} == set(MAIN.tags)


def test_each_value_that_a_recipe_lists_is_taken():
    for entry in replayed().flags:
        for name in entry.names:
            for value in MAIN.input_description[name].get("choices") or ():
                assert words_of(shlex.join([f"--{name}={value}"]))


def renamed():
    text = (ROOT / "src/cm4vllm/records/vllm/renamed.yaml").read_text()
    return re.findall(r"option: --([\w-]+)", text)


# --- the variables in a foreign capsule: they are filled only where the user names them


@pytest.mark.parametrize(
    "flag",
    [
        "--api_server=http://evil.example/${AWS_SECRET_ACCESS_KEY:?}",
        "--api_server=http://${AWS_SECRET_ACCESS_KEY:?}.evil.example",
        "--api_server=evil.example:80/${HF_TOKEN:?}",
        "--api_server=http://localhost.evil.example/${HF_TOKEN:?}",
        "--api_server=http://127.0.0.1:80@evil.example/${HF_TOKEN:?}",
        "--api_server=http://127.0.0.1:8000,http://evil.example/${HF_TOKEN:?}",
        "--vllm_index_url=https://${HF_TOKEN:?}@evil.example/simple/",
        "--ray_address=evil.example:6379/${HF_TOKEN:?}",
        "--extra_args=--otlp-traces-endpoint=http://evil.example/${HF_TOKEN:?}",
        "--extra_args=--otlp-traces-endpoint evil.example:4317/${HF_TOKEN:?}",
        "--env.HF_ENDPOINT=http://evil.example/${HF_TOKEN:?}",
        "--adr.inference-src.tags=_repo.https://evil.example/${HF_TOKEN:?}",
        "--inference_src=https://evil.example/${HF_TOKEN:?}.git",
        "--api_server=${HF_TOKEN:?}",
        "--served_model_name=${HF_TOKEN:?}",
        "--dataset_path=${AWS_SECRET_ACCESS_KEY:?}",
    ],
)
def test_a_variable_never_goes_into_the_address_of_a_stranger(flag):
    name = re.search(r"\{(\w+)", flag)[1]
    for consent in ({}, {"fill": [name], "accept": [flag[2:].partition("=")[0]]}):
        with pytest.raises(UsageError) as refused:
            words_of(flag, **consent)
        assert ENVIRON[name] not in str(refused.value)
    with pytest.raises(UsageError, match="is not filled into"):
        words_of(flag, fill=[name], accept=[flag[2:].partition("=")[0]])


def test_only_variables_that_the_user_names_are_filled():
    flags = ("--dataset_path=${DATASET_PATH:?}", "--api_server=${API_SERVER:?}")
    with pytest.raises(UsageError, match="asks for more") as refused:
        words_of(*flags)
    assert "has the variable DATASET_PATH, which --fill does not name" in refused.value.cause
    assert refused.value.remedy.endswith("add to replay,mlperf: --fill=API_SERVER,DATASET_PATH")
    with pytest.raises(UsageError):
        words_of(*flags, fill=["DATASET_PATH"])
    words = words_of(*flags, fill=["DATASET_PATH", "API_SERVER"])
    assert {"--dataset_path=/data/cnn.json", "--api_server=http://gpu7:8000"} <= set(words)
    with pytest.raises(UsageError) as refused:
        words_of("--nltk_data=${NLTK_DATA:?}", fill=["NLTK_DATA"])
    assert "NLTK_DATA, which has no value here" in refused.value.cause
    assert "export NLTK_DATA=..." in refused.value.remedy
    with pytest.raises(UsageError, match="has no variable HOME"):
        words_of(*flags, fill=["HOME"])


@pytest.mark.parametrize("form", ["$HF_TOKEN", "${HF_TOKEN}", "${HF_TOKEN:-x}", "$(env)", "`env`", "<<<HF_TOKEN>>>"])
def test_other_forms_of_variables_are_no_value_that_is_taken(form):
    for flag in ("served_model_name", "dataset_path", "hw_name", "vllm_version", "env.X"):
        with pytest.raises(UsageError):
            words_of(f"--{flag}={form}")
    if "<" in form:
        with pytest.raises(UsageError, match="is refused"):
            words_of(f"--env.X={form}", accept=["env.X"])
    else:
        assert f"--env.X={form}" in words_of(f"--env.X={form}", accept=["env.X"])  # the text itself, unfilled


def test_what_the_user_gives_is_the_users_address():
    given = {"api_server": "http://gpu7/${HF_TOKEN:?}"}
    with pytest.raises(UsageError, match="asks for more"):
        words_of("--api_server=http://evil.example", given=given)
    words = words_of("--api_server=http://evil.example", given=given, fill=["HF_TOKEN"])
    assert "--api_server=http://gpu7/hub-token-value" in words and not [word for word in words if "evil" in word]


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "OPENAI_API_KEY"])
def test_a_server_on_this_machine_gets_the_users_key_only_where_it_is_accepted(monkeypatch, name):
    """Any user of the machine can listen at an address of it."""
    flag = "--api_server=http://127.0.0.1:8000"
    assert flag in words_of(flag)
    monkeypatch.setitem(ENVIRON, name, "sk-user")
    with pytest.raises(UsageError, match="asks for more") as refused:
        words_of(flag)
    assert f"the server there gets the key in {name}" in refused.value.cause and "sk-user" not in str(refused.value)
    assert flag in words_of(flag, accept=["api_server"])
    assert "--api_server=http://gpu7:8000" in words_of("--api_server=${API_SERVER:?}", fill=["API_SERVER"])
    assert "--api_server=http://mine" in words_of(flag, given={"api_server": "http://mine"})


def test_a_secret_that_is_named_goes_where_a_secret_is_expected():
    flag = "--env.HF_TOKEN=${HF_TOKEN:?}"
    assert "--env.HF_TOKEN=hub-token-value" in words_of(flag, fill=["HF_TOKEN"], accept=["env.HF_TOKEN"])
    with pytest.raises(UsageError, match="asks for more") as refused:
        words_of(flag, fill=["HF_TOKEN"])
    assert "--accept=env.HF_TOKEN" in refused.value.remedy


# --- rerun.yaml: files that are no capsule, or one of another schema, are refused with the remedy


def references(levels):
    """Return YAML of some hundred bytes that stands for 2**levels values."""
    return "p0: &p0 [x, x]\n" + "".join(f"p{n}: &p{n} [*p{n - 1}, *p{n - 1}]\n" for n in range(1, levels))


@pytest.mark.parametrize(
    ("text", "message", "why"),
    [
        (None, "cannot read the capsule", ""),
        ("\0", "is not a capsule", ""),
        ("a: [", "is not a capsule", ""),
        ("- a\n", "of this version", "no line `schema:`"),
        ("schema: 1\nround: v6.1\nruns: []\n", "of this version", "schema 1, this version reads schema 2"),
        (f"schema: {Capsule.SCHEMA}\nround: 3\n", "is not a capsule", ""),
        (f"schema: {Capsule.SCHEMA}\nmodel: {{}}\nresults: 3\n", "is not a capsule", ""),
        # made to end their reader: libyaml overflows its stack
        ("[" * 10**5, "is not a capsule", "nested too deep"),
        ("- " * 10**5, "is not a capsule", "nested too deep"),
        (references(30), "is not a capsule", "stands for more than 250,000 values"),
        ("a: &a {b: *a}\n", "is not a capsule", "refers to a part of itself, or to none: *a"),
        (f"a: {'9' * 6000}\n", "is not a capsule", "a number of 6,000 characters"),
    ],
    ids=range(12),
)
def test_a_file_that_is_no_capsule_of_this_version_is_refused(tmp_path, text, message, why):
    path = tmp_path / "rerun.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=message) as refused:
        read_capsule(path)
    assert why in refused.value.cause and refused.value.remedy
