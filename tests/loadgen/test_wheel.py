"""Which LoadGen belongs to a round."""

import pytest
from msgspec.structs import replace

from cm4vllm.common.errors import InstallError
from cm4vllm.loadgen import wheel
from cm4vllm.loadgen.wheel import provide
from cm4vllm.rules import round_terms

ROUND = round_terms("v6.1")


def test_the_loadgen_of_the_running_python_is_used_when_it_is_of_the_round(tmp_path):
    found = provide(ROUND, tmp_path)
    assert found.version in ("6.0.16", "6.0.17")
    assert found.pythonpath == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("present", "fits"),
    [("6.0.15", False), ("6.0.16", True), ("6.0.17", True), ("6.0.18", False), ("6.1.16", False), (None, False)],
)
def test_the_round_decides_which_versions_will_do(tmp_path, monkeypatch, present, fits):
    monkeypatch.setattr(wheel, "_present", lambda: present)
    unobtainable = replace(ROUND, loadgen=replace(ROUND.loadgen, wheel="0.0.0"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    if fits:
        assert provide(unobtainable, tmp_path).pythonpath == ""
    else:
        with pytest.raises(InstallError, match="mlcommons-loadgen==0.0.0 cannot be installed") as failure:
            provide(unobtainable, tmp_path)
        assert "0.0.0" in failure.value.cause


def test_a_loadgen_that_does_not_load_is_refused(tmp_path, monkeypatch):
    (tmp_path / "mlperf_loadgen.py").write_text("raise ImportError('a library is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(InstallError, match="does not load") as failure:
        provide(ROUND, tmp_path)
    assert "a library is missing" in failure.value.cause
