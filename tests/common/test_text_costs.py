"""Texts that are made to keep a pattern busy cost as much time as others of their length."""

import time

import pytest

from cm4vllm.common.secrets.command_lines import published_words
from cm4vllm.common.secrets.redaction import Vault, redacted_words
from cm4vllm.common.secrets.secret_forms import holds_form, keys_in, without_forms
from cm4vllm.common.secrets.secret_names import is_secret_name
from cm4vllm.hardware import system_description
from cm4vllm.records import known_hardware
from cm4vllm.report import page_templates
from cm4vllm.results.checks import answers
from cm4vllm.results.checks.of_logs import log_settings, summary_logs
from cm4vllm.results.checks.of_texts import readmes

#: Seconds of the processor: a tenth of them is used, and many times as many where the time grows as the square.
ENOUGH_S = 3.0
SIZE = 120_000
BEGIN, END = (f"-----{word} RSA PRIVATE KEY-----" for word in ("BEGIN", "END"))
UNITS = {
    "keys in one word": "sk-",
    "keys in one word, with letters": "sk-aa-",
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
    "digits": "1",
    "queries": "?key=",
    "assignments": "a=",
    "secret assignments": "token=",
    "cookies": "cookie: ",
    "spaces": " ",
    "variations": "_",
    "slashes": "/",
    "quotes": '"',
    "backticks": "`",
    "empty lines": "\n",
    "lines of spaces": " \n",
    "capital letters": "A",
    "bounds": "AB: 1 ",
    "settings": "a.a",
    "answers": '"data":"a"',
    "slots": "PCIe",
    "colons": " : ",
}
WAYS = {
    "forms": without_forms,
    "whether it holds one": holds_form,
    "keys in bytes": lambda text: list(keys_in(text.encode())),
    "words of a command": lambda text: redacted_words([text, f"--flag={text}"], Vault({})),
    "published words": lambda text: published_words([text, f"--flag={text}"], secrets=Vault({})),
    "names": is_secret_name,
    "words of a page": page_templates.environment().filters["whole_words"],
    "answers of a log": lambda text: list(answers._ANSWER.finditer(text.encode())),
    "settings of a log": lambda text: list(log_settings._SETTING.finditer(text)),
    "bounds of a README": lambda text: list(readmes.BOUND.finditer(text)),
    "blocks of a README": lambda text: list(readmes._FENCE.finditer(text)),
    "lines of a summary": summary_logs._label_and_text,
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
