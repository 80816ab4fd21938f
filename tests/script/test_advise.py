"""The fit advisor as a user calls it."""

from cm4vllm.common.errors import ModelError, UsageError


def advise(cm, *flags):
    return cm("run", "script", "--tags=advise,vllm-fit", "--quiet", *flags)


def test_a_layout_is_advised_for_a_model_that_is_not_here(cm):
    done = advise(
        cm,
        "--vllm_model_name=llama-2-70b-chat-fp8",
        "--gpus=4",
        "--gpu_memory=79.6",
        "--tp_size=4",
        "--gpu_memory_utilization=0.95",
        "--max_num_seqs=1024",
    )
    assert done.code == 0, done.output
    assert "--max-model-len 2048 --max-num-seqs 1024 --tensor-parallel-size 4" in done.output


def test_what_does_not_fit_is_refused_with_the_sum(cm):
    done = advise(cm, "--vllm_model_name=llama-2-70b-chat", "--gpus=2", "--gpu_memory=24")
    done.refused_with(ModelError.exit_code, "does not fit 2 x 24.0 GiB", "weights 64.24 GiB", "remedy")


def test_an_unknown_model_names_the_nearest(cm):
    done = advise(cm, "--vllm_model_name=llama-2-70b-chat-fp9")
    done.refused_with(UsageError.exit_code, "llama-2-70b-chat-fp8")
