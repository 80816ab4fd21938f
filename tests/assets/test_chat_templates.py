"""Prompts with pictures are counted as a server counts them: by chat template, tokenizer and picture processor."""

import json
import shutil

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from cm4vllm.assets.samples.chat_templates import ChatTokens, PictureGrid
from cm4vllm.assets.tiny.stand_ins import MODELS
from cm4vllm.common.errors import ModelError

VISION = MODELS / "cm4vllm-tiny-vision"
#: Tokens that vLLM 0.32.0 counted of pictures of these sizes for Qwen3-VL's own settings (patches of 16, merged by 2).
SIZES = {
    (640, 480): 300,
    (224, 224): 64,
    (32, 32): 64,
    (64, 64): 64,
    (1000, 30): 94,
    (1920, 1080): 2040,
    (333, 777): 240,
    (4096, 4096): 16384,
    (8000, 6000): 16170,
    (256, 257): 64,
}


def processor(folder, **more):
    settings = {"patch_size": 16, "merge_size": 2, "size": {"shortest_edge": 65536, "longest_edge": 16777216}, **more}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def test_the_tokens_of_ten_sizes_of_pictures(tmp_path):
    grid = PictureGrid.of(processor(tmp_path))
    assert {size: grid.tokens(*size) for size in SIZES} == SIZES


def test_older_settings_name_the_pixels_and_other_models_have_none(tmp_path):
    old = {"size": None, "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14}
    assert PictureGrid.of(processor(tmp_path, **old)).tokens(56, 56) == 4
    with pytest.raises(ModelError, match="does not say how a picture is cut"):
        PictureGrid.of(processor(tmp_path, merge_size=None))
    with pytest.raises(ModelError, match="200 times"):
        PictureGrid.of(processor(tmp_path)).tokens(1, 300)


@pytest.fixture
def model(tmp_path):
    """A folder with a tokenizer of words, and the chat template of the stand-in."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "system": 1, "user": 2, "assistant": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = json.loads((VISION / "tokenizer_config.json").read_text())["additional_special_tokens"]
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in marks])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    shutil.copy(VISION / "chat_template.jinja", tmp_path)
    return processor(tmp_path)


def test_a_conversation_counts_its_words_its_marks_and_its_picture(model):
    # Three messages begin, each with its role, and two end; a system has two words, a user three; a picture two ends.
    marks, words = 3 + 3 + 2 + 2, 2 + 3
    counts = list(
        ChatTokens(model).count([("be brief", "what is this", (640, 480)), ("be brief", "what is", (32, 32))])
    )
    assert counts == [marks + words + 300, marks + words - 1 + 64]


def test_the_template_is_found_in_each_file_that_it_is_published_in(model):
    text = (model / "chat_template.jinja").read_text()
    (model / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="no chat template"):
        ChatTokens(model)
    for name in ("chat_template.json", "tokenizer_config.json"):
        (model / name).write_text(json.dumps({"chat_template": text}))
        assert next(ChatTokens(model).count([("a", "b", (32, 32))])) == 10 + 2 + 64
        (model / name).unlink()


def test_a_template_cannot_reach_into_the_process(model):
    (model / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(Exception, match="unsafe"):
        list(ChatTokens(model).count([("a", "b", (32, 32))]))
