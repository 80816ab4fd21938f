"""The tiny models that are part of cm4vllm: whole, small, refused where they were changed, and made again."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cm4vllm.accuracy.product_catalogue import hierarchical_f1
from cm4vllm.accuracy.word_errors import word_error_rate
from cm4vllm.assets.models import ModelSettings, provide
from cm4vllm.assets.tiny import stand_ins
from cm4vllm.assets.tiny.stand_ins import MODELS, STAND_INS
from cm4vllm.common.errors import ModelError
from cm4vllm.records.assets import STAND_IN_SOURCE, ModelRecord

ROOT = Path(__file__).resolve().parents[2]
#: By variation: parameters, the least tokens of an answer, evaluation samples, and how far scores may be apart.
MODELS_AND_SCORES = {
    "tiny": (492_160, 2, 32, 0.04),
    "tiny-whisper": (257_472, 1, 48, 0.02),
    "tiny-vision": (518_272, 1, 48, 0.02),
}


@pytest.mark.parametrize("variation", STAND_INS)
def test_a_stand_in_is_copied_and_described(tmp_path, variation):
    stand_in = STAND_INS[variation]
    record = provide(ModelSettings(source=variation), tmp_path)
    assert (record.name, record.architecture) == (stand_in.name, stand_in.architecture)
    assert (record.source, record.is_stand_in) == (STAND_IN_SOURCE, True)
    assert (record.parameters, record.min_tokens, record.weight_data_types) == (
        *MODELS_AND_SCORES[variation][:2],
        "fp32",
    )
    assert Path(record.path) == tmp_path / stand_in.name


def test_all_files_have_digests_and_are_small_enough_to_be_part_of_the_package():
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=MODELS, check=True)
    listed = {line.split("  ", 1)[1] for line in (MODELS / "SHA256SUMS").read_text().splitlines()}
    assert listed == {f"{path.parent.name}/{path.name}" for path in MODELS.glob("*/*")}
    assert sum(path.stat().st_size for path in MODELS.rglob("*")) < 8_000_000


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\1")])
def test_files_that_are_not_those_of_cm4vllm_are_refused(tmp_path, monkeypatch, change):
    monkeypatch.setattr(stand_ins, "MODELS", shutil.copytree(MODELS, tmp_path / "models"))
    change(tmp_path / "models" / "cm4vllm-tiny" / "model.safetensors")
    with pytest.raises(ModelError, match="not the one that belongs to cm4vllm") as caught:
        provide(ModelSettings(source="tiny"), tmp_path)
    assert caught.value.cause.endswith(": cm4vllm-tiny/model.safetensors")
    assert not (tmp_path / "cm4vllm-tiny").exists()


def test_records_of_stand_ins_that_earlier_versions_trained_are_known():
    source = "trained here on made-up harbour logs (cm4vllm.assets.tiny.tiny_model)"
    assert ModelRecord(name="cm4vllm-tiny", path="", source=source, sha256="").is_stand_in


def scores(variation: str, pairs: list[tuple[str, str]]) -> float:
    said, wanted = zip(*pairs, strict=True)
    if variation == "tiny-whisper":
        return 1 - word_error_rate(said, wanted)
    if variation == "tiny-vision":
        return hierarchical_f1([(answer, json.loads(reference)["category"]) for answer, reference in pairs])
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1"])
    return sum(scorer.score(reference, answer)["rouge1"].fmeasure for answer, reference in pairs) / len(pairs)


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize("variation", STAND_INS)
def test_the_training_program_makes_a_model_with_the_same_score(vllm_python, tmp_path, variation):
    name, (*_, samples, apart) = STAND_INS[variation].name, MODELS_AND_SCORES[variation]
    words = [vllm_python, ROOT / "docs/tools/train_stand_in.py", name]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([*words, tmp_path], check=True, env=env)
    score = {}
    for folder in (MODELS / name, tmp_path):
        asked = [*words, folder, f"--answers={samples}"]
        printed = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True, env=env).stdout
        score[folder] = scores(variation, json.loads(printed.splitlines()[-1]))
    assert score[MODELS / name] > 0.85
    assert score[tmp_path] == pytest.approx(score[MODELS / name], abs=apart)
