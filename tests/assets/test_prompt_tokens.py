"""Prompts that were tokenised for another model are found by their text, and tokenised again for the model."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from cm4vllm.assets.datasets import provide
from cm4vllm.assets.models import MODEL_FILE, ModelSettings
from cm4vllm.assets.models import provide as provide_model
from cm4vllm.assets.samples.dataset_files import DatasetSettings
from cm4vllm.assets.samples.prompt_tokens import ChatTokens, PictureGrid, message, misread_prompts
from cm4vllm.assets.samples.published_formats import rows_of
from cm4vllm.assets.tiny.stand_ins import MODELS
from cm4vllm.common.errors import DatasetError, ModelError

ARTICLES = [
    f"The harbour of Port {name} handled {number} tons of salt on Monday, said Ms O'Neil. Ein Café für Ärzte: 港 ½."
    for number, name in enumerate(["Alma", "Brest", "Cuxhaven", "Dover", "Esbjerg", "Faro", "Gdansk"] * 40)
]
TEMPLATE = "Summarize the following news article in 128 tokens.\n\nArticle:\n{input}\n\nSummary:"


def bpe(words, folder, *more):
    """Write a byte-level BPE tokenizer that was trained on `words`, with a token for the begin of a text and `more`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, special_tokens=["<s>", *more], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(words, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return saved(tokenizer, folder)


def lower_case(_, folder):
    """Write a tokenizer that keeps neither capitals nor accents, and puts words beside each other as it likes."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(ARTICLES[:20], trainers.WordPieceTrainer(vocab_size=250, special_tokens=["[UNK]"]))
    return saved(tokenizer, folder)


def with_spaces(_, folder):
    """Write a Unigram tokenizer with a mark for spaces, one that is put before the text, too."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=280, special_tokens=["<unk>"], unk_token="<unk>")
    tokenizer.train_from_iterator(ARTICLES, trainer)
    return saved(tokenizer, folder)


def saved(tokenizer, folder):
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def rows(tokenizer, texts=ARTICLES, template="{input}", **more):
    return [
        {"input": text, "tok_input": tokenizer.encode(template.replace("{input}", text)).ids, "output": "gold", **more}
        for text in texts
    ]


@pytest.fixture
def other(tmp_path):
    """A tokenizer of another model, of as many tokens."""
    return bpe(["zzz qqq xxx", "0123 4567 89"], tmp_path / "other", "</s>", "<pad>")


def provided(tmp_path, model, made, **more):
    entry = tmp_path / "entry"
    entry.mkdir(exist_ok=True)
    provide_model(ModelSettings(source="path", location=str(model)), entry)
    path = tmp_path / "cnn_eval.json"
    path.write_text(json.dumps(made))
    record = str(entry / MODEL_FILE)
    return provide(DatasetSettings(source="path", location=str(path), model_record=record, **more), entry)


@pytest.mark.parametrize("kind", [bpe, lower_case, with_spaces])
@pytest.mark.parametrize("template", ["{input}", TEMPLATE])
def test_prompts_of_the_models_own_tokenizer_are_taken_as_they_are(kind, template, model, tmp_path, other):
    own = kind(ARTICLES, model)
    made = rows(own, template=template)
    assert misread_prompts(made, model) == ""
    record = provided(tmp_path, model, made)
    assert not record.tokenised_again
    assert rows_of(Path(record.path)) == made
    assert misread_prompts(rows(other, template=template), model)


@pytest.mark.parametrize("kind", [bpe, lower_case, with_spaces])
def test_prompts_of_another_tokenizer_are_tokenised_again(kind, model, tmp_path, other, capfd):
    own = kind(ARTICLES, model)
    record = provided(tmp_path, model, rows(other))
    assert rows_of(Path(record.path)) == rows(own)
    assert record.max_input_tokens == max(len(row["tok_input"]) for row in rows(own))
    assert "tokenised for another model (sample 0 reads" in record.tokenised_again
    assert record.tokenised_again in capfd.readouterr().out


def test_the_instruction_of_a_row_is_a_part_of_its_prompt_again(model, tmp_path, other):
    own = bpe(ARTICLES, model)
    for instruction in (TEMPLATE, {"llama": TEMPLATE}):
        record = provided(tmp_path, model, rows(other, template=TEMPLATE, instruction=instruction))
        assert rows_of(Path(record.path)) == rows(own, template=TEMPLATE, instruction=instruction)


def test_a_text_that_has_the_begin_of_a_prompt_already_gets_it_once(model, tmp_path, other):
    own = bpe(ARTICLES, model)
    texts = [f"<s>[INST] {text} [/INST]" for text in ARTICLES]
    record = provided(tmp_path, model, rows(other, texts))
    first = rows_of(Path(record.path))[0]["tok_input"]
    assert own.decode(first, skip_special_tokens=False) == texts[0]


def test_ids_beyond_the_vocabulary_and_some_rows_of_another_model_are_found(model, tmp_path, other):
    own = bpe(ARTICLES, model)
    made = rows(own)
    made[5]["tok_input"] = [300, 1]
    record = provided(tmp_path, model, made)
    assert "sample 5 has token id 300, and the model's vocabulary has 300" in record.tokenised_again
    assert rows_of(Path(record.path)) == rows(own)
    assert "sample 140" in misread_prompts([*rows(own)[:140], *rows(other)[140:]], model)
    assert "sample 279" in misread_prompts([*rows(own)[:279], *rows(other)[279:]], model)


@pytest.mark.parametrize("kept", [slice(0, 300), slice(-300, None)])
def test_a_prompt_that_was_cut_is_the_models(kept, model, other):
    own = bpe(ARTICLES, model)
    texts = [" ".join(ARTICLES[at : at + 20]) for at in range(20)]
    made = [{**row, "tok_input": row["tok_input"][kept]} for row in rows(own, texts)]
    assert misread_prompts(made, model) == ""
    assert misread_prompts([{**row, "tok_input": row["tok_input"][kept]} for row in rows(other, texts)], model)


def test_a_prompt_without_a_text_cannot_be_tokenised_again(model, tmp_path, other):
    bpe(ARTICLES, model)
    made = [*rows(other), {"input": "", "tok_input": [1], "output": "gold"}]
    with pytest.raises(DatasetError, match="sample 280 has no text") as caught:
        provided(tmp_path, model, made)
    assert "belongs to the model" in caught.value.remedy
    made = [{"tok_input": [1, 2], "input": "", "output": "gold"}] * 3
    assert rows_of(Path(provided(tmp_path, model, made).path)) == made  # nothing to compare them with


@pytest.mark.parametrize("kind", [bpe, with_spaces])
def test_a_message_is_the_prompt_with_its_instruction(kind, model):
    own, text = kind(ARTICLES, model), ARTICLES[3].partition(" Ein")[0]
    asked = f"Monday handled salt: {text} said Port Dover"
    assert message(own, own.encode(asked).ids, text) == asked
    assert message(own, own.encode(text).ids, text) == text
    assert message(own, own.encode(asked).ids, "") == asked


@pytest.mark.parametrize("cut", [slice(None, 150), slice(None, 300), slice(50, None)])
def test_a_message_is_without_the_chat_template_though_its_text_was_cut(model, cut):
    own = bpe(ARTICLES, model, "<|start|>", "<|end|>", "<|message|>")
    text = " ".join(ARTICLES[:8])
    prompt = (
        "<s><|start|>system<|message|>You are a model.<|end|><|start|>user<|message|>\n\n"
        f"{text[cut]}<|end|><|start|>assistant"
    )
    assert message(own, own.encode(prompt, add_special_tokens=False).ids, text) == text[cut].strip()


@pytest.mark.parametrize("text", ["!?!? ... ---", "\u2192 \u2190", "***"])
def test_a_text_without_letters_is_compared_by_its_signs(model, other, text):
    own = bpe([*ARTICLES, text], model)
    made = [{"input": text, "tok_input": own.encode(text).ids, "output": "x"}]
    assert misread_prompts(made, model) == ""
    others = [row | {"tok_input": other.encode(ARTICLES[0]).ids[:4]} for row in made]
    assert misread_prompts(others, model)


def test_a_message_is_without_the_chat_template_that_the_prompt_has(model):
    own = bpe(ARTICLES, model, "<|start|>", "<|end|>", "<|message|>")
    text = ARTICLES[5]
    prompt = (
        "<s><|start|>system<|message|>You are a model.<|end|><|start|>user<|message|>\n\nWhat is said in this: "
        f"{text}<|end|><|start|>assistant"
    )
    ids = own.encode(prompt, add_special_tokens=False).ids
    assert message(own, ids, text) == f"What is said in this: {text}"
    assert message(
        own, own.encode("<s>[INST] Why? [/INST]", add_special_tokens=False).ids, "<s>[INST] Why? [/INST]"
    ) == ("[INST] Why? [/INST]")


# --- prompts with pictures are counted as a server counts them: by chat template, tokenizer and picture processor


#: Tokens that vLLM 0.32.0 counted of pictures of these sizes for Qwen3-VL's own settings (patches of 16, merged by 2).
SIZES = {
    **{(640, 480): 300, (224, 224): 64, (32, 32): 64, (64, 64): 64, (1000, 30): 94, (1920, 1080): 2040},
    **{(333, 777): 240, (4096, 4096): 16384, (8000, 6000): 16170, (256, 257): 64},
}


def processor(folder, **more):
    settings = {"patch_size": 16, "merge_size": 2, "size": {"shortest_edge": 65536, "longest_edge": 16777216}, **more}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def test_the_tokens_of_pictures_by_newer_and_older_settings_and_of_models_that_have_none(tmp_path):
    grid = PictureGrid.of(processor(tmp_path))
    assert {size: grid.tokens(*size) for size in SIZES} == SIZES
    old = {"size": None, "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14}
    assert PictureGrid.of(processor(tmp_path, **old)).tokens(56, 56) == 4
    with pytest.raises(ModelError, match="does not say how a picture is cut"):
        PictureGrid.of(processor(tmp_path, merge_size=None))
    with pytest.raises(ModelError, match="200 times"):
        PictureGrid.of(processor(tmp_path)).tokens(1, 300)


@pytest.fixture
def chat_model(tmp_path):
    """A folder with a tokenizer of words, and the chat template of the stand-in."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "system": 1, "user": 2, "assistant": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    vision = MODELS / "cm4vllm-tiny-vision"
    marks = json.loads((vision / "tokenizer_config.json").read_text())["additional_special_tokens"]
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in marks])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    shutil.copy(vision / "chat_template.jinja", tmp_path)
    return processor(tmp_path)


def test_a_conversation_counts_its_words_its_marks_and_its_picture(chat_model):
    # Three messages begin, each with its role, and two end; a system has two words, a user three; a picture two ends.
    marks, words = 3 + 3 + 2 + 2, 2 + 3
    counts = list(
        ChatTokens(chat_model).count([("be brief", "what is this", (640, 480)), ("be brief", "what is", (32, 32))])
    )
    assert counts == [marks + words + 300, marks + words - 1 + 64]


def test_the_template_is_found_in_each_file_that_it_is_published_in(chat_model):
    text = (chat_model / "chat_template.jinja").read_text()
    (chat_model / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="no chat template"):
        ChatTokens(chat_model)
    for name in ("chat_template.json", "tokenizer_config.json"):
        (chat_model / name).write_text(json.dumps({"chat_template": text}))
        assert next(ChatTokens(chat_model).count([("a", "b", (32, 32))])) == 10 + 2 + 64
        (chat_model / name).unlink()


def test_a_template_cannot_reach_into_the_process(chat_model):
    (chat_model / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(Exception, match="unsafe"):
        list(ChatTokens(chat_model).count([("a", "b", (32, 32))]))
