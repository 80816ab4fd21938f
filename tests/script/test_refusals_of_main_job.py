"""Command lines that the main job refuses: the plan and the run with the same message."""

import pytest
from tests.script.main_job import JOB, asked, executed, planned

from cm4vllm.common.errors import CmError

#: A job with power whose power server does not answer.
POWER = {
    "power": "yes",
    "power_server": "127.0.0.1",
    "power_port": "1",
    "ntp_server": "127.0.0.1",
    "power_settings": "FILES/set.json",
    "power_wiring": "FILES/set.json",
}
#: Command lines that the run refuses: variations, flags, words of the message.
REFUSED = [
    ("_vllm", {"model": "llama9"}, "unknown model"),
    ("_vllm", {"model": "llama3-8b"}, "did you mean 'llama3.1-8b'"),
    ("_vllm,_r4.1", {}, "llama3.1-8b is not in round v4.1"),
    ("_vllm,_r4.1", {}, "llama2-70b-99"),
    ("_vllm,_r4.1", {"model": "gptj-99"}, "gptj-99 cannot be run yet"),
    ("_vllm,_r4.1", {"model": "gptj-99"}, "beam search"),
    ("_vllm", {"division": "closed", "execution_mode": "valid"}, "rule MODEL"),
    ("_vllm", {"division": "network"}, "rule SEPARATE"),
    ("_vllm", {"scenario": "Ofline"}, "Offline"),
    ("_vllm,_find-performance", {"scenario": "Offline"}, "finds no rate in this job"),
    ("_vllm", {"search": "max-num-sequences:1..8"}, "names no option of vLLM that can be searched"),
    ("_vllm", {"search": "max-num-seqs:64..8"}, "from high to low"),
    ("_vllm", {"search": "max-num-seqs:8..64", "max_num_seqs": "16"}, "which is given: --max_num_seqs=16"),
    ("_vllm", {"search": "max-num-seqs:8..64", "api_server": "http://127.0.0.1:1"}, "--search cannot be given"),
    ("_vllm", {"search": "max-num-seqs:8..64", "search_minutes": "0"}, "--search_minutes=0"),
    ("_vllm", {"search": "block-size:8..64", "rehearse": "2-core-cpu-tiny"}, "cannot be given with --rehearse"),
    ("_vllm", {"search_minutes": "5"}, "without --search"),
    ("_vllm,_accuracy-only", {"find_target_qps": "yes"}, "finds no rate in this job"),
    ("_vllm", {"execution_mode": "vaild"}, "did you mean 'valid'"),
    ("_vllm", {"device": "tpu"}, "--device=tpu"),
    ("_vllm", {"category": "edge"}, "--category=edge"),
    ("_vllm", {"singlestream_target_latency": "1e-9"}, "at least 0.001"),
    ("_vllm", {"implementation": "nvidia"}, "--implementation=nvidia"),
    ("_vllm", {"server_target_qps": "fast"}, "--server_target_qps='fast'"),
    ("_vllm", {"server_target_qps": "-1"}, "--server_target_qps=-1"),
    ("_vllm", {"submitter": "Red Hat"}, "--submitter"),
    ("_vllm", {"quantize": "_int9"}, "--quantize=_int9"),
    ("_vllm", {"quantize": "int8,fp8"}, "names 2 schemes"),
    ("_vllm", {"published": "h100"}, "--published=h100"),
    ("_vllm", {"api": "fast"}, "--api='fast'"),
    ("_vllm", {"api_server": "http://127.0.0.1:1", "replicas": "2"}, "--replicas"),
    ("_vllm", {"quantize": "_int8", "api_server": "http://127.0.0.1:1"}, "--quantize"),
    ("_vllm", {"api_server": "http://127.0.0.1:many"}, "is not the address of a server"),
    ("_vllm", {"vllm_model_name": "a/b/c"}, "is not the name of a hub's model"),
    ("_vllm", {"vllm_model_name": "FILES"}, "config.json"),
    ("_vllm", {"vllm_model_name": "/nowhere/model"}, "/nowhere/model"),
    ("_vllm", {"vllm_model_name": "FILES/pointer-tokenizer.json"}, "git lfs pull"),
    ("_vllm", {"vllm_model_name": "FILES/pointer-config.json"}, "pointers of git-lfs"),
    ("_vllm", {"vllm_model_name": "FILES/pointer-model.safetensors"}, "pointers of git-lfs"),
    ("_vllm,_path./nowhere", {}, "/nowhere"),
    ("_vllm,_dummy", {"execution_mode": "valid"}, "random weights"),
    ("_vllm", {"rehearse": "4xh100-llama2-70b-fp8", "execution_mode": "valid"}, "--rehearse"),
    ("_vllm,_mlcommons.llama-3.1-8b-instruct-fp8", {}, "MLCommons does not host"),
    ("_vllm,_hf.hub/one", {"vllm_model_name": "hub/two"}, "two models are named"),
    ("_vllm", {"dataset_path": "FILES/cnn_eval.json"}, "no model"),
    ("_vllm", {"quantize": "_int8", "calibration_path": "FILES/set.json"}, "no model"),
    ("_vllm", {"dataset": "mine"}, "--dataset='mine'"),
    ("_vllm,_hf.hub/one", {"dataset_path": "FILES/set.json", "execution_mode": "valid"}, "has 5 samples"),
    ("_vllm,_hf.hub/one", {"dataset_path": "FILES/gone.json"}, "there is no dataset"),
    ("_vllm,_hf.hub/one", {"dataset_path": "FILES/gone.json"}, "--dataset_path"),
    ("_vllm,_hf.hub/one", {"dataset_path": "FILES/model/config.json"}, "config.json"),
    ("_vllm", {"system_file": "FILES/gone.yaml"}, "system.template.yaml"),
    ("_vllm", {"inference_src": "FILES/gone"}, "gone"),
    ("_vllm,_hf.hub/one", {"nltk_data": "FILES/gone.zip"}, "gone.zip"),
    ("_vllm", {"num_workers": "65"}, "--num_workers=65"),
    ("_vllm", {"max_in_flight": str(10**9)}, "may need"),
    ("_vllm", {"tp_size": "4096"}, "4096 cores"),
    ("_vllm", {"port": "99999"}, "port 99999 does not exist"),
    ("_vllm", {"port": "many"}, "--port='many'"),
    ("_vllm", {"preset": "fastest"}, "fastest"),
    ("_vllm", {"extra_args": "--enable-prefix-caching"}, "--enable-prefix-caching"),
    ("_vllm", {"output_dir": "/proc/results"}, "/proc/results"),
    ("_vllm", {"output_dir": "FILES/set.json/results"}, "is a file"),
    ("_vllm", {"output_dir": f"/tmp/{'a' * 300}"}, "File name too long"),
    ("_vllm", {"output_dir": "~no-such-user/results"}, "home folder"),
    ("_vllm", {"output_dir": "FILES/locked"}, ".lock there: Is a directory"),
    ("_vllm", {"submitter": "a" * 300}, "100 at most"),
    ("_vllm", {"submitter": "-x"}, "first a letter"),
    ("_vllm", {"hw_name": "a" * 300}, "name is too long"),
    ("_vllm", {"system_file": "FILES/pipe"}, "a pipe"),
    ("_vllm,_hf.hub/one", {"nltk_data": "FILES/pipe"}, "a pipe"),
    ("_vllm", {"api_server": "https://127.0.0.1:1", "api_server_ca": "FILES/gone.pem"}, "gone.pem"),
    ("_vllm", {"api_server": "https://127.0.0.1:1", "api_server_ca": "FILES/pipe"}, "a pipe"),
    ("_vllm", {"api_server": "http://two words:1"}, "no name with spaces"),
    ("_vllm", {"api_server": "http://127.0.0.1:0"}, "no port 0"),
    ("_vllm", {"replicas": str(10**9)}, "need 1000000000 cores"),
    ("_vllm", {"replicas": str(10**30)}, "2,147,483,647 at most"),
    ("_vllm", {"test_query_count": str(10**30)}, "10,000,000 at most"),
    ("_vllm", {"server_target_qps": "1e300"}, "1,000,000 at most"),
    ("_vllm", {"max_in_flight": str(10**30)}, "--max_in_flight"),
    ("_vllm", {"max_model_len": "100"}, "128 tokens are generated"),
    ("_vllm", {"ready_timeout": "nan"}, "--ready_timeout=nan"),
    ("_vllm", {"gpu_memory_utilization": "7"}, "--gpu_memory_utilization=7"),
    ("_vllm", {"max_num_seqs": "-4"}, "--max_num_seqs=-4"),
    ("_vllm", {"kv_cache_space": "-4"}, "--kv_cache_space=-4"),
    ("_vllm", {"served_model_name": "-x"}, "-x"),
    ("_vllm", {"adr": {"ml-model": {"tags": "_path./nowhere"}}}, "/nowhere"),
    ("_vllm", {"adr": {"ml-model": {"tags": "_tiny,_hf.a/b"}}}, "--adr.ml-model.tags=_tiny,_hf.a/b names 2 sources"),
    ("_vllm,_hf.a/b", {"adr": {"dataset": {"tags": "_path.FILES/gone.json"}}}, "there is no dataset"),
    ("_vllm", {"adr": {"vllm-server": {"max_num_seqs": "-4"}}}, "--max_num_seqs=-4"),
    ("_vllm", {"adr": {"vllm-server": {"env": {"CM_VLLM_SERVER_TP_SIZE": "4096"}}}}, "4096 cores"),
    ("_vllm", {"adr": {"vllm-server": {"output_dir": "/x"}}}, "--adr.vllm-server.output_dir cannot be given"),
    ("_vllm", {"adr": {"loadgen": {"tags": "_r5.1"}}}, "--adr.loadgen.tags=_r5.1"),
    ("_vllm", {"power": "maybe"}, "--power='maybe'"),
    ("_vllm", {"power": "yes"}, "a power session needs --power_server"),
    ("_vllm", {"power": "yes", "power_server": "127.0.0.1"}, "a power session needs --ntp_server"),
    ("_vllm", {**POWER, "power_settings": ""}, "the settings of the measured system must be stated"),
    ("_vllm", {**POWER, "power_wiring": ""}, "the analyzer's wiring must be stated"),
    ("_vllm", {**POWER, "power_wiring": "FILES/gone.md"}, "gone.md"),
    ("_vllm", {**POWER, "power_supplies": "FILES/set.json"}, "states no power supply"),
    ("_vllm,_r6.0", {**POWER, "power_supplies": "FILES/set.json"}, "v6.0 has no file of power supplies"),
    ("_vllm", {**POWER, "num_analyzers": "2"}, "2 analyzers are not supported"),
    ("_vllm", POWER, "no power server answers on 127.0.0.1 port 1"),
]


@pytest.mark.parametrize(("variations", "flags", "words"), REFUSED)
def test_the_plan_refuses_what_the_run_refuses_with_the_same_message(
    tmp_path, monkeypatch, files, variations, flags, words
):
    request = asked(tmp_path, variations, flags, files)
    with pytest.raises(CmError) as of_plan:
        planned(tmp_path, request)
    assert words in str(of_plan.value)
    with pytest.raises(CmError) as of_run:
        executed(monkeypatch, request)
    for typed in flags:  # the engine names the flag in the error of a hook that runs
        if key := JOB.input_mapping.get(typed):
            of_run.value.reworded(f"{key}=", f"--{typed}=")
    assert str(of_run.value) == str(of_plan.value)
    assert type(of_run.value) is type(of_plan.value)
    assert not (tmp_path / "out").exists()
