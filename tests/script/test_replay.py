"""A rehearsal on the real vLLM, made again from its capsule, and compared with it."""

import pytest

from cm4vllm.common.errors import ResultsDiffer

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.xdist_group("vllm-1")]

FIRST_START_S = 900


def test_a_replayed_rehearsal_is_confirmed_and_one_with_another_temperature_is_not(cm):
    flags = ("--search=max-num-seqs:64..128", "--search_minutes=2", "--test_query_count=64", "--run_checker=no")
    first = cm.main_job(
        "--output_dir=results", "--scenario=Offline", *flags, tags=",_vllm", timeout_s=FIRST_START_S + 300
    )
    assert first.code == 0, first.output
    words = ("run", "script", "--tags=replay,mlperf", "--capsule=results/test/rerun.yaml", "--replay_dir=again")
    again = cm(*words, timeout_s=FIRST_START_S)
    assert again.code == 0, again.output
    assert "search over server settings" not in again.output
    assert "--max_num_seqs=" in again.output

    capsule = cm.cwd / "results/test/rerun.yaml"
    (cm.cwd / "warmer.yaml").write_text(capsule.read_text().replace("temperature: 0.0", "temperature: 0.1"))
    verify = ("run", "script", "--tags=verify,mlperf", "--other=again/test")
    assert cm(*verify, f"--capsule={capsule}").code == 0
    cm(*verify, "--capsule=warmer.yaml").refused_with(ResultsDiffer.exit_code, "temperature")
