"""Pages of sections: what others wrote stays, byte for byte."""

from builders import quantization_record
from cm4vllm.assets.quantization import KV_FP8, schemes
from cm4vllm.records.assets import ModelRecord
from cm4vllm.submission.submitter_pages import quantisation, with_notice
from cm4vllm.submission.tree_writer import heading_of, sections, with_section, without_scenario, without_section

PAGE = """# Example

```bash
## a comment, no heading
```

## One

text

### Part of one

## Two: Offline, Server

more
"""


def test_the_parts_put_together_are_the_page():
    parts = sections(PAGE)
    assert [name for name, _ in parts] == ["", "One", "Two: Offline, Server"]
    assert "".join(text for _, text in parts) == PAGE


def test_a_part_is_added_and_replaced_and_the_rest_stays():
    added = with_section(PAGE, "Three", "new")
    assert added == PAGE + "\n## Three\n\nnew\n"
    assert with_section(added, "Three", "new") == added
    again = with_section(added, "One", "other")
    assert again == added.replace("text\n\n### Part of one\n", "other\n")
    assert without_section(again, "Three") == PAGE.replace("text\n\n### Part of one\n", "other\n")
    assert with_section("", "One", "x") == "## One\n\nx\n"


def test_a_scenario_goes_out_of_the_heading_and_the_part_with_the_last():
    left = without_scenario(PAGE, "Two", "Offline")
    assert left == PAGE.replace("## Two: Offline, Server", f"## {heading_of('Two', ['Server'])}")
    assert without_scenario(left, "Two", "Server") == PAGE.partition("\n## Two")[0]
    assert without_scenario(PAGE, "One", "Offline") == PAGE


# --- calibration.md says what was done to the model, and nothing else


def model(made=None, **more):
    given = {"name": "m", "path": "/home/me/m", "source": "local folder /home/me/m", "sha256": "0" * 64, **more}
    return ModelRecord(quantization=made, **given)


def made(scheme, samples=0, **more):
    words = schemes()[scheme]
    return quantization_record(
        **{"scheme": scheme, "weights": words.weights, "activations": words.activations, "formula": words.formula},
        **{"kv_cache": KV_FP8, "tools": {"llmcompressor": "0.14.0.1"}, "calibration_dataset": "cal"},
        **{"calibration_sha256": "2" * 64, "calibration_samples": samples, "calibration_tokens": samples * 10, **more},
    )


def test_a_calibrated_scheme_names_its_samples_with_their_digest_and_one_without_claims_none():
    page = quantisation(model(made("fp8", 512)))
    said = "one static scale per tensor|first 512 samples (5120 tokens|llmcompressor 0.14.0.1|14 linear layers: q_proj"
    for words in (*said.split("|"), "1" * 64, "2" * 64, "lm_head", "448"):
        assert words in page
    page = quantisation(model(made("fp8-dynamic")))
    assert "No calibration samples" in page
    assert "2" * 64 not in page


def test_what_was_not_quantised_here_is_not_claimed_and_a_rehearsal_says_so():
    assert "Nothing was quantised" in quantisation(model(weight_data_types="bf16"))
    page = quantisation(model(weight_data_types="fp8"))
    assert "came quantised, to fp8" in page
    assert "/home/me" not in page
    assert "> **NOT A RESULT**" in with_notice(quantisation(model(weight_data_types="bf16")), "NOT A RESULT")
