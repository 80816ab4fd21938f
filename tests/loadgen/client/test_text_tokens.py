"""Whole runs against servers that give text: LoadGen's own logs, the two counts, and what is refused for them."""

import json
import re
from array import array
from pathlib import Path

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer
from word_runs import SAMPLES, expected, logged

from cm4vllm.assets.tokenizer_file import read_tokenizer
from cm4vllm.common.errors import ModelError, RunFailed, ServerUnsuitable, UsageError
from cm4vllm.common.files import sha256_of
from cm4vllm.common.records import read_record
from cm4vllm.loadgen.client.text_tokens import Texts, TextSettings, added_up
from cm4vllm.loadgen.process.runner import run
from cm4vllm.records.client import TextCounts
from cm4vllm.records.doubts import client_doubts
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, DETAIL_LOG, read_performance
from cm4vllm.records.run import FAILURE_FILE, FailureRecord
from cm4vllm.records.server import Api, Dialect, Prompts
from cm4vllm.serving.answers.event_stream import AnswerError
from cm4vllm.serving.answers.stated import Stated
from cm4vllm.serving.answers.text_answers import TextAnswer
from text_server import WORDS, TextServer, answer_words, prompt_text, save_model, tokenizer


@pytest.mark.parametrize(
    ("scenario", "habits"),
    [
        ("Server", {}),
        ("Offline", {"takes_ids": True, "refuses": (), "done": True}),
        ("Server", {"counts": False}),
        ("Offline", {"counts_end": False}),
    ],
    ids=["transformers serve", "takes ids", "no usage", "the end is not counted"],
)
def test_an_accuracy_log_holds_what_the_tokenizer_makes_of_the_text(tmp_path, settings_for, scenario, habits):
    with TextServer(**habits) as server:
        record = run(settings_for(server, scenario), tmp_path / "run")
    assert logged(tmp_path / "run") == {index: expected(index) for index in range(SAMPLES)}
    total = sum(len(expected(index)) for index in range(SAMPLES))
    assert record.client.completion_tokens == record.client.reported_tokens == total
    text = record.client.text
    if habits.get("counts") is False:
        assert (text.answers, text.server_tokens, text.difference) == (0, 0, None)
        return
    ended = record.client.finish_reasons.stop if habits.get("counts_end", True) else 0
    assert (text.answers, text.tokenizer_tokens, text.server_tokens) == (SAMPLES, total, total + ended)
    assert text.difference == 0
    assert record.client.server_prompt_tokens == record.client.prompt_tokens
    assert record.client.least_more == record.client.most_more == 0
    assert text.prompts_changed == 0


@pytest.mark.parametrize("scenario", ["Offline", "Server"])
def test_a_performance_run_counts_what_the_server_counts(tmp_path, settings_for, scenario):
    with TextServer(extra=lambda count: count // 60) as server:
        record = run(settings_for(server, scenario, "performance"), tmp_path / "run")
        # The questions of the probe come before, however many tokens they took.
        answered = [body for body in server.bodies if body["max_tokens"] == 128]
    result = read_performance(tmp_path / "run")
    assert result.errors == 0
    assert record.client.text.answers == record.client.completed >= SAMPLES
    assert record.client.completion_tokens == record.client.text.server_tokens > record.client.text.tokenizer_tokens
    assert 0 < record.client.text.difference < 0.02
    assert record.client.reported_tokens == record.client.completion_tokens
    assert len(answered) == record.client.requests
    samples = result.samples - (scenario == "Server")
    assert result.figures["tokens_per_second"] / result.samples_per_second * samples == pytest.approx(
        record.client.reported_tokens, rel=1e-3
    )


def test_counts_that_lie_too_far_apart_refuse_the_run_and_are_recorded(tmp_path, settings_for):
    with TextServer(extra=lambda count: count // 8) as server:
        for mode in ("accuracy", "performance"):
            with pytest.raises(ServerUnsuitable, match="counts other tokens than the tokenizer of harbour") as caught:
                run(settings_for(server, "Offline", mode), tmp_path / mode)
            assert "2% is allowed" in caught.value.cause
            assert "--vllm_model_name" in caught.value.remedy
            failure = read_record(tmp_path / f"{mode}.failed" / FAILURE_FILE, FailureRecord)
            assert failure.client.text.difference > 0.02
            assert not (tmp_path / mode).exists()


def test_prompts_that_the_server_reads_as_other_tokens_refuse_the_run(tmp_path, settings_for):
    with TextServer(template_tokens=3) as server, pytest.raises(ServerUnsuitable, match="reads prompts as other"):
        run(settings_for(server, "Offline"), tmp_path / "run")


def test_prompt_tokens_out_of_a_cache_make_a_run_invalid(tmp_path, settings_for):
    with TextServer() as server:
        settings = settings_for(server, "Offline", "performance")
        server.cached = 2
        record = run(settings, tmp_path / "run")
    assert any("from a cache" in fault for fault in record.faults)


def test_the_first_token_of_a_reasoning_model_is_that_of_its_reasoning(tmp_path, settings_for, monkeypatch):
    monkeypatch.setattr("text_server.answer_words", lambda prompt, most: answer_words(prompt, most)[:1] * 12)
    habits = {"chat": True, "takes_text": False, "template_tokens": 9, "reasoning": 10}
    with TextServer(**habits) as server:
        settings = settings_for(server, "Server", "performance", api=Api.CHAT, target_qps=20, test_query_count=16)
        server.wait_s = 0.1
        record = run(settings, tmp_path / "run")
    result = read_performance(tmp_path / "run")
    # The reasoning takes 10 x 100 ms: a first token of the answer itself would come after all of it.
    assert 100 < result.figures["ttft_mean"] < 700
    assert record.client.least_more == record.client.most_more == 9
    assert not any("chat template" in doubt for doubt in client_doubts(record))
    assert record.client.failed == 0


def test_text_of_a_reasoning_channel_is_in_the_accuracy_log(tmp_path, settings_for):
    with TextServer(chat=True, takes_text=False, reasoning=4, reasoning_name="reasoning") as server:
        run(settings_for(server, "Offline", api=Api.CHAT), tmp_path / "run")
    assert logged(tmp_path / "run") == {index: expected(index) for index in range(SAMPLES)}


@pytest.mark.parametrize(
    ("habits", "api"), [({"chat": True, "takes_text": False}, Api.CHAT), ({"takes_ids": False}, Api.COMPLETIONS)]
)
def test_a_server_of_texts_gets_the_whole_prompt_and_not_the_article_alone(habits, api, tmp_path, settings_for, words):
    rows = json.loads(Path(words[0].path).read_text())
    made = [{**row, "input": row["input"].partition(" ")[2]} for row in rows]
    path = tmp_path / "articles.json"
    path.write_text(json.dumps(made))
    with TextServer(**habits) as server:
        settings = settings_for(server, "Offline", api=api)
        before = len(server.bodies)
        run(replace(settings, dataset=replace(words[0], path=str(path), sha256=sha256_of(path))), tmp_path / "run")
    asked = [body.get("prompt") or body["messages"][0]["content"] for body in server.bodies[before:]]
    assert {row["input"] for row in rows} <= set(asked)
    assert not {row["input"] for row in made} & set(asked) - {row["input"] for row in rows}


def test_an_answer_without_text_has_a_first_token_at_its_end(tmp_path, settings_for, monkeypatch):
    with TextServer(extra=lambda count: 0 if count else 1) as server:
        settings = settings_for(server, "Server", "performance", target_qps=200)
        monkeypatch.setattr(
            "text_server.answer_words",
            lambda prompt, most: [] if prompt == prompt_text(7) else answer_words(prompt, most),
        )
        record = run(settings, tmp_path / "run")
    assert record.client.failed == 0
    assert read_performance(tmp_path / "run").errors == 0


def test_a_fault_of_the_server_fails_the_run(tmp_path, settings_for):
    with TextServer() as server:
        settings = settings_for(server, "Server")
        server.error_event = True
        with pytest.raises(RunFailed, match="requests of the") as caught:
            run(settings, tmp_path / "run")
    assert "the model died" in caught.value.cause


def test_some_failures_are_asked_again(tmp_path, settings_for):
    with TextServer() as server:
        settings = settings_for(server, "Offline")
        server.fails = lambda number: number % 10 == 3
        record = run(settings, tmp_path / "run")
    assert record.client.retries > 0
    assert logged(tmp_path / "run") == {index: expected(index) for index in range(SAMPLES)}


def test_a_prompt_whose_text_is_read_otherwise_is_counted(tmp_path, settings_for, words):
    dataset, _ = words
    rows = json.loads(Path(dataset.path).read_text())
    rows[3] |= {"input": "not in the vocabulary", "tok_input": [5, 6, 7]}
    rows[4] |= {"input": "", "tok_input": tokenizer().encode(prompt_text(4)).ids}
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps(rows))
    with TextServer() as server:
        settings = replace(
            settings_for(server, "Offline"), dataset=replace(dataset, path=str(path), sha256=sha256_of(path))
        )
        record = run(settings, tmp_path / "run")
    assert record.client.text.prompts_changed == 1
    assert logged(tmp_path / "run")[4] == expected(4)


def test_a_chunk_every_so_many_tokens_cannot_be_had_of_such_a_server(settings_for):
    from cm4vllm.loadgen.settings import run_settings
    from cm4vllm.loadgen.user_conf import user_conf
    from cm4vllm.rules import ExecutionMode

    with TextServer() as server:
        made = settings_for(server, "Server")
    conf = user_conf(made.terms, ExecutionMode.TEST, target_qps=10, dataset_samples=SAMPLES)
    given = {"model": made.model, "dataset": made.dataset, "server": made.server}
    assert run_settings(conf, **given).stream_interval == 1
    with pytest.raises(UsageError, match="stream_interval=16"):
        run_settings(conf, stream_interval=16, **given)


def test_a_model_without_a_tokenizer_ends_the_run_before_it_begins(tmp_path, settings_for):
    with TextServer() as server:
        settings = settings_for(server, "Offline")
        asked = len(server.bodies)
        with pytest.raises(ModelError, match="without the tokenizer"):
            run(replace(settings, model=replace(settings.model, path=str(tmp_path))), tmp_path / "run")
        assert len(server.bodies) == asked


def test_the_self_check_reads_text_and_nothing_stands_in_loadgens_logs_for_tokens_that_are_not_known(
    tmp_path, settings_for
):
    with TextServer() as server:
        record = run(replace(settings_for(server, "Server"), self_check=True), tmp_path / "run")
    assert record.client.self_check.capacity_qps > 0
    entries = json.loads((tmp_path / "run" / ACCURACY_LOG).read_text())
    assert {entry.get("token_data", "") for entry in entries} == {""}
    assert all(len(entry["data"]) == 8 * entry["token_count"] for entry in entries)
    assert 'is_error": true' not in (tmp_path / "run" / DETAIL_LOG).read_text()


# --- the comparison by itself ----------------------------------------------------------------------------------------


def texts(folder, *, every=False, usage=True):
    file = str(save_model(folder) / "tokenizer.json")
    return Texts(TextSettings(dialect=Dialect(prompts=Prompts.TEXT, usage=usage), tokenizer=file, every=every))


def answer(words, tokens, reason="stop"):
    text = "".join(f" {word}" for word in WORDS[2 : 2 + words])
    return TextAnswer(text, reason, Stated(prompt_tokens=5, tokens=tokens))


@pytest.mark.parametrize(
    ("tokens", "reason", "apart"),
    [(10, "stop", 0), (11, "stop", 0), (12, "stop", 1), (9, "stop", 1), (11, "length", 1), (10, "length", 0)],
)
def test_the_token_that_ends_an_answer_may_be_counted_or_not(tmp_path, tokens, reason, apart):
    counted = texts(tmp_path, every=True)
    assert counted.tokens_of(answer(10, tokens, reason)) == array("i", tokenizer().encode(answer(10, 0).text).ids)
    more = apart if tokens > 10 else min(0, tokens - 10)
    assert counted.counts() == TextCounts(
        answers=1, server_tokens=tokens, tokenizer_tokens=10, apart=apart, more={more: 1}
    )


def test_a_performance_run_keeps_a_sample_of_bounded_size_and_every_answer_has_its_chance(tmp_path, monkeypatch):
    monkeypatch.setattr("cm4vllm.loadgen.client.text_tokens._KEPT", 100)
    counted = texts(tmp_path)
    for number in range(2000):
        assert counted.tokens_of(answer(10, 10 + (number >= 1000), "length")) == 10 + (number >= 1000)
    counts = counted.counts()
    assert counts.answers == 100
    assert 30 < counts.apart < 70  # about half of the sample is of the second half
    monkeypatch.setattr("cm4vllm.loadgen.client.text_tokens._KEPT_CHARACTERS", 500)
    long = texts(tmp_path / "long")
    for _ in range(100):
        long.tokens_of(answer(10, 10))
    assert 0 < long.counts().answers < 10


def test_without_usage_the_tokenizer_counts_each_answer(tmp_path):
    counted = texts(tmp_path, usage=False)
    assert counted.tokens_of(answer(7, -1)) == 7
    with pytest.raises(AnswerError, match="no text"):
        counted.tokens_of(answer(0, -1))
    with pytest.raises(AnswerError, match="no tokens"):
        texts(tmp_path / "counted").tokens_of(answer(0, 0))


@pytest.mark.parametrize(
    ("usage", "tokens", "logged_tokens"), [(True, 1, 1), (True, 0, 1), (False, -1, 1), (True, 3, 3)]
)
def test_an_empty_answer_of_an_accuracy_run_is_logged_as_one(tmp_path, usage, tokens, logged_tokens):
    encoded = texts(tmp_path, every=True, usage=usage).tokens_of(answer(0, tokens))
    assert (encoded.data, len(encoded)) == (b"", logged_tokens)


@pytest.mark.parametrize("format_tokens", [1, 4, 16])
def test_a_constant_few_tokens_more_in_each_answer_are_no_other_tokenizer(tmp_path, format_tokens):
    counted = texts(tmp_path, every=True)
    for words in range(5, 50):
        counted.tokens_of(answer(words, words + format_tokens, "length"))
    counts = counted.counts()
    assert (counts.format_tokens, counts.difference) == (format_tokens, 0)
    counted.tokens_of(answer(10, 10 + 3 * format_tokens, "length"))
    assert counted.counts().difference > 0


@pytest.mark.parametrize(
    "odd",
    [
        [answer(0, 1)],
        [answer(40, 40, "length")],
        [answer(0, 0), answer(40, 36, "length"), answer(40, 45, "length")],
        [answer(40, 80, "length")],
    ],
    ids=["an empty one", "equal counts", "fewer and more", "many more"],
)
@pytest.mark.parametrize("format_tokens", [4, 16])
def test_a_few_odd_answers_hide_no_constant(tmp_path, odd, format_tokens):
    counted = texts(tmp_path, every=True)
    for each in [*odd, *[answer(40, 40 + format_tokens, "length")] * 255]:
        counted.tokens_of(each)
    counts = counted.counts()
    assert counts.format_tokens == format_tokens
    apart = sum(
        abs(each.stated.tokens - len(each.text.split()) - (each == answer(0, 1)) - format_tokens) for each in odd
    )
    assert counts.difference == pytest.approx(apart / counts.server_tokens)
    assert counts.difference < 0.02


def test_answers_of_which_half_has_a_constant_have_none(tmp_path):
    counted = texts(tmp_path, every=True)
    for number in range(100):
        counted.tokens_of(answer(40, 40 + 4 * (number % 2), "length"))
    assert counted.counts().difference > 0.02


def test_the_least_of_an_earlier_version_is_its_constant():
    old = TextCounts(answers=10, server_tokens=440, tokenizer_tokens=400, apart=45, least_more=4)
    assert (old.format_tokens, old.difference) == (4, 5 / 440)
    assert replace(old, least_more=17).difference == 45 / 440


def test_the_counts_of_several_workers_are_added_up():
    counts = TextCounts(answers=1, server_tokens=2, tokenizer_tokens=3, apart=1, more={5: 1})
    none = TextCounts(answers=0, server_tokens=0, tokenizer_tokens=0, apart=0)
    other = replace(counts, more={3: 1}, unsent="x")
    assert added_up([counts, None, none, other, other], prompts_changed=2) == TextCounts(
        answers=3, server_tokens=6, tokenizer_tokens=9, apart=3, more={3: 2, 5: 1}, unsent="x", prompts_changed=2
    )
    assert added_up([None], prompts_changed=2) is None


# --- tokenizers that were saved with padding or truncation, as libraries leave them in tokenizer.json after a call


SOURCES = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "save",
    [
        lambda saved: saved.enable_padding(length=64),
        lambda saved: saved.enable_padding(direction="left", pad_to_multiple_of=8),
        lambda saved: saved.enable_truncation(8),
        lambda saved: (saved.enable_truncation(110, stride=2, strategy="only_first"), saved.enable_padding(length=110)),
    ],
)
def test_what_was_saved_with_a_tokenizer_changes_no_ids(tmp_path, save):
    path = save_model(tmp_path) / "tokenizer.json"
    saved = Tokenizer.from_file(str(path))
    save(saved)
    saved.save(str(path))
    for text in map(prompt_text, range(SAMPLES)):
        assert read_tokenizer(path).encode(text).ids == tokenizer().encode(text).ids


@pytest.mark.parametrize("scenario", ["Offline", "Server"])
def test_the_tokens_of_a_server_that_counts_none_are_those_of_its_text(tmp_path, settings_for, scenario):
    with TextServer(counts=False) as server:
        record = run(settings_for(server, scenario, "performance"), tmp_path / "run")
    mean = sum(len(expected(index)) for index in range(SAMPLES)) / SAMPLES
    assert record.client.completion_tokens / record.client.completed == mean
    figures = read_performance(tmp_path / "run").figures
    if scenario == "Offline":
        assert figures["tokens_per_sample"] == pytest.approx(mean, rel=1e-3)
    else:
        assert figures["tpot_mean"] > 0


def test_a_tokenizer_is_opened_in_one_place_only():
    opened = {
        str(path.relative_to(SOURCES))
        for folder in ("src", "script", "automation", "benchmarks")
        for path in (SOURCES / folder).rglob("*.py")
        if re.search(r"\bTokenizer\.from_(file|str|buffer|pretrained)", path.read_text(encoding="utf-8"))
    }
    assert opened == {"src/cm4vllm/assets/tokenizer_file.py"}
