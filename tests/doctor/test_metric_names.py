"""The metrics of vLLM that doctor names: those that a server's page or an installation's source lacks."""

from pathlib import Path

import msgspec
import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.doctor.machine_page import MachineSettings, report_machine
from cm4vllm.doctor.metric_names import metric_names
from cm4vllm.engine.cache.entries import cache_root
from cm4vllm.records.metrics import MetricsSample
from cm4vllm.serving.launch_settings import LaunchSettings
from cm4vllm.serving.probing import server_metrics
from loopback_server import Handler, LoopbackServer

PAGE = (Path(__file__).parents[1] / "serving/recorded/metrics-after.txt").read_text()
NAMES = {**server_metrics._GAUGES, **server_metrics._COUNTERS, **server_metrics._TIMINGS}


class Pages(LoopbackServer):
    """Serves one page at /metrics; none where it is empty."""

    page: str = ""

    def __enter__(self):
        class Page(Handler):
            def do_GET(self):
                page = self.server_of.page if self.path == "/metrics" else ""
                self.send(200 if page else 404, page.encode() or b"{}", "text/plain")

        return self.start(Page)


def lines(home, server=None):
    url = f"http://127.0.0.1:{server.port}" if server else ""
    return [str(names).replace(url or "-", "URL") for names in metric_names(LaunchSettings(api_server=url), home)]


def install(home, name, *registered, release="0.14.1"):
    folder = Path(cache_root(home)) / name
    sources = folder / "venv/lib/python3.11/site-packages/vllm/v1/metrics"
    sources.mkdir(parents=True)
    (sources / "loggers.py").write_text("\n".join(f'counter(name="{metric}")' for metric in registered))
    record = {"schema": 1, "python": "python", "device": "cpu", "packages": {"vllm": release}, "source": ""}
    (folder / "vllm.json").write_bytes(msgspec.json.encode(record))
    (folder / "_cm.json").write_text('{"alias": "install-vllm", "uid": "0", "tags": ["vllm"]}')
    return folder


def test_a_page_of_vllm_with_all_metrics_lacks_none(tmp_path):
    with Pages() as server:
        server.page = PAGE + "".join(f"# TYPE {name} counter\n" for name in NAMES.values())
        assert lines(tmp_path, server) == ["URL, by its /metrics: all"]


@pytest.mark.parametrize("name", NAMES.values())
def test_a_metric_that_a_page_lacks_is_named_with_its_field_and_the_effect(tmp_path, name):
    with Pages() as server:
        server.page = "".join(f"# HELP {other} text\n# TYPE {other} x\n" for other in NAMES.values() if other != name)
        (line,) = lines(tmp_path, server)
    field = next(field for field, metric in NAMES.items() if metric == name)
    lost = name in server_metrics._GAUGES.values()
    effect = "no metrics of it are recorded" if lost else "recorded as 0 or left out"
    assert line == f"URL, by its /metrics: without {name} ({field}): {effect}"


def test_what_is_said_to_be_lost_is_what_a_run_does_not_record():
    with pytest.raises(server_metrics._NoMetricsError):
        server_metrics._parse(PAGE.replace("vllm:num_requests_waiting", "vllm:other"), 0.0)
    read = server_metrics._parse(PAGE.replace("vllm:prompt_tokens_total", "vllm:other"), 0.0)
    assert read.sample == msgspec.structs.replace(server_metrics._parse(PAGE, 0.0).sample, prompt_tokens=0)
    assert isinstance(read.sample, MetricsSample)


def test_an_installed_vllm_is_read_by_its_source_once_for_each_release(tmp_path):
    known = [name.removesuffix("_total") for field, name in NAMES.items() if field != "cached_prompt_tokens"]
    for name in ("a", "b"):
        install(tmp_path, name, *known)
    install(tmp_path, "c", *NAMES.values(), release="0.32.0")
    (Path(cache_root(tmp_path)) / "unfinished").mkdir()
    assert lines(tmp_path) == [
        "vLLM 0.14.1, by its source: without vllm:prompt_tokens_cached_total (cached_prompt_tokens): "
        "recorded as 0 or left out",
        "vLLM 0.32.0, by its source: all",
    ]


def test_a_server_without_such_a_page_and_a_spoiled_record_are_said(tmp_path):
    (install(tmp_path, "a", *NAMES.values()) / "vllm.json").write_text("[")
    with Pages() as server:
        page, source = lines(tmp_path, server)
    assert page.startswith("URL, by its /metrics: ") and "HTTP 404" in page
    assert source.endswith("by its source: all") and "vllm.json" in source


def test_the_page_has_the_metrics_and_refuses_an_address_that_is_none(tmp_path, capsys):
    report = report_machine(MachineSettings(), tmp_path, [])
    assert report["metrics"] == []
    assert "no vLLM is installed, and no server given with --api_server" in capsys.readouterr().out
    install(tmp_path, "a", *NAMES.values())
    assert report_machine(MachineSettings(), tmp_path, [])["metrics"][0]["vllm"] == "vLLM 0.14.1"
    assert "Metrics of vLLM that a run reads\n  vLLM 0.14.1, by its source: all\n" in capsys.readouterr().out
    with pytest.raises(UsageError):
        report_machine(MachineSettings(servers=LaunchSettings(api_server="http://")), tmp_path, [])
