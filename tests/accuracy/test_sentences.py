"""The sentence model: found, pinned, installed, and never fetched unasked. The model here is trained on a few lines."""

import hashlib
import http.server
import threading
import zipfile

import nltk.data
import pytest
from nltk.tokenize.punkt import PunktTrainer, save_punkt_params

from cm4vllm.accuracy import sentences
from cm4vllm.accuracy.sentences import ENGLISH, SentenceModel, Sentences, install_model
from cm4vllm.common.errors import InstallError, SourceUnavailable, UsageError

TRAINING = "He met capt. Smith. The capt. left. They saw capt. Jones at sea. Salt came with capt. Brown. " * 20
TEXT = "It was capt. Smith. He left."
SPLIT = ["It was capt. Smith.", "He left."]


@pytest.fixture(autouse=True)
def no_model_of_the_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "none")])


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """An nltk data folder with a model that knows one abbreviation, in the format of nltk's own."""
    folder = tmp_path_factory.mktemp("nltk_data")
    (folder / ENGLISH).mkdir(parents=True)
    trainer = PunktTrainer(TRAINING)
    parameters = trainer.get_params()
    parameters.abbrev_types.add("capt")
    before, nltk.data.path = nltk.data.path, [str(folder)]
    save_punkt_params(parameters, dir=str(folder / ENGLISH))
    nltk.data.path = before
    return folder


@pytest.fixture
def archive(trained, tmp_path):
    path = tmp_path / "punkt_tab.zip"
    with zipfile.ZipFile(path, "w") as opened:
        for file in sorted((trained / ENGLISH).iterdir()):
            opened.write(file, f"punkt_tab/english/{file.name}")
        opened.writestr("punkt_tab/german/abbrev_types.txt", "z.b")
    return path


@pytest.fixture
def pinned(trained, archive, monkeypatch):
    """Have the model that was trained here taken for the published one; return it."""
    files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (trained / ENGLISH).iterdir()}
    model = SentenceModel("http://127.0.0.1:9/", hashlib.sha256(archive.read_bytes()).hexdigest(), files)
    assert set(files) == set(sentences.MODEL.files)
    monkeypatch.setattr(sentences, "MODEL", model)
    return model


def test_the_model_splits_as_nltk_does_with_it(pinned, trained):
    named = Sentences.by_name("punkt_tab", trained)
    assert named.splitter()(TEXT) == SPLIT
    assert Sentences.by_name("punkt-untrained").splitter()(TEXT) != SPLIT
    assert named.sha256 == pinned.digest


def test_the_model_is_found_and_taken_where_nltk_looks(pinned, trained, tmp_path, monkeypatch):
    with pytest.raises(SourceUnavailable, match="none.zip"):
        install_model(tmp_path / "data", tmp_path / "none.zip")
    monkeypatch.setattr(nltk.data, "path", ["/nowhere", str(trained)])
    assert Sentences.by_name("punkt_tab").data == trained
    assert (install_model(tmp_path / "data") / ENGLISH / "abbrev_types.txt").is_file()  # not downloaded again


def test_a_missing_model_is_told_and_not_fetched(tmp_path):
    for data in (None, tmp_path):
        with pytest.raises(InstallError, match="punkt_tab is not installed") as failure:
            Sentences.by_name("punkt_tab", data)
        assert "--tags=get,nltk-data" in failure.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_another_version_of_the_model_and_an_unknown_way_to_split_are_refused(trained):
    with pytest.raises(UsageError, match="spacy"):
        Sentences.by_name("spacy")
    with pytest.raises(InstallError, match="not the one that scores are compared with") as failure:
        Sentences.by_name("punkt_tab", trained)
    assert "abbrev_types.txt" in failure.value.cause


@pytest.mark.parametrize("given", ["trained", "archive"])
def test_it_is_installed_from_a_folder_or_a_file(given, request, pinned, tmp_path):
    folder = install_model(tmp_path / "data", request.getfixturevalue(given))
    assert Sentences.by_name("punkt_tab", folder).splitter()(TEXT) == SPLIT
    assert sorted(path.name for path in (folder / ENGLISH).iterdir()) == sorted(pinned.files)


def test_it_is_downloaded_and_its_digest_checked(pinned, archive, tmp_path, monkeypatch):
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=archive.parent)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/{archive.name}"
            monkeypatch.setattr(sentences, "MODEL", SentenceModel(url, pinned.sha256, pinned.files))
            folder = install_model(tmp_path / "data")
            monkeypatch.setattr(sentences, "MODEL", SentenceModel(url, "00" * 32, pinned.files))
            with pytest.raises(InstallError, match="not the punkt_tab.zip"):
                install_model(tmp_path / "other")
            monkeypatch.setattr(sentences, "MODEL", SentenceModel(url + "x", pinned.sha256, pinned.files))
            with pytest.raises(SourceUnavailable, match="cannot download") as failure:
                install_model(tmp_path / "other")
        finally:
            server.shutdown()
    monkeypatch.setattr(sentences, "MODEL", pinned)
    assert Sentences.by_name("punkt_tab", folder).splitter()(TEXT) == SPLIT
    assert "--nltk_data=punkt_tab.zip" in failure.value.remedy
    assert not (tmp_path / "other" / ENGLISH).exists()
