from __future__ import annotations
import shutil
from pathlib import Path
import pytest
from cm4vllm.report.model import load
from cm4vllm.report.summary import summary_html
from cm4vllm.report.readme import measurement_readmes
from cm4vllm.report.table import final_table

def test_whole(out: Path) -> None:
    shutil.rmtree("/tmp/exp/rep", ignore_errors=True)
    shutil.copytree(out, "/tmp/exp/rep")
    html = summary_html(out); Path("/tmp/exp/rep/summary.html").write_text(html)
    print(len(html))
    print(measurement_readmes(out)["Server"])
    print(final_table(load(out)))

def test_pub(published: Path) -> None:
    html = summary_html(published); Path("/tmp/exp/rep/published.html").write_text(html)
    print(measurement_readmes(published)["Offline"])
    print(final_table(load(published)))
