"""The builds of vLLM, one a kind of device, and their releases: builds.yaml, with what is known of each."""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from cm4vllm.common import input_types
from cm4vllm.common.errors import InstallError
from cm4vllm.common.files import bytes_of
from cm4vllm.common.records import Record
from cm4vllm.common.settings import Settings


class Release(Record, frozen=True, kw_only=True):
    """A release of vLLM in one build, with the PyTorch that it needs and `seen`, what this project has seen of it.

    `cuda` is the CUDA version of that PyTorch, and `driver` the oldest NVIDIA driver that it runs with; both are empty
    for devices of other vendors. `pythons` are the versions of Python that it can be installed for. `download_bytes`
    and `disk_bytes` are 0 where they were not measured. A release that is not `published` does not exist in this build.
    """

    release: str
    seen: str
    torch: str = ""
    cuda: str = ""
    driver: str = ""
    pythons: tuple[str, ...] = ()
    download_bytes: int = 0
    disk_bytes: int = 0
    published: bool = True

    @property
    def needs(self) -> str:
        """The driver that it needs, in words; empty where none is known."""
        return f"CUDA {self.cuda}, NVIDIA driver {self.driver} or newer" if self.driver else ""


class Variant(Release, frozen=True, kw_only=True):
    """A build of vLLM for one kind of device, described by its default release; `others` are further ones.

    `space_gib` is what the environment takes on the disk, and again while its packages are unpacked. `lock` is the file
    that pins the default release's packages with their hashes; empty where there is none. `index` is the only source of
    the packages, where that is not the user's own.
    """

    name: str
    title: str
    distribution: str
    space_gib: int
    machines: tuple[str, ...] = ("x86_64", "aarch64")
    index: str = ""
    lock: str = ""
    default: bool = False
    others: tuple[Release, ...] = ()

    @property
    def space_bytes(self) -> int:
        return self.space_gib * 2**30

    @property
    def releases(self) -> tuple[Release, ...]:
        """The releases that exist, newest first."""
        known: tuple[Release, ...] = (self, *self.others)
        return tuple(sorted((release for release in known if release.published), key=_order, reverse=True))


class WantedBuild(Settings, frozen=True, kw_only=True):
    """The vLLM that is asked for: a build by its tag, a release, and where it comes from; each empty by default."""

    variant: input_types.VllmVariant = ""
    version: input_types.VllmVersion = ""
    index_url: input_types.VllmIndexUrl = ""
    extra_index_url: input_types.VllmExtraIndexUrl = ""
    wheel: input_types.VllmWheel = ""

    @property
    def from_elsewhere(self) -> bool:
        """Return True if the user's own wheel or index may have what the public index has not."""
        return bool(self.index_url or self.extra_index_url or self.wheel)


VARIANTS = {
    variant.name: variant
    for variant in msgspec.yaml.decode(bytes_of(Path(__file__).with_name("builds.yaml")), type=list[Variant])
}


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a release or of a driver, which order it; none where it begins with no number."""
    leading = re.match(r"\d{1,9}(?:\.\d{1,9}){0,9}", version, re.ASCII)
    return tuple(map(int, leading[0].split("."))) if leading else ()


def _order(release: Release) -> tuple[int, ...]:
    return numbers_of(release.release)


def known_release(build: str, version: str = "") -> Release | None:
    """Return what is known of a release of a build, by default of its default release; None where nothing is.

    Of a release that is not listed what holds for the nearest older one is known: its CUDA, its driver.
    """
    variant = VARIANTS[build]
    if not version:
        return variant
    wanted = numbers_of(version)
    return next((release for release in variant.releases if wanted and _order(release) <= wanted), None)


def planned_install(build: str, version: str) -> Mapping[str, object]:
    """Return the installation of a release in the form of a meta's `brings`, with its sizes where they are known."""
    known = known_release(build, version)
    sizes = (known.download_bytes, known.disk_bytes) if known is not None and known.release == version else (0, 0)
    title = f"vLLM {version}, {VARIANTS[build].title} build"
    measured = "on x86_64" if any(sizes) else ""
    return {"how": "install", "what": title, "download_bytes": sizes[0], "disk_bytes": sizes[1], "measured": measured}


def release_for_driver(build: str, driver: str) -> str | None:
    """Return the newest known release of a build that runs with an NVIDIA driver; None where none does.

    Releases that need no such driver run with any.
    """
    present = numbers_of(driver)
    fitting = (known.release for known in VARIANTS[build].releases if numbers_of(known.driver) <= present)
    return next(fitting, None)


def require_published(build: str, version: str) -> None:
    """Raise InstallError for a release that is known not to exist in a build."""
    variant = VARIANTS[build]
    absent = {release.release: release.seen for release in variant.others if not release.published}
    if version in absent:
        newest = variant.releases[0].release
        raise InstallError(
            f"there is no {variant.title} build of vLLM {version}",
            cause=f"{variant.distribution} {version}: {absent[version]}; the newest one is {newest}",
            remedy=f"leave --vllm_version out, or give --vllm_version={newest}; a build of your own is taken by "
            "--vllm_wheel",
        )


def require_driver(build: str, driver: str, version: str = "") -> None:
    """Raise InstallError where the driver is older than the release of a build needs, with the newest that fits it.

    A driver or a release of which nothing is known passes.
    """
    wanted, present = known_release(build, version), numbers_of(driver)
    if wanted is None or not present or present >= numbers_of(wanted.driver):
        return
    fitting = release_for_driver(build, driver)
    older = f"--vllm_version={fitting}, the newest release for this driver" if fitting else "another machine"
    raise InstallError(
        f"the NVIDIA driver {driver} is too old for vLLM {version or wanted.release}",
        cause=f"its {VARIANTS[build].title} build needs {wanted.needs}",
        remedy=f"install a newer driver; or take {older}; or give --device=cpu",
    )
