"""qwen3-vl from the command line: the whole job on the tiny model and the real vLLM, and what a plan refuses."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet
import pytest
from tests.script.by_hand import caching_server, real_vllm, server_by_hand
from tests.script.main_job import refused

from cm4vllm.assets.samples.prompt_tokens import ChatTokens
from cm4vllm.assets.tiny import product_pictures
from cm4vllm.assets.tiny.tiny_dataset import EVALUATION_SEED
from cm4vllm.common.errors import DatasetError, UsageError
from cm4vllm.records.server import Api
from cm4vllm.rules import chat_prompts
from cm4vllm.serving.probing.media_apis import picture_chat
from cm4vllm.serving.probing.server_requests import Site, ask

#: vLLM's installation included, where nothing of it is there yet.
FIRST_START_S = 1200
SAMPLES = 48289
BENCHMARK = "qwen3-vl-235b-a22b"


def catalogue(folder):
    """Write the stand-in's products as the product catalogue, with a white picture in the place of each."""
    folder.mkdir()
    made = product_pictures.products(SAMPLES, EVALUATION_SEED, evaluation=True)
    blank = {size: product_pictures.png(product_pictures.blank(size)) for size in product_pictures.SIZES}
    rows = [
        {
            "product_title": product.title,
            "product_description": product.description,
            "product_image": {"bytes": blank[product.size], "path": None},
            "potential_product_categories": product.categories,
            "ground_truth_category": product.category,
        }
        for product in made
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "train-00000-of-00001.parquet")
    return folder


def job(cm, *flags, tags=",_r6.0"):
    return cm.main_job(f"--model={BENCHMARK}", "--submitter=Tester", *flags, tags=tags, timeout_s=FIRST_START_S)


def f1(folder, scenario="Offline"):
    scores = json.loads(next(Path(folder).glob(f"test/runs/*/*/{scenario}/accuracy/accuracy.json")).read_text())
    return scores["values"]["f1"]


@real_vllm
def test_the_whole_job_and_the_same_with_white_pictures(cm):
    done = job(cm, "--output_dir=results")
    assert done.code == 0, done.output
    out = cm.cwd / "results"
    assert f1(out) >= 0.8 and f1(out, "Server") >= 0.8
    run = json.loads(next(out.glob("test/runs/*/*/Server/performance/run.json")).read_text())
    words = run["settings"]["server"]["argv"]
    assert words[words.index("--mm-processor-cache-gb") + 1] == "0"
    assert "--no-enable-prefix-caching" in words
    assert run["server_metrics"]["media_cache_hits"] == 0
    counts = run["client"]["text"]
    assert counts["server_prompt_tokens"] == counts["prompt_tokens"] > 0
    assert "target_latency = 12000" in next(out.glob("test/runs/*/*/Server/performance/mlperf.conf")).read_text()
    white = job(
        cm,
        f"--dataset_path={catalogue(cm.cwd / 'white')}",
        "--output_dir=white-results",
        "--scenario=Offline",
        tags=",_r6.0,_tiny,_accuracy-only",
    )
    assert white.code == 0, white.output
    assert f1(cm.cwd / "white-results") <= 0.6


#: Below the least pixels of the stand-in's processor, at its grid and beside it, long, wide, and above its most pixels.
SMALL, LARGE = [(20, 20), (64, 64), (100, 70), (97, 193)], [(512, 512), (530, 500), (640, 480), (2048, 1365)]
SIZES = [*SMALL, (31, 900), (1500, 20), *LARGE]


@pytest.fixture(scope="module")
def by_hand(start_cm):
    """Yield the record of a server of the stand-in that run,vllm-server has started."""
    with server_by_hand(start_cm(), BENCHMARK, FIRST_START_S) as record:
        yield record


@real_vllm
def test_the_server_counts_prompts_with_pictures_of_ten_sizes_as_we_do(by_hand):
    prompt = next(prompt for prompt in chat_prompts() if prompt.name == "v6.0")
    product = next(product_pictures.products(1, EVALUATION_SEED, evaluation=True))
    row = {"title": product.title, "description": product.description, "categories": product.categories}
    system, user = prompt.messages(row)
    counted = {}
    folder = Path(by_hand.argv[by_hand.argv.index("serve") + 1])
    expected = ChatTokens(folder).count([(system, user, size) for size in SIZES])
    for size in SIZES:
        data = product_pictures.png(product_pictures.blank(size))
        body = picture_chat(by_hand.model_name, user, data, "PNG", {"max_tokens": 1}, system=system)
        status, answer = ask(Site(by_hand.endpoint), "POST", Api.PICTURES.path, body, 120)
        assert status == 200, (size, answer)
        counted[size] = json.loads(answer)["usage"]["prompt_tokens"]
    assert counted == dict(zip(SIZES, expected, strict=True))
    assert len(set(counted.values())) > 5, counted


@real_vllm
def test_repeated_pictures_out_of_a_cache_make_a_result_invalid(cm, by_hand, tmp_path):
    flags = ("--scenario=Offline", "--output_dir=results", "--max_test_duration=6", "--run_checker=no")
    with caching_server(by_hand, tmp_path / "server.log", FIRST_START_S) as endpoint:
        done = job(cm, f"--api_server={endpoint}", *flags, tags=",_r6.0,_performance-only")
    folder = next((cm.cwd / "results").glob("test/runs/*/*/Offline/performance"))
    assert json.loads((folder / "run.json").read_text())["server_metrics"]["media_cache_hits"] > 0
    assert "Offline is INVALID" in done.output and "vllm:mm_cache_hits_total" in done.output, done.output


def test_the_plan_refuses_what_cannot_be_measured(tmp_path):
    (tmp_path / "empty").mkdir()
    repository = "Shopify/product-catalogue at d5c517c509f5aca99053897ef1de797d6d7e5aa5"
    small = "48,289 samples in every performance run, and its dataset has 8,000"
    own = {"vllm_model_name": "Qwen/Qwen3-VL-235B-A22B-Instruct", "machine": "8xH200"}
    empty = {"dataset_path": str(tmp_path / "empty")}
    others = ["cm4vllm-tiny cannot stand for the model of", "cm4vllm-tiny-vision"]
    for error, words, variations, flags in (
        (UsageError, [small, "MLPerf Endpoints"], "_vllm", {"scenario": "Interactive"}),
        (DatasetError, [repository], "_r6.0", own),
        (DatasetError, ["not the product catalogue"], "_r6.0,_tiny", empty),
        (UsageError, others, "_r6.0", {"vllm_model_name": "cm4vllm-tiny"}),
    ):
        refused(error, words, tmp_path, variations, model=BENCHMARK, submitter="Tester", **flags)


def test_the_plan_of_the_stand_in_states_its_packages_and_the_size_of_its_dataset(cm):
    done = job(cm, "--plan")
    assert done.code == 0, done.output
    for word in ("get,vision-packages,_server", "get,ml-model,_tiny-vision", "the dataset of cm4vllm-tiny-vision"):
        assert word in done.output
