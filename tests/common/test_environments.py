"""The messages of failed installations: each names the cause."""

import os
import subprocess
import sys
import time
import zipfile

import pytest

from cm4vllm.common.errors import InstallError
from cm4vllm.common.programs import environments
from cm4vllm.common.programs.environments import checked, make_environment, require_resolved, site_packages
from cm4vllm.common.programs.pip_settings import pip_settings
from cm4vllm.common.programs.processes import Completed

INDEX = "http://127.0.0.1:9"  # the discard port: no program listens there


def pip(*words):
    argv = [sys.executable, "-m", "pip", "install", "--isolated", "--no-cache-dir", "--dry-run", *words]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return Completed(tuple(argv), done.returncode, done.stdout)


def test_a_machine_without_a_network_is_named_as_the_cause():
    with pytest.raises(InstallError) as failed:
        checked(pip("--retries=1", f"--index-url={INDEX}", "cm4vllm-none==1"), "it cannot be installed", "--my_index")
    assert failed.value.what == "it cannot be installed"
    assert failed.value.cause == "pip has no connection to the package index: [Errno 111] Connection refused"
    assert (
        "where the machine has a network" in failed.value.remedy and "--my_index or `pip config`" in failed.value.remedy
    )


def test_a_constraint_of_the_user_does_not_hide_that_an_index_cannot_be_reached(tmp_path):
    constraint = tmp_path / "constraint.txt"
    constraint.write_text("cm4vllm-none<2\n")
    with pytest.raises(InstallError) as failed:
        checked(pip("--retries=1", f"--index-url={INDEX}", "-c", str(constraint), "cm4vllm-none==1"), "no")
    assert failed.value.cause == "pip has no connection to the package index: [Errno 111] Connection refused"


def test_a_release_that_an_index_does_not_have_is_no_failure_of_the_network(tmp_path):
    with pytest.raises(InstallError) as failed:
        checked(pip("--no-index", f"--find-links={tmp_path}", "cm4vllm-none==1"), "it cannot be installed")
    assert "No matching distribution found for cm4vllm-none==1" in failed.value.cause


@pytest.mark.parametrize(
    "said", ["error: externally-managed-environment\n\nThis environment is ...", "ERROR: [Errno 13] Permission denied"]
)
def test_another_users_python_is_answered_with_a_virtual_environment(said):
    with pytest.raises(InstallError) as failed:
        checked(Completed(("pip",), 1, said), "it cannot be installed")
    assert "use a virtual environment" in failed.value.remedy
    assert said.splitlines()[0] in failed.value.cause


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    path = tmp_path_factory.mktemp("wheel") / "demo0-1-py3-none-any.whl"
    files = {
        "demo0/__init__.py": "",
        "demo0-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo0\nVersion: 1\n",
        "demo0-1.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "demo0-1.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return make_environment(tmp_path_factory.mktemp("environment"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PIP_USER", "1"),
        ("PIP_TARGET", "{elsewhere}"),
        ("PIP_PREFIX", "{elsewhere}"),
        ("PIP_ROOT", "{elsewhere}"),
        ("PIP_CONSTRAINT", "{elsewhere}/none.txt"),
        ("PIP_REQUIREMENT", "{elsewhere}/none.txt"),
        ("PIP_DRY_RUN", "1"),
        ("PIP_NO_SUCH_OPTION", "1"),
        ("", "[global]\nconstraint = {elsewhere}/none.txt\n[install]\nuser = true\ntarget = {elsewhere}\n"),
        ("", "[install]\nprefix = {elsewhere}\n"),
        ("", "[install]\n--root = {elsewhere}\n"),
        ("", "[global]\npython = {elsewhere}/python\ndry_run = yes\n"),
        ("", "[global]\nbuild-constraint = {elsewhere}/none.txt\n"),
    ],
)
def test_packages_get_into_the_environment_whatever_the_users_settings_of_pip(
    wheel, environment, tmp_path, monkeypatch, name, value
):
    """A setting is a variable, or stands in the user's file."""
    elsewhere, file = tmp_path / "elsewhere", tmp_path / "pip" / "pip.conf"
    if name:
        monkeypatch.setenv(name, value.format(elsewhere=elsewhere))
    else:
        file.parent.mkdir()
        file.write_text(value.format(elsewhere=elsewhere))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    done = environments.pip(environment, ["--no-index", "--force-reinstall", str(wheel)])
    assert done.ok, done.output
    assert (site_packages(environment.parents[1]) / "demo0" / "__init__.py").exists()
    assert not elsewhere.exists()
    assert environments.pip(environment, ["demo0"], action="uninstall").ok


def test_the_users_indexes_and_proxies_stay(environment, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", INDEX)
    monkeypatch.setenv("PIP_RETRIES", "0")
    done = environments.pip(environment, ["cm4vllm-none==1"])
    assert not done.ok
    assert INDEX.removeprefix("http://") in done.output.replace("'", "") or "port=9" in done.output


FILES = ("XDG_CONFIG_DIRS", "XDG_CONFIG_HOME", "PIP_CONFIG_FILE")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Yield the files of pip's settings of a machine, of a user, and that a variable names, the least first."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    paths = {name: tmp_path / name / "pip" / "pip.conf" for name in FILES}
    for name, path in paths.items():
        path.parent.mkdir(parents=True)
        monkeypatch.setenv(name, str(path if name == "PIP_CONFIG_FILE" else tmp_path / name))
    return paths


def test_settings_hold_in_pip_s_own_order(files, monkeypatch):
    """As `pip config debug` shows it: a machine's file, the user's or the one that is named, the environment."""
    machine, user, named = files.values()
    machine.write_text("[global]\nindex-url = https://a/\nproxy = https://p/\n[install]\ntimeout = 3\n")
    user.write_text("[global]\nindex-url = https://b/\ntimeout = 4\n")
    expected = {"PIP_INDEX_URL": "https://b/", "PIP_PROXY": "https://p/", "PIP_TIMEOUT": "3"}
    variables, before = pip_settings()  # this machine's /etc/pip.conf may have more
    assert expected.items() | {("PIP_CONFIG_FILE", os.devnull)} <= variables.items()
    named.write_text("[global]\nextra_index_url =\n  https://c/\n  https://d/\nprefix = /x\n")
    monkeypatch.setenv("PIP_TIMEOUT", "5")
    monkeypatch.setenv("PIP_TARGET", "/y")
    variables, unused = pip_settings()
    assert variables["PIP_INDEX_URL"] == "https://a/"
    assert variables["PIP_EXTRA_INDEX_URL"].split() == ["https://c/", "https://d/"]
    assert (variables["PIP_TIMEOUT"], variables["PIP_TARGET"]) == ("5", "")
    assert set(unused) == {"PIP_TARGET", "global.prefix", *before}
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert "PIP_INDEX_URL" not in pip_settings()[0]


@pytest.mark.parametrize("text", ["index-url = https://a/\n", "[global\nx\n", "[global]\nno-index\n"])
def test_settings_that_pip_cannot_read_are_refused_with_the_file(files, text):
    files["XDG_CONFIG_DIRS"].write_text(text)
    with pytest.raises(InstallError, match="cannot be read") as failed:
        pip_settings()
    assert str(files["XDG_CONFIG_DIRS"]) in failed.value.what


@pytest.mark.parametrize("index", ["https://index.invalid/simple", "https://wheels.invalid", "http://a..b/"])
def test_an_index_without_an_address_is_an_error_at_once(index, monkeypatch):
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    began = time.monotonic()
    with pytest.raises(InstallError, match="cannot be reached") as failed:
        require_resolved(index, "--my_index")
    assert time.monotonic() - began < 30
    assert "--my_index or `pip config`" in failed.value.remedy
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    require_resolved(index)
    require_resolved(INDEX)
