"""Options that nobody may give, in every form in which vLLM 0.32.0's own parser takes them (it was asked)."""

import shlex
from pathlib import Path

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.records.vllm.options import stored_options
from cm4vllm.serving.options.arguments import ServerSettings, server_argv
from cm4vllm.serving.options.fixed_options import refuse_fixed, speculative_options

FORMS = [
    """-sc '{"method": "ngram"}'""",
    """-s '{"method": "ngram"}'""",
    "-sc.method ngram",
    "-sc.method=ngram",
    "--speculative-config.method ngram",
    "--speculative_config.method=ngram",
    """--speculative-c '{"method": "ngram"}'""",
    "--speculative-config.eagle_config.x+ 1",
    "--spec-method ngram",
    "--spec-meth ngram",
    "--spec_model=x",
    "--spec-tokens=3",
    "--enable-prefix-caching",
    "--mm-processor-cache-gb",
    "--mm_processor_cache_gb 4",
    "--mm-proc=4",
    "--enable_prefix_caching",
    "--enable-prefix-cach",
    "--enable_prefix_c",
    "--generation-config auto",
    "--gen auto",
    """--override-generation-config '{"temperature": 1}'""",
    "--override-generation-config.temperature 1",
    "--override-gen.temperature=1",
    "--api-key k",
    "--api_key=k",
    "--api-k k",
    "--config options.yaml",
    "--config=options.yaml",
    "--conf options.yaml",
    "--port 9",
    "--po 9",
    "--served_model_name x",
    "--served x",
    "--model x",
    "--logits-processors mine.Module",
    "--kv-transfer-config {}",
    "--kv_transfer_config.kv_connector=LMCacheConnectorV1",
    "--kv-offloading-size 8",
]


@pytest.mark.parametrize("extra", FORMS)
@pytest.mark.parametrize("before", ["", "--seed 3 "])
def test_no_form_of_a_fixed_option_is_taken(extra, before):
    with pytest.raises(UsageError, match="cannot be given in --extra_args") as caught:
        server_argv(Path("python"), ServerSettings(model="/m", name="n", extra=before + extra))
    assert caught.value.cause
    assert shlex.split(extra)[0].partition("=")[0] in caught.value.what


FIXED = {
    "--enable-prefix-caching",
    "--mm-processor-cache-gb",
    "--kv-transfer-config",
    "--kv-offloading-size",
    "--kv-offloading-backend",
    "--generation-config",
    "--override-generation-config",
    "--logits-processors",
    "--watermark-config",
    "--speculative-config",
    "-sc",
    "--spec-method",
    "--spec-model",
    "--spec-tokens",
    "--api-key",
    "--config",
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--uds",
}


def test_all_other_options_of_vllm_may_be_given():
    refused = set()
    for option in stored_options():
        try:
            refuse_fixed([option])
        except UsageError:
            refused.add(option)
    assert refused == FIXED


@pytest.mark.parametrize(
    "word", ["-", "--", "7", "ngram", "-1", "-tp", "--max-model-len", "--no-enable-prefix-caching"]
)
def test_other_words_are_no_fixed_option(word):
    refuse_fixed([word])
    assert speculative_options([word]) == []


@pytest.mark.parametrize("extra", ["--load-format dummy", "--load_format=dummy", "--load-f dummy"])
def test_random_weights_are_not_asked_for_past_their_notice(extra):
    with pytest.raises(UsageError, match="--load-format dummy cannot be given") as caught:
        server_argv(Path("python"), ServerSettings(model="/m", name="n", extra=extra))
    assert "_dummy" in caught.value.remedy
    refuse_fixed(["--load-format", "pt"])
