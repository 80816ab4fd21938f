"""The folder of the reference client gets the model's small files, and no file of another program."""

import pytest

from cm4vllm.endpoints.client_config import TOKENIZER
from cm4vllm.endpoints.client_folder import prepare_folder
from cm4vllm.records.assets import ModelRecord


@pytest.fixture
def model(tmp_path):
    """Make a model whose files are links: to those of another model, and to those of other programs."""
    home, other, folder = (tmp_path / name for name in ("home", "other", "model"))
    for place in (home, other, folder):
        place.mkdir()
    for name in ("kaggle.json", "secrets.txt", "tokens.jinja"):
        (home / name).write_text("secret")
        (folder / name).symlink_to(home / name)
    for name, text in {"config.json": '{"model_type": "llama"}', "tokenizer.json": "{}", "merges.txt": ""}.items():
        (other / name).write_text(text)
        (folder / name).symlink_to(other / name)
    (folder / "tokenizer_config.json").write_text("{}")
    return ModelRecord(name="m", path=str(folder), source="made", sha256="")


def test_links_to_files_of_other_programs_are_named_and_not_copied(model, tmp_path, capsys):
    prepare_folder(tmp_path / "client", model, None)
    copied = {path.name for path in (tmp_path / "client" / TOKENIZER).iterdir()}
    assert copied == {"config.json", "tokenizer.json", "merges.txt", "tokenizer_config.json"}
    said = capsys.readouterr().out
    for name in ("kaggle.json", "secrets.txt", "tokens.jinja"):
        assert f"{model.path}/{name} -> {tmp_path}/home/{name}" in said
    assert not any(path.is_symlink() for path in (tmp_path / "client").rglob("*"))


def test_a_docker_configuration_is_no_model_s(model, tmp_path, capsys):
    (tmp_path / "other" / "config.json").write_text('{"auths": {"registry": {"auth": "c2VjcmV0"}}}')
    prepare_folder(tmp_path / "client", model, None)
    assert not (tmp_path / "client" / TOKENIZER / "config.json").exists()
    assert "config.json -> " in capsys.readouterr().out
