"""The software section of a tree's README, in the form of published submissions."""

import json
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from cm4vllm.common.records import write_record
from cm4vllm.hardware.machine_facts import detect_machine
from cm4vllm.records.server import ServerRecord
from cm4vllm.records.software import FACTS_FILES, read_software
from cm4vllm.submission.campaign_software import detect_software, published_facts, scripts_that_ran

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data" / "neuralmagic-v4.1" / "open" / "NeuralMagic"
SCRIPT = {
    "script_uid": "863735b7db8c44fc",
    "script_alias": "detect-os",
    "script_tags": "detect,os",
    "script_variations": "",
    "version": "",
    "parent": "app-mlperf-inference-vllm,c0ffee",
}
APP = {**SCRIPT, "script_uid": "c0ffee", "script_alias": "app-mlperf-inference-vllm", "parent": "run-job,beef"}
MODEL = {**APP, "script_uid": "abc", "script_alias": "get-ml-model", "script_variations": "path./home/jdoe/model"}


@pytest.fixture
def out(tmp_path):
    write_record(tmp_path / "system" / "software.json", detect_software())
    write_record(tmp_path / "system" / "machine.json", detect_machine())
    return tmp_path


def test_versions_are_those_of_this_environment():
    software = detect_software()
    assert software.cm == metadata.version("cmind") and software.packages["cmind"] == software.cm
    assert software.python.split()[0] == platform.python_version()
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=True
    ).stdout
    assert {package["name"].lower(): package["version"] for package in json.loads(listed)} == {
        name.lower(): version for name, version in software.packages.items()
    }
    assert (software.server_python, software.server_packages) == ("", {})


def test_the_environment_of_a_server_of_ones_own_is_listed_whole(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    package = next((tmp_path / "venv/lib").glob("python3*/site-packages")) / "theirs-1.2.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.2\n")
    server = ServerRecord(
        endpoint="http://127.0.0.1:1",
        model_name="m",
        max_model_len=1,
        version="0.32.0",
        owned=True,
        argv=[str(tmp_path / "venv/bin/python"), "-m", "vllm"],
    )
    software = detect_software(server)
    assert software.server_python == platform.python_version()
    assert software.server_packages == {"theirs": "1.2"}
    theirs = ServerRecord(endpoint="http://127.0.0.1:1", model_name="m", max_model_len=1, version="0.32.0", owned=False)
    assert detect_software(theirs).server_packages == {}


def test_facts_have_the_published_form(out):
    facts = {name: json.loads(text) for name, text in published_facts(out).items()}
    assert set(facts) == set(FACTS_FILES) - {"cm-version-info.json"}
    assert facts["pip_freeze.json"]["pip_freeze"]["cmind"] == metadata.version("cmind")
    assert facts["os_info.json"]["CM_HOST_OS_KERNEL_VERSION"] == platform.release()
    assert facts["cpu_info.json"]["CM_HOST_CPU_ARCHITECTURE"] == platform.machine()
    folder = next(PUBLISHED.glob("measurements/4xH100*FP8*/*/server"), None)
    if folder is not None:
        for name, missing in (
            (
                "os_info.json",
                {
                    "CM_HOST_SYSTEM_NAME",
                    "+CM_HOST_OS_DEFAULT_LIBRARY_PATH",
                    "CM_HOST_OS_PACKAGE_MANAGER_INSTALL_CMD",
                    "CM_HOST_OS_PACKAGE_MANAGER_UPDATE_CMD",
                },
            ),
            (
                "cpu_info.json",
                {"CM_HOST_CPU_VENDOR_ID", "CM_HOST_CPU_FAMILY", "CM_HOST_CPU_MAX_MHZ", "CM_HOST_CPU_ON_LINE_CPUS_LIST"},
            ),
        ):
            assert set(json.loads((folder / name).read_text())) - set(facts[name]) <= missing
        assert set(json.loads((folder / "pip_freeze.json").read_text())) == {"pip_freeze"}


def test_what_nobody_recorded_is_left_out(tmp_path):
    assert published_facts(tmp_path) == {} and read_software(tmp_path) is None


def test_the_scripts_of_a_run_are_listed_under_what_asked_for_them():
    noted = [{"detect,os": SCRIPT}, {"get,ml-model,_path./home/jdoe/model": MODEL}, {"app,vllm": APP}]
    ((root, listed),) = scripts_that_ran(noted, "app-mlperf-inference-vllm").items()
    assert root == "run-job,beef"
    assert [next(iter(entry)) for entry in listed] == ["detect,os", "get,ml-model,_path.${GIVEN_PATH:?}", "app,vllm"]
    assert listed[0]["detect,os"] == SCRIPT
    assert "jdoe" not in json.dumps(listed)
    assert scripts_that_ran(noted[:1], "app-mlperf-inference-vllm") == {}
