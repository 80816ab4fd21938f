"""The page in a real browser: no error, nothing wider than the screen, printed; and its colours, by WCAG's formula."""

import json
import re
import shutil
import zlib
from html import unescape
from pathlib import Path

import pytest
from msgspec.structs import replace

from browser import chromium
from cm4vllm.report import summary
from cm4vllm.report.explorer import explorer_page
from cm4vllm.report.summary import render
from cm4vllm.results.campaign_results import load
from cm4vllm.results.result_index import Index, read_index
from screenshot import MAX_BYTES as PICTURE_BYTES

pytestmark = pytest.mark.xdist_group("runs-report")  # one process makes the runs of these files

CSS = (Path(summary.__file__).parent / "templates" / "summary.css").read_text(encoding="utf-8")

#: Reads in a frame of the page, which itself runs no script, what is too wide, and where words of pictures are crossed.
FRAME = """<!DOCTYPE html><title>-</title>
<iframe src="page.html" style="width:{width}px;height:4000px;border:0"></iframe>
<script>addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  page.querySelectorAll("details").forEach(one => one.open = true);
  const wide = [...page.querySelectorAll("body *")].filter(
    one => !one.closest("{scrolls} svg, .notice") && one.getBoundingClientRect().right > root.clientWidth + 1);
  const broken = [...page.querySelectorAll(".whole")].filter(one => {{
    const words = page.createRange();
    words.selectNodeContents(one);
    return words.getClientRects().length > 1 && (one.closest("pre") || one.textContent.length < 25);
  }});
  for (const head of page.querySelectorAll(".numbers th")) {{
    const split = [...head.textContent.matchAll(/[a-z0-9]+/gi)].some(word => {{
      const letters = page.createRange();
      letters.setStart(head.firstChild, word.index);
      letters.setEnd(head.firstChild, word.index + word[0].length);
      return letters.getClientRects().length > 1;
    }});
    if (split) broken.push(head);
  }}
  const crossed = [], letters = one => {{ // without the space above and below them
    const {{x, y, width, height}} = one.getBBox();
    return [one.textContent, {{left: x, right: x + width, top: y + height / 4, bottom: y + 3 * height / 4}}];
  }};
  for (const picture of page.querySelectorAll("svg.picture")) {{
    const texts = [...picture.querySelectorAll("text")].map(letters);
    texts.forEach(([words, a], at) => texts.slice(at + 1).forEach(([other, b]) => {{
      const meet = a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
      if (meet) crossed.push(words + " / " + other);
    }}));
    const labels = [...picture.querySelectorAll("text.label")].map(letters);
    for (const curve of picture.querySelectorAll("polyline, line, circle")) {{
      const length = curve.getTotalLength();
      for (const [words, box] of labels) {{
        for (let at = 0; at <= length; at += 1) {{
          const {{x, y}} = curve.getPointAtLength(at);
          if (box.left < x && x < box.right && box.top < y && y < box.bottom) {{
            crossed.push(words + " / " + curve.outerHTML.slice(0, 60));
            break;
          }}
        }}
      }}
    }}
  }}
  document.title = JSON.stringify([root.scrollWidth, root.clientWidth,
    ...[wide, broken].map(found => found.map(one => one.outerHTML.slice(0, 90))), crossed]);
}})</script>"""


@pytest.fixture
def page(measured_runs, searched, tmp_path):
    """A page with all pictures, that of a search among them."""
    out = Path(shutil.copytree(measured_runs, tmp_path / "measured"))
    shutil.copytree(searched / "search", out / "search")
    path = tmp_path / "page.html"
    path.write_text(render(load(out)), encoding="utf-8")
    return path


#: The width of what is printed on A4, 210 mm without its margins, in the browser's 96 pixels of an inch.
A4_PIXELS = int((210 - 2 * 12) / 25.4 * 96)


@pytest.mark.parametrize(("width", "printed"), [(360, False), (1280, False), (A4_PIXELS, True)])
def test_nothing_is_wider_than_the_screen_or_paper_and_no_words_are_broken_or_crossed(page, tmp_path, width, printed):
    if printed:  # as on the screen; nothing scrolls on paper
        assert "@page { size: A4; margin: 13mm 12mm; }" in CSS
        page.write_text(page.read_text(encoding="utf-8").replace("@media print", "@media screen"), encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width, scrolls="" if printed else ".wide, pre,"))
    done = chromium(tmp_path, "--window-size=1400,4200", "--dump-dom", "--virtual-time-budget=5000", frame.as_uri())
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title and json.loads(unescape(title[1])) == [width, width, [], [], []]
    assert "CONSOLE" not in done.stderr


def test_it_prints_without_an_error_and_on_few_pages(page, tmp_path):
    done = chromium(tmp_path, f"--print-to-pdf={tmp_path / 'page.pdf'}", page.as_uri())
    assert "CONSOLE" not in done.stderr
    pdf = (tmp_path / "page.pdf").read_bytes()
    pages = re.findall(rb"<<\s*/Type\s*/Page\b(.*?)>>\s*endobj", pdf, re.DOTALL)
    assert pdf.startswith(b"%PDF-") and 3 <= len(pages) <= 16
    for sheet in pages:
        box = [float(number) for number in re.search(rb"/MediaBox \[([^\]]*)\]", sheet)[1].split()]  # type: ignore[index]
        assert box == pytest.approx([0, 0, 595.3, 841.9], abs=0.6)  # A4, in points
        assert drawn(pdf, sheet).count(b"Tj") + drawn(pdf, sheet).count(b"TJ") > 20  # texts: no page is empty


def drawn(pdf, page):
    """Return what is drawn on a page of a PDF file."""
    (number,) = re.findall(rb"/Contents (\d+) 0 R", page)
    begin = pdf.index(b"stream", pdf.index(b"\n" + number + b" 0 obj")) + len(b"stream")
    return zlib.decompress(pdf[begin : pdf.index(b"endstream", begin)].lstrip(b"\r\n"))


def read_in_a_frame(tmp_path, index, width, script):
    """Show the published results in a frame of that width; return what the script says of them."""
    (tmp_path / "page.html").write_text(explorer_page(index), encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<!DOCTYPE html><title>-</title><iframe src="page.html" style="width:{width}px;height:4000px;border:0">'
        '</iframe><script>addEventListener("load", () => { const page = '
        f'document.querySelector("iframe").contentDocument; {script} }})</script>'
    )
    done = chromium(tmp_path, "--dump-dom", "--virtual-time-budget=5000", frame.as_uri())
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title and "CONSOLE" not in done.stderr, done.stderr[-400:]
    return json.loads(unescape(title[1]))


def test_published_results_fit_a_phone_and_the_script_of_the_page_runs(neural_magic, tmp_path):
    index = read_index(neural_magic.parents[1], tmp_path / "kept")
    script = """page.querySelector("th.num button").click();
        page.querySelector("input[type=search]").value = "fp8 server";
        page.querySelector("input[type=search]").dispatchEvent(new Event("input"));
        const last = [...page.querySelectorAll("tbody tr")].map(row => row.cells[7].dataset.sort);
        document.title = JSON.stringify(
            [page.documentElement.scrollWidth, page.querySelector("#count").textContent, last]);"""
    width, count, counts = read_in_a_frame(tmp_path, index, 360, script)
    assert width == 360 and count == "2 of 10 results"
    assert [int(count) for count in counts] == sorted((row.accelerators for row in index.rows), reverse=True)


@pytest.mark.parametrize("width", [360, 703, 1000, 1280])
def test_every_column_of_published_results_lies_on_the_screen(neural_magic, tmp_path, width):
    index = read_index(neural_magic.parents[1], tmp_path / "kept")
    rows = [
        replace(
            row, weights="weights in FP4 with scales of 16 values, " * 20, power_w=5000.0, codes={"error A-CODE": 2}
        )
        for row in index.rows
    ]
    script = """const cells = [...page.querySelectorAll("thead th, tbody td, tbody th")];
        document.title = JSON.stringify([page.querySelectorAll("thead th").length,
            Math.max(...cells.map(one => one.getBoundingClientRect().right))]);"""
    columns, right = read_in_a_frame(tmp_path, Index(tuple(rows), 1, 0), width, script)
    assert columns == 16 and right <= width


def test_the_picture_of_the_readme_is_small():
    root = Path(__file__).parents[2]
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (root / "README.md").read_text(encoding="utf-8"))
    assert pictures and all((root / picture).stat().st_size < PICTURE_BYTES for picture in pictures)


def luminance(colour):
    digits = colour.lstrip("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, other):
    low, high = sorted((luminance(first), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def schemes():
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.S)
    colours = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})", block)) for block in blocks]
    return dict(zip(("light", "dark", "print"), colours, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_colours_have_the_contrast_of_wcag_aa(scheme):
    colours = schemes()[scheme]
    for ground in ("paper", "panel"):
        for text in ("ink", "soft", "good", "bad", "open"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (scheme, text, ground)
    for mark in ("bar", "bar-2", "bar-3", "bad"):
        assert contrast(colours[mark], colours["paper"]) >= 3, (scheme, mark)
    assert contrast(colours["loud"], colours["loud-paper"]) >= 4.5
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
