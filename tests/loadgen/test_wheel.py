"""The LoadGen version of each round."""

import pytest

from cm4vllm.common.errors import InstallError, UsageError
from cm4vllm.loadgen import wheel
from cm4vllm.loadgen.wheel import LoadGenSettings, provide, require_seeds, usable_wheel
from cm4vllm.rules import Mode, Scenario, terms

ROUND = LoadGenSettings(round="v6.1")


def test_the_loadgen_of_the_running_python_is_used_when_it_is_of_the_round(tmp_path):
    provided = provide(ROUND, tmp_path)
    assert provided.version in ("6.0.16", "6.0.17")
    assert provided.pythonpath == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("present", "fits"),
    [("6.0.15", False), ("6.0.16", True), ("6.0.17", True), ("6.0.18", False), ("6.1.16", False), (None, False)],
)
def test_the_round_decides_which_versions_will_do(tmp_path, monkeypatch, capsys, present, fits):
    monkeypatch.setattr(wheel, "_present", lambda: present)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    if fits:
        assert provide(ROUND, tmp_path).pythonpath == ""
    else:
        with pytest.raises(InstallError, match="mlcommons-loadgen==6.0.17 cannot be installed") as failure:
            provide(ROUND, tmp_path)
        assert "6.0.17" in failure.value.cause
        assert "done" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "installed"),
    [
        ({}, "6.0.17"),
        ({"version": "6.0.16"}, "6.0.16"),
        ({"minimum": "6.0.1"}, "6.0.17"),
        ({"maximum": "6.0.16"}, "6.0.16"),
        ({"minimum": "6.0.16", "maximum": "7"}, "6.0.17"),
    ],
)
def test_a_version_of_the_round_that_is_asked_for_is_installed(asked, installed):
    assert usable_wheel(LoadGenSettings(round="v6.1", **asked)).wheel == installed


@pytest.mark.parametrize("asked", [{"version": "6.0.15"}, {"version": "6.0.18"}, {"minimum": "7"}, {"maximum": "5.1"}])
def test_a_version_of_another_round_is_refused(tmp_path, monkeypatch, asked):
    monkeypatch.setattr(wheel, "run", lambda *_, **__: pytest.fail("something is installed"))
    with pytest.raises(
        UsageError, match=f"no LoadGen of round v6.1 is version.*={next(iter(asked.values()))}"
    ) as error:
        provide(LoadGenSettings(round="v6.1", **asked), tmp_path)
    assert error.value.cause == "the versions from 6.0.16 to 6.0.17 have the seeds of this round"


def test_a_loadgen_with_the_seeds_of_another_round_measures_nothing():
    def require(round_name, version):
        require_seeds(terms(round_name, "llama2-70b-99.9", Scenario.OFFLINE, Mode.PERFORMANCE), version)

    for round_name, version in (("v6.1", "6.0.17"), ("v6.0", "6.0.5"), ("v4.1", "4.1")):
        require(round_name, version)
    with pytest.raises(InstallError, match="LoadGen 6.0.15 has other seeds than those of round v6.1") as error:
        require("v6.1", "6.0.15")
    assert "get,mlperf,inference,loadgen,_r6.1" in error.value.remedy


def test_a_loadgen_that_does_not_load_is_refused(tmp_path, monkeypatch):
    (tmp_path / "mlperf_loadgen.py").write_text("raise ImportError('a library is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(InstallError, match="does not load") as failure:
        provide(ROUND, tmp_path)
    assert "a library is missing" in failure.value.cause
