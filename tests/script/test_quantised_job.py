"""The main job with a model that it quantises first, served by the real vLLM and scored."""

import json
import re
from pathlib import Path

import pytest

from cm4vllm.records.weights.model_size import read_architecture
from cm4vllm.serving.fit.layout import GIB, kv_cache_tokens

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.xdist_group("vllm-2")]

#: the installation of vLLM and llm-compressor included, where nothing of it is there yet.
FIRST_START_S = 1200


def test_int8_is_made_served_scored_and_described(cm):
    done = cm.main_job(
        "--quantize=int8", "--scenario=Offline", "--output_dir=results", "--submitter=Tester", timeout_s=FIRST_START_S
    )
    assert done.code == 0, done.output
    out = cm.cwd / "results" / "test"
    run = json.loads(next(out.glob("runs/*/cm4vllm-tiny-int8/Offline/performance/run.json")).read_text())
    scores = json.loads(next(out.glob("runs/*/*/Offline/accuracy/accuracy.json")).read_text())
    assert scores["values"]["rouge1"] > 80
    model = run["settings"]["model"]
    assert (model["weight_data_types"], model["quantization"]["scheme"]) == ("int8", "int8")
    home = out / "submission" / "open" / "Tester"
    measurements = json.loads(next(home.glob("results/*/*/Offline/measurements.json")).read_text())
    assert measurements["weight_data_types"] == "int8"
    assert measurements["starting_weights_filename"] == "cm4vllm-tiny/model.safetensors"
    assert "int8, symmetric, one scale per output channel" in (home / "documentation" / "calibration.md").read_text()
    # The advisor's arithmetic against this very server.
    log = (out / "server" / "server.log").read_text()
    reported = int(re.search(r"KV cache size: ([\d,]+) tokens", log)[1].replace(",", ""))
    config = json.loads((Path(model["path"]) / "config.json").read_text())
    assert kv_cache_tokens(read_architecture(config), "bf16", GIB) == pytest.approx(reported, rel=0.1)
    assert f"the KV cache holds {reported:,} tokens" in done.output
