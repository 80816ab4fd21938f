"""The page of published results: all rows and figures without its script, which the policy of the page allows alone."""

import base64
import hashlib
import re

import pytest

from cm4vllm.report.explorer import explorer_page
from cm4vllm.results.result_index import Index, read_index


@pytest.fixture(scope="session")
def published(neural_magic, tmp_path_factory):
    return read_index(neural_magic.parents[1], tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="session")
def page(published):
    return explorer_page(published)


def test_every_result_is_in_the_page_with_its_file_and_field(page, published):
    cells = re.findall(r'<data value="([^"]+)" data-unit="([^"]+)" title="([^"]+)">', page)
    assert sorted(cells) == sorted((str(row.value), row.unit, f"{row.file}: {row.field}") for row in published.rows)
    assert len(re.findall(r"samples/s of [\d.]+ tokens</span>", page)) == len(published.rows)
    assert "TOKENS-DOUBLED" in page and "measured: neuralmagic_Llama-2-7b-chat-hf-FP8" in page


def test_it_loads_nothing_and_only_its_own_small_script_may_run(page):
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;" in page or f"script-src 'sha256-{digest}'" in page
    assert len(script) < 4000 and not re.search(r"url\(|@import| (src|href)=|fetch|XMLHttp|innerHTML", page)


def test_names_of_others_are_texts_and_no_markup(published):
    from msgspec.structs import replace

    row = replace(published.rows[0], system="<script>alert(1)</script>", submitter='"><b>')
    text = explorer_page(Index((row,), 1, 0))
    assert "<script>alert" not in text and "&lt;script&gt;alert(1)" in text and '"><b>' not in text


def test_systems_of_one_name_are_told_apart_by_their_folders(published):
    from msgspec.structs import replace

    row = published.rows[0]
    text = explorer_page(Index((row, replace(row, folder="the second one")), 2, 0))
    assert text.count('<tr><th scope="row">') == 2 and "folder: the second one" in text
    assert "folder: " not in explorer_page(Index((row,), 1, 0))
