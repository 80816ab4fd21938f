"""Texts out of token ids."""

import json
import shutil

import pytest

from cm4vllm.accuracy.answer_texts import Detokenizer
from cm4vllm.common.errors import ModelError


@pytest.fixture
def folder(model_folder, tmp_path):
    shutil.copy(model_folder / "tokenizer.json", tmp_path)
    return tmp_path


@pytest.mark.parametrize(("asked", "text"), [(True, "salt, silk."), (False, "salt , silk ."), (None, "salt , silk .")])
def test_spaces_are_mended_when_the_tokenizer_asks_for_it(folder, asked, text):
    if asked is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"clean_up_tokenization_spaces": asked}))
    assert Detokenizer(folder).decode([[12, 19, 13, 18]]) == [text]


def test_special_tokens_are_left_out(folder):
    assert Detokenizer(folder).decode([[99, 12, 99]]) == ["salt"]


def test_a_missing_or_broken_tokenizer_is_named(tmp_path):
    with pytest.raises(ModelError, match="tokenizer.json"):
        Detokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="tokenizer.json"):
        Detokenizer(tmp_path)


def test_a_broken_configuration_of_the_tokenizer_is_named(folder):
    (folder / "tokenizer_config.json").write_text("[")
    with pytest.raises(ModelError, match="tokenizer_config.json"):
        Detokenizer(folder)
