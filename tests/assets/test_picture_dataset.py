"""The stand-in's products, and the benchmark's product catalogue as parquet files."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest

from cm4vllm.assets.samples.picture_dataset import check_catalogue, write_products
from cm4vllm.assets.samples.published_formats import require_media
from cm4vllm.assets.tiny import product_pictures
from cm4vllm.assets.tiny.stand_ins import MODELS
from cm4vllm.common.errors import DatasetError
from cm4vllm.rules import chat_prompts

COUNT = 60


def test_the_same_seed_gives_the_same_products_and_the_sets_have_none_in_common():
    made = list(product_pictures.products(COUNT, 3, evaluation=True))
    assert made == list(product_pictures.products(COUNT, 3, evaluation=True))
    of_training = {(product.title, product.colour) for product in product_pictures.products(2000, 3, evaluation=False)}
    assert not of_training & {(product.title, product.colour) for product in made}


def test_no_text_of_a_product_names_its_colour_but_among_all_that_are_offered():
    for product in product_pictures.products(COUNT, 3, evaluation=True):
        assert product.colour not in product.title + product.description
        assert product.categories.count(product.category) == 1 and len(product.categories) == 8
        assert json.loads(product.answer)["category"] == product.category == product.category.strip()
        offered = [path for path in product.categories if path.split(" > ")[2] == product.title.split()[1]]
        assert len(offered) > 1  # the title alone does not say which


def test_pictures_differ_by_colour_and_are_files_that_pillow_can_read(tmp_path):
    red, blue = (product_pictures.picture(name, (64, 64), 0) for name in ("Red", "Blue"))
    assert red[32, 32, 0] > 150 > red[32, 32, 2] and blue[32, 32, 2] > 150 > blue[32, 32, 0]
    data = product_pictures.png(red)
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) < 4000
    assert (product_pictures.blank((96, 64)) == 255).all()
    assert product_pictures.blank((96, 64)).shape == (64, 96, 3)
    assert not np.array_equal(red, product_pictures.picture("Red", (64, 64), 1))


@pytest.fixture
def model():
    """A folder in which the prompts of products can be counted."""
    return MODELS / "cm4vllm-tiny-vision"


def test_rows_have_the_tokens_of_each_rounds_prompt_with_those_of_the_picture(tmp_path, model):
    rows = write_products(tmp_path, COUNT, 3, model)
    assert len(rows) == COUNT
    assert {tuple(row["prompt_tokens"]) for row in rows} == {tuple(product.name for product in chat_prompts())}
    small, large = (next(row for row in rows if tuple(row["size"]) == size) for size in ((64, 64), (128, 128)))
    assert large["prompt_tokens"]["v6.0"] - small["prompt_tokens"]["v6.0"] >= 16 - 4 - 8
    require_media(tmp_path, rows)
    (tmp_path / rows[0]["picture"]).write_bytes(b"other")
    with pytest.raises(DatasetError, match="has changed"):
        require_media(tmp_path, rows)
    (tmp_path / rows[0]["picture"]).unlink()
    with pytest.raises(DatasetError, match="has no picture"):
        require_media(tmp_path, rows)


def catalogue(folder, names=("test-00000-of-00001", "train-00000-of-00001"), *, without=""):
    """Write parquet files as the catalogue's, of one product each."""
    folder.mkdir()
    for name in names:
        row = {
            "product_title": name,
            "product_description": "",
            "product_image": {"bytes": product_pictures.png(product_pictures.blank((64, 64))), "path": None},
            "potential_product_categories": ["a > b"],
            "ground_truth_category": "a > b",
        }
        row.pop(without, None)
        parquet.write_table(pyarrow.Table.from_pylist([row]), folder / f"{name}.parquet")
    return folder


def test_the_catalogue_is_read_train_before_test(tmp_path):
    files = check_catalogue(catalogue(tmp_path / "data"), 2)
    assert [path.name[:5] for path in files] == ["train", "test-"]


def test_what_is_not_the_catalogue_is_refused(tmp_path):
    with pytest.raises(DatasetError, match="has 2 samples"):
        check_catalogue(catalogue(tmp_path / "part"), 48289)
    with pytest.raises(DatasetError, match="lacks product_image"):
        check_catalogue(catalogue(tmp_path / "no-pictures", without="product_image"), 2)
    with pytest.raises(DatasetError, match="not the product catalogue"):
        check_catalogue(tmp_path / "none", 2)
    (tmp_path / "part" / "train-00000-of-00001.parquet").write_bytes(b"PAR1")
    with pytest.raises(DatasetError, match="not a parquet file"):
        check_catalogue(tmp_path / "part", 2)
