import csv
import html
import io
import json
import os
import shlex
import subprocess
import time
from urllib.parse import quote_plus

import markupsafe
import pytest

from cm4vllm.common.records import Record, read_record, write_record
from cm4vllm.common.secrets import redaction
from cm4vllm.common.secrets.command_lines import published_words
from cm4vllm.common.secrets.redaction import Vault, redacted_words
from cm4vllm.common.secrets.secret_forms import HIDDEN, holds_form, is_secret_name, keys_in, without_forms
from cm4vllm.hardware import system_description
from cm4vllm.records import known_hardware
from cm4vllm.report import page_templates
from cm4vllm.results.checks import answers
from cm4vllm.results.checks.of_logs import log_figures, log_settings
from cm4vllm.results.checks.of_texts import readmes

HF = "hf_" + "aB3" * 11


SECRET_NAMES = (
    "CM_GH_TOKEN HF_TOKEN CM_API_KEY AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID AWS_SESSION_TOKEN "
    "AZURE_STORAGE_KEY WANDB_API_KEY AZURE_STORAGE_CONNECTION_STRING GOOGLE_APPLICATION_CREDENTIALS "
    "GITHUB_PAT DB_PASS SLACK_WEBHOOK_URL --hf-token --api-key --env.HF_TOKEN --const.HF_TOKEN "
    "--adr.model.env.HF_TOKEN +HF_TOKEN OPENAI_API_KEYS awsSecretAccessKey apiKey HF_TOKEN_2 "
    "CLIENT_SECRET_VALUE MYSQL_PWD DOCKER_AUTH_CONFIG SESSION_JWT OPENAI_KEY MY_KEY"
).split()
OTHER_NAMES = (
    "PWD OLDPWD key CM_CACHE_KEY eosToken CM_TOKENIZER CM_MAX_TOKENS CM_KEYS --max-num-batched-tokens "
    "--api_key_env EOS_TOKEN TIME_TO_FIRST_TOKEN COMPAT GIT_ASKPASS SSH_AUTH_SOCK --tokenizer PATH "
    "API_KEY_ENV PASSWORD_FILE CREDENTIALS_PATH CREDENTIAL_HELPER MAX_TOKENS secret_env_keys "
    "FIRST_TOKEN_LATENCY TOKEN_IDS SECRETS_DIR"
).split()


def test_names_of_secrets():
    assert [name for name in SECRET_NAMES if not is_secret_name(name)] == []
    assert [name for name in OTHER_NAMES if is_secret_name(name)] == []


@pytest.mark.parametrize(
    ("word", "redacted"),
    [
        ("--env.HF_TOKEN=s3cr", "--env.HF_TOKEN=${HF_TOKEN:?}"),
        ("--const.AWS_SECRET_ACCESS_KEY=s3cr", "--const.AWS_SECRET_ACCESS_KEY=${AWS_SECRET_ACCESS_KEY:?}"),
        ("--adr.x.env.GH_TOKEN=s3cr", "--adr.x.env.GH_TOKEN=${GH_TOKEN:?}"),
        ("--hf_token,=s3cr,s3cr", "--hf_token,=${HF_TOKEN:?}"),
        ("HF_TOKEN=s3cr", "HF_TOKEN=${HF_TOKEN:?}"),
        ("--extra_args=--hf-token s3cr --seed 1", "--extra_args=--hf-token '${HF_TOKEN:?}' --seed 1"),
        ("--extra_args=--hf-token=s3cr", "--extra_args='--hf-token=${HF_TOKEN:?}'"),
        ("--header=Authorization: Bearer s3cr-and-more", "--header=Authorization: Bearer ${AUTHORIZATION:?}"),
        ("X-API-Key: s3cr-and-more", "X-API-Key: ${X_API_KEY:?}"),
        ('--hf-overrides={"hf_token": "s3cr t", "a": 1}', '--hf-overrides={"hf_token": "${HF_TOKEN:?}", "a": 1}'),
        ("--index=https://jdoe:s3cr@pypi.example/simple", "--index=https://${INDEX_SECRET:?}@pypi.example/simple"),
        ("--url=https://x.example/f?token=s3cr&b=1", "--url=https://x.example/f?token=${TOKEN:?}&b=1"),
        ("--index=https://s3cr@pypi.example/simple", "--index=https://${INDEX_SECRET:?}@pypi.example/simple"),
        ("--db=redis://:p@s3cr@h:6379/0", "--db=redis://${DB_SECRET:?}@h:6379/0"),
        ("--env.HTTPS_PROXY=http://u:p/s3cr@h:3128", "--env.HTTPS_PROXY=http://${HTTPS_PROXY_SECRET:?}@h:3128"),
        ("s3://AKIA" + "A1B2" * 4 + ":s3cr@bucket/x", "s3://${SECRET:?}@bucket/x"),
        ('--x={"awsSecretAccessKey":"s3cr"}', '--x={"awsSecretAccessKey":"${AWS_SECRET_ACCESS_KEY:?}"}'),
        (f"--note=it was {HF}", "--note=it was ${NOTE_SECRET:?}"),
        ("ghp_" + "s3cr" * 10, "${SECRET:?}"),
    ],
)
def test_a_secret_in_a_word_becomes_a_variable(word, redacted):
    assert redacted_words(["cm", word, "--last"], Vault({})) == ["cm", redacted, "--last"]


@pytest.mark.parametrize(
    "word",
    [
        "--tags=run-mlperf,inference,_vllm",
        "--max_tokens=5",
        "--extra_args=--max-num-seqs 4 --enforce-eager",
        "--x=a b - c",
        '--hf-overrides={"eos_token": "</s>", "max_tokens": 5}',
        *(
            "--api_server=http://127.0.0.1:8000 --env.HF_TOKEN= "
            "--adr.mlperf-implementation.tags=_repo.https://github.com/neuralmagic/inference,_branch.vllm "
            "it's -v --url=git@github.com:a/b.git --repo=git+ssh://git@github.com:org/repo@v1 "
            "--a=http://h:8000/model@main --api_server=http://h:8000,unix:///x@y "
            "scikit-sk-learn-compatible-estimators --api_key_env=MY_NAME"
        ).split(),
    ],
)
def test_what_is_no_secret_stays(word):
    assert redacted_words([word], Vault({})) == [word]


def test_the_values_that_follow_a_flag_are_hidden():
    words = ["serve", "m", "--api-key", "one", "two", "--hf-token", "three", "--seed", "0"]
    hidden = "serve m --api-key ${API_KEY:?} ${API_KEY:?} --hf-token ${HF_TOKEN:?} --seed 0"
    assert redacted_words(words, Vault({})) == hidden.split()


def test_a_redacted_command_is_the_same_command_once_the_variables_are_set():
    words = ["printf", "%s\\n", "--env.HF_TOKEN=s3cr it's", "--extra_args=--hf-token s3cr --name 'a b'"]
    shown = redacted_words(words, Vault({}))
    assert "s3cr" not in " ".join(shown)
    line = " ".join(f'"{word}"' for word in shown)
    ran = subprocess.run(
        ["bash", "-c", line], env={**os.environ, "HF_TOKEN": "s3cr it's"}, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[0] == words[2]
    assert shlex.split(ran.stdout.splitlines()[1].partition("=")[2].replace(" it's", ""))[1] == "s3cr"


def test_redaction_is_done_once():
    words = ["cm", "--env.HF_TOKEN=s3cr", "--extra_args=--hf-token s3cr", "--u=https://a:s3cr@h/"]
    once = redacted_words(words, Vault({}))
    assert redacted_words(once, Vault({})) == once


def test_a_value_that_was_given_as_a_secret_is_found_everywhere():
    secrets = Vault({"HF_TOKEN": 'it"s\\a/secret & more'})
    secrets.learn_words(["cm", "--extra_args=--hf-token letmein99", "--index=https://me:opensesame@h/"])
    record = {"argv": ["--hf-token", "letmein99"], "why": 'it"s\\a/secret & more'}
    for text in (json.dumps(record), str(record), "https://h/?q=it%22s%5Ca%2Fsecret%20%26%20more", "opensesame"):
        clean = secrets.clean(text)
        assert HIDDEN in clean
        assert "letmein99" not in clean and "opensesame" not in clean and "secret & more" not in clean
        assert "%22s%5Ca" not in clean
    assert secrets.cleaned({"A": ["letmein99"], "B_TOKEN": "x"}) == {"A": [HIDDEN], "B_TOKEN": HIDDEN}
    assert secrets.holds({"a": ["... letmein99"]}) and not secrets.holds(["harmless"])


def test_the_password_in_the_url_of_a_variable_is_found_where_it_stands_alone():
    secrets = Vault(
        {
            "HTTPS_PROXY": "http://jdoe:p%40ssw0rd-9@proxy.example:3128",
            "PIP_INDEX_URL": "https://t0ken-9@h/x",
            "A": "https://h/x?key=abcdef-9",
        }
    )
    for text in ("p%40ssw0rd-9", "p@ssw0rd-9", "t0ken-9", "abcdef-9"):
        assert secrets.clean(f"refused: {text} of jdoe") == f"refused: {HIDDEN} of jdoe"
        assert secrets.clean(secrets.clean(text)) == HIDDEN
    assert (
        Vault({"URL": "https://jenkins@h/x"}).clean("jenkins at https://jenkins@h") == f"jenkins at https://{HIDDEN}@h"
    )


def test_a_secret_is_known_by_its_form_even_where_nobody_named_it():
    secrets = Vault({})
    for text in (
        f"token {HF} used",
        "GET https://u:passw0rd@h/x",
        "Authorization: Bearer abcdefgh",
        "https://h/x?X-Amz-Signature=0123456789abcdef",
        "sk-proj-" + "0123456789" * 2,
        "AKIA" + "A1B2" * 4,
    ):
        assert HIDDEN in secrets.clean(text), text
    for text in ("x.json at http://127.0.0.1:8000/v1?max_tokens=5", "a bearer of news", "hf_transfer", "task-sk-1"):
        assert secrets.clean(text) == text


def test_names_that_a_recipe_declares_are_secret():
    secrets = Vault({})
    secrets.declare(["CM_LICENCE_*", "CM_WORD"])
    secrets.learn({"CM_LICENCE_X": "abcdefgh", "CM_WORD": "ijklmnop", "CM_OTHER": "harmless"})
    assert secrets.clean("abcdefgh ijklmnop harmless") == f"{HIDDEN} {HIDDEN} harmless"
    assert redacted_words(["--env.CM_WORD=q"], secrets) == ["--env.CM_WORD=${CM_WORD:?}"]


def test_the_secrets_of_the_run_under_way_are_those_in_use(capsys):
    secrets = Vault({"A_TOKEN": "wholly-secret"})
    with secrets.guarded_output():
        assert redaction.vault() is secrets
        print("a wholly-secret word")
    assert capsys.readouterr().out == f"a {HIDDEN} word\n"
    assert redaction.vault() is not secrets


def test_no_record_holds_a_secret(tmp_path):
    class Some(Record, frozen=True, kw_only=True):
        packages: dict[str, str]
        argv: list[str]

    with Vault({"A_TOKEN": "wholly-secret"}).guarded_output():
        write_record(tmp_path / "some.json", Some(packages={"google-auth": "2.29.0"}, argv=["--x=wholly-secret", HF]))
    assert read_record(tmp_path / "some.json", Some) == Some(
        packages={"google-auth": "2.29.0"}, argv=[f"--x={HIDDEN}", HIDDEN]
    )


@pytest.mark.parametrize(
    "name",
    [
        *(
            "MYSECRETKEY DB_PASSWORD_PROD HF_TOKEN_PROD HF_TOKEN_OLD HF_TOKEN_B64 SECRET_STRING "
            "CLIENT_SECRET_V2 AUTH_TOKENS COOKIES PRIVATEKEY AZURE_STORAGE_SAS"
        ).split(),
        'env["HF_TOKEN"]',
        "env.HF_TOKEN:",
    ],
)
def test_a_secret_is_known_by_a_name_that_says_more(name):
    secrets = Vault({})
    assert "correct-horse" not in " ".join(redacted_words(["cm", f"--{name}=correct-horse"], secrets))
    secrets.learn_words([f"--{name}=correct-horse"])
    assert "correct-horse" in secrets.values


@pytest.mark.parametrize(
    "words",
    [
        ['--extra_args="--api-key" "correct-horse"'],
        ["--extra_args=--hf_token", "correct-horse"],
        ["--env={HF_TOKEN:correct-horse}"],
    ],
)
def test_a_secret_inside_of_a_flag_is_hidden_however_it_is_quoted(words):
    assert "correct-horse" not in " ".join(redacted_words(words, Vault({})))


@pytest.mark.parametrize("word", ["--x[1]=-2", "-[=-]=-", " -x=1", "--\u2014=-1", "=-", "--a b=-c[d]=-e", "-'=-'"])
def test_a_word_that_is_no_flag_is_taken_as_it_is(word):
    assert redacted_words([word, f"--extra_args={word}"], Vault({}))


def test_a_secret_is_found_on_a_page_and_in_a_table():
    secret = "a+b&c<d'e\"f g"
    secrets = Vault({"HF_TOKEN": secret})
    table = io.StringIO()
    csv.writer(table).writerow(["x", secret])
    for text in (
        html.escape(secret),
        html.escape(secret, quote=False),
        str(markupsafe.escape(secret)),
        quote_plus(secret),
        table.getvalue(),
    ):
        assert "b" not in secrets.clean(text).replace("(secret)", ""), text


def test_a_secret_of_any_bytes_ends_no_command():
    for secret in ("p\udce4ssw\udcf6rt", "half \ud800 a pair"):
        secrets = Vault({"DB_PASSWORD": secret})
        assert secret not in secrets.clean(f"it is {secret}!")
    assert "p%E4ssw" not in Vault({"DB_PASSWORD": "p\udce4ssw\udcf6rt"}).clean("u=p%E4ssw%F6rt")


@pytest.mark.parametrize(
    "word",
    [
        "Y29ycmVjdC1ob3JzZQ==",
        "--x Y29ycmVjdC1ob3JzZQ==",
        "Y29ycmVjdC1ob3JzZQ===1",
        "--Y29ycmVjdC1ob3JzZQ==x=1",
        "aY29ycmVjdC1ob3JzZQ===Y29ycmVjdC1ob3JzZQ==",
    ],
)
def test_a_secret_that_ends_like_an_assignment_is_hidden(word):
    secrets = Vault({"HF_TOKEN": "Y29ycmVjdC1ob3JzZQ=="})
    assert "Y29ycmVj" not in " ".join(redacted_words(["cm", word, f"--extra_args={word}"], secrets))


# --- texts that are made to keep a pattern busy cost as much time as others of their length


#: Seconds of the processor: a tenth of them is used, and many times as many where the time grows as the square.
ENOUGH_S = 1.5
SIZE = 50_000
BEGIN, END = (f"-----{word} RSA PRIVATE KEY-----" for word in ("BEGIN", "END"))
UNITS = {
    "keys in one word": "sk-",
    "beginnings of web tokens": "eyJ-",
    "web tokens without a signature": "eyJaaaaaaaaaaa.",
    "beginnings of private keys": BEGIN,
    "words of private keys": "-----BEGIN PRIVATE KEY PRIVATE KEY ",
    "ends of private keys": END,
    "users of URLs": "://a:",
    "passwords with slashes": "://a:b/",
    "URLs": "http://",
    "open brackets of addresses": "x://[",
    "letters": "z",
    "queries": "?key=",
    "assignments": "a=",
    "secret assignments": "token=",
    "cookies": "cookie: ",
    "spaces": " ",
    "variations": "_",
    "slashes": "/",
    "quotes": '"',
    "empty lines": "\n",
    "bounds": "AB: 1 ",
    "settings": "a.a",
    "answers": '"data":"a"',
    "slots": "PCIe",
    "colons": " : ",
}
WAYS = {
    "forms": without_forms,
    "whether it holds one": holds_form,
    "keys": lambda text: list(keys_in(text)),
    "words of a command": lambda text: redacted_words([text, f"--flag={text}"], Vault({})),
    "published words": lambda text: published_words([text, f"--flag={text}"], secrets=Vault({})),
    "names": is_secret_name,
    "words of a page": page_templates.environment().filters["whole_words"],
    "answers of a log": lambda text: list(answers._ANSWER.finditer(text.encode())),
    "settings of a log": lambda text: list(log_settings._SETTING.finditer(text)),
    "bounds of a README": lambda text: list(readmes.BOUND.finditer(text)),
    "blocks of a README": lambda text: list(readmes._FENCE.finditer(text)),
    "lines of a summary": log_figures._label_and_text,
    "models of processors": system_description._model,
    "products": known_hardware._words,
    "clocks": lambda text: known_hardware._is_faster(text, known_hardware._processors()[0]),
    "slots": lambda text: known_hardware._faster_pcie(text, known_hardware._accelerators()[0]),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_time_of_a_text_grows_as_its_length(way):
    slow = {}
    for name, unit in UNITS.items():
        text = unit * (SIZE // len(unit))
        for tried in (text, f"x{text}@ \x00"):
            began = time.process_time()
            WAYS[way](tried)
            spent = time.process_time() - began
            if spent > ENOUGH_S:
                slow[name] = round(spent, 1)
    assert slow == {}
