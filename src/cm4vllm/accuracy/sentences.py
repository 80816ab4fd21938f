"""Splits texts into sentences: nltk's Punkt, with its English model where the reference script uses it.

The model is data that nltk does not bring along. It is installed once, before a run, by the recipe get,nltk-data, and
only that one version of it is taken: another one could split differently and so change ROUGE-Lsum.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from cm4vllm.assets.downloads.resumed_download import RefusedError, answer_of
from cm4vllm.common import input_types
from cm4vllm.common.errors import InstallError, SourceUnavailable, UsageError
from cm4vllm.common.files import bytes_of, given_path, sha256_of
from cm4vllm.common.folders.owned_folders import staged_folder
from cm4vllm.common.http_requests import AnswerError, Follow
from cm4vllm.common.settings import Settings

Splitter = Callable[[str], list[str]]

#: Names in DatasetRecord.sentences: nltk's English model, and its algorithm without a model.
TRAINED, UNTRAINED = "punkt_tab", "punkt-untrained"
#: Where nltk keeps the model, below each of its data folders and below ours.
ENGLISH = Path("tokenizers/punkt_tab/english")
TOTAL_S = 600.0
#: The recipes ask for the model themselves, where they are not given a folder that lacks it.
_INSTALLED = (
    "leave --nltk_data out: the recipe then gets the model (get,nltk-data); without network: "
    "cm run script --tags=get,nltk-data --nltk_data=punkt_tab.zip once, with the file from elsewhere"
)


@dataclass(frozen=True)
class SentenceModel:
    """One version of nltk's package punkt_tab: where it comes from, its digest, and those of the English files."""

    url: str
    sha256: str
    files: dict[str, str]

    @property
    def digest(self) -> str:
        """One SHA-256 for the names and contents of the English files."""
        lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(self.files.items()))
        return hashlib.sha256(lines.encode()).hexdigest()


#: nltk_data at the commit of 17 February 2025, the version that nltk.download("punkt_tab") gives since then.
MODEL = SentenceModel(
    url="https://raw.githubusercontent.com/nltk/nltk_data/4f15a3d89eefe9748ec1c05be495d91289197155/packages/tokenizers/"
    "punkt_tab.zip",
    sha256="e57f64187974277726a3417ca6f181ec5403676c717672eef6a748a7b20e0106",
    files={
        "abbrev_types.txt": "92a3e070f43d9b4c5534758ca40ad7343b04e7e29bfe0c2eb658a39445a4f779",
        "collocations.tab": "8e2da1225e4dd2cc9dba261ee231ccb134859e21b46006e7f472c5ee269af0cf",
        "ortho_context.tab": "4bbcca25ed3d3f06c02402abf8419b9f033b8adc06e7b482eca4e45f81a5dc4c",
        "sent_starters.txt": "f3f8535483e1dba487241b764945168123bca3209a9645e59acd1225dc76edac",
    },
)


@dataclass(frozen=True)
class Sentences:
    """A way to split: `name` as in DatasetRecord.sentences, `data` the nltk data folder where the model was found."""

    name: str
    data: Path | None = None
    sha256: str = ""

    @classmethod
    def by_name(cls, name: str, nltk_data: str | Path | None = None) -> Sentences:
        """Return the way to split of that name; `nltk_data` is the folder to look into, nltk's own without it.

        Raises UsageError when there is none of that name, InstallError when its model is not there: it is never
        fetched in the middle of a run.
        """
        if name == UNTRAINED:
            return cls(name)
        if name != TRAINED:
            raise UsageError(f"unknown way to split sentences: {name!r}", remedy=f"known: {TRAINED}, {UNTRAINED}")
        return cls(name, find_model(Path(nltk_data).expanduser().absolute() if nltk_data else None), MODEL.digest)

    def splitter(self) -> Splitter:
        """Return the function that splits a text."""
        import nltk.data
        from nltk.tokenize.punkt import PunktSentenceTokenizer, PunktTokenizer

        if self.data is None:
            untrained: Splitter = PunktSentenceTokenizer().tokenize
            return untrained
        if str(self.data) != nltk.data.path[0]:
            nltk.data.path.insert(0, str(self.data))  # nltk opens no model outside the folders in its list
        trained: Splitter = PunktTokenizer("english").tokenize
        return trained


#: For scores that no sentence is split for.
NO_SENTENCES = Sentences("")


def on_lines(split: Splitter, text: str) -> str:
    """Return a text as the reference scripts score it: stripped, each sentence on a line of its own."""
    return "\n".join(split(text.strip()))


def find_model(data: Path | None = None) -> Path:
    """Return the nltk data folder that holds the English model: `data`, or else the first of nltk's own that does.

    Raises InstallError when none does, or when what is there is another version.
    """
    import nltk.data

    folders = [data] if data is not None else [Path(folder) for folder in nltk.data.path]
    folder = next((folder for folder in folders if (folder / ENGLISH).is_dir()), None)
    if folder is None:
        raise InstallError(
            "nltk's English sentence model punkt_tab is not installed",
            cause=f"there is no {ENGLISH} in {data}"
            if data
            else "ROUGE-Lsum splits sentences with it, as the reference does",
            remedy=_INSTALLED,
        )
    if changed := [
        name
        for name, digest in MODEL.files.items()
        if not (path := folder / ENGLISH / name).is_file() or sha256_of(path) != digest
    ]:
        raise InstallError(
            f"the sentence model in {folder} is not the one that scores are compared with",
            cause=f"not as published, or missing: {', '.join(changed)}",
            remedy=_INSTALLED,
        )
    return folder


class SentenceInputs(Settings, frozen=True, kw_only=True):
    """The user's copy of the sentence model: an nltk data folder or punkt_tab.zip."""

    source: input_types.SentenceSource = ""

    @property
    def given(self) -> Path | None:
        """The path of the copy, if one is given. Raises UsageError for one that is not whole."""
        return given_path(self.source) if self.source else None


def install_model(folder: Path, given: Path | None = None) -> Path:
    """Put the English model into `folder`, an nltk data folder, whole or not at all; return `folder`.

    It is taken from `given`, an nltk data folder or punkt_tab.zip; without it from nltk's own folders, or the network.
    Raises SourceUnavailable when it cannot be had, InstallError when `given` is another version.
    """
    files = given_model(given) if given is not None else _installed_or_fetched()
    with staged_folder(folder / ENGLISH) as staging:
        for name, data in files.items():
            (staging / name).write_bytes(data)
    return find_model(folder)


def given_model(path: Path) -> dict[str, bytes]:
    """Return the files of the model in `path`, an nltk data folder or punkt_tab.zip. Raises what install_model does."""
    return _copy_of(path) if path.is_dir() else _unpack(_read(path))


def _installed_or_fetched() -> dict[str, bytes]:
    try:
        return _copy_of(None)
    except InstallError:
        return _unpack(_fetch())


def _copy_of(data: Path | None) -> dict[str, bytes]:
    folder = find_model(data)
    return {name: (folder / ENGLISH / name).read_bytes() for name in MODEL.files}


def _read(path: Path) -> bytes:
    """Return the content of a file. Raises SourceUnavailable if it cannot be read."""
    try:
        return bytes_of(path)
    except OSError as error:
        raise SourceUnavailable(
            f"cannot read {path}",
            cause=str(error.strerror),
            remedy="--nltk_data is a folder of nltk data, or the file punkt_tab.zip",
        ) from error


def _fetch() -> bytes:
    """Return the archive of the sentence model from its URL. Raises SourceUnavailable."""
    try:
        return answer_of(MODEL.url, {}, follow=Follow.ANYWHERE, total_s=TOTAL_S).body
    except (OSError, AnswerError, RefusedError) as error:
        raise SourceUnavailable(
            "cannot download nltk's English sentence model",
            cause=f"{MODEL.url}: {error}",
            remedy="download that file elsewhere and give it with --nltk_data=punkt_tab.zip",
        ) from error


def _unpack(archive: bytes) -> dict[str, bytes]:
    """Return the files of the English model in the archive, by name. Raises InstallError for another archive."""
    if (digest := hashlib.sha256(archive).hexdigest()) != MODEL.sha256:
        raise InstallError(
            "this is not the punkt_tab.zip that scores are compared with",
            cause=f"its SHA-256 is {digest}, not {MODEL.sha256}",
            remedy=f"take it from {MODEL.url}",
        )
    with zipfile.ZipFile(BytesIO(archive)) as packed:
        return {name: packed.read(f"punkt_tab/english/{name}") for name in MODEL.files}
