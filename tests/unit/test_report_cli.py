"""`mpicoll report`: what it prints, writes and refuses."""

from __future__ import annotations

import builtins
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support import command, golden
from unit.report_data import result, results, write

DATA = Path(__file__).parent / "data"


@pytest.fixture
def ours(tmp_path):
    return write(tmp_path / "ours.jsonl", results(("allreduce", "barrier"), ((4, 1), (8, 2)), (8, 65536)))


def run(*args, **how):
    return command.run("report", *args, **how)


def good(*args):
    return command.good("report", *args)


def refused(*args, status=2):
    """Return the last line, after those that say which files were read."""
    result = run(*args)
    last = result.stderr.splitlines()[-1]
    assert result.exit_code == status and last.startswith("mpicoll"), result.output
    return last


def line(output: str, *words: str) -> str:
    """Return the first line that has all these words."""
    return next(text for text in output.splitlines() if all(word in text for word in words))


def test_tables(tmp_path):
    """Of every kind of row: timed or not, wrong, late, unpaired, overlapping; and of other programs."""
    lines = [*results(("allreduce",), ((8, 2),), (8, 65536)), *results(("barrier", "allgather"), ((4, 1),), (8,))]
    output = good(write(tmp_path / "ours", lines)) + good(DATA / "imb-nbc.txt", DATA / "osu-several.txt")
    golden.compare(output, "report-tables.txt")
    assert "1 line left out, not whole" in run(DATA / "osu-several.txt").stderr


def test_only_some_collectives(ours):
    assert "allreduce" not in good(ours, "--collectives", "barrier")
    assert "has no scan; it has allreduce, barrier" in refused(ours, "--collectives", "scan")


def test_comparison(ours, tmp_path):
    places = ((4, 1), (8, 2))
    slow = write(tmp_path / "slow", results(("allreduce",), places, (8, 65536), faster=0.7, seed=1), commit="other")
    output = good(ours, slow, "--compare")
    assert "The environments differ" in output and "0123456789abcdef" in line(output, "commit", "other")
    assert "slower" in line(output, "rabenseifner")
    assert "only in" in output and "barrier" in line(output, "only in")
    summary = output.splitlines()[-1]
    assert re.fullmatch(r"76 rows: 0 faster, 7\d slower, \d no difference, 0 too few; geometric mean of the ratios "
                        r"0\.(69|70)\d; 4 not timed in both", summary), summary  # fmt: skip
    assert run(ours, slow, "--compare", "--fail-if-slower").exit_code == 1
    assert run(slow, ours, "--compare", "--fail-if-slower").exit_code == 0
    assert run(ours, ours, "--compare", "--fail-if-slower").exit_code == 0
    assert run(ours, slow, "--compare", "--fail-if-slower", "--tolerance", "80").exit_code == 0
    assert "changes up to 80 % are none" in good(ours, slow, "--compare", "--tolerance", "80")


def test_an_answer_that_became_wrong_fails_too(tmp_path):
    row = result("bcast", "chain", 8, 4, 1)
    right, wrong = write(tmp_path / "right", [row]), write(tmp_path / "wrong", [row | {"valid": False}])
    done = run(right, wrong, "--compare", "--fail-if-slower")
    assert done.exit_code == 1 and "wrong answer in" in done.stdout and "1 wrong now" in done.stdout


@pytest.mark.once
def test_page(ours, tmp_path):
    page = tmp_path / "report.html"
    output = good(ours, DATA / "imb-4.txt", "-o", page, "--title", "A <title>")
    assert "report.html:" in output and "allreduce, blocking" not in output
    text = page.read_text(encoding="utf-8")
    assert "<title>A &lt;title&gt;</title>" in text
    assert str(tmp_path) not in text  # a page is made to be given away
    outside = re.findall(
        r"""(?:src|href)=["'](?!#|data:)[^"']+|@import|url\(\s*["']?https?:""", text.split("<script>")[0]
    )
    assert outside == [] and '<link rel="stylesheet' not in text
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 3
    data = json.loads(scripts[1])
    assert [chart["name"] for chart in data["collectives"]] == ["allreduce", "barrier", "pingpong", "sendrecv"]
    (blocking, nonblocking, float32) = data["collectives"][0]["settings"]
    assert [place["title"] for place in blocking["places"]] == ["4 ranks on 1 host", "8 ranks on 2 hosts"]
    assert len(blocking["places"][0]["rows"]) == 2 * 15
    assert blocking["families"][0]["x"] == "hosts" and nonblocking["variant"] == "nonblocking, float64, sum"
    assert float32["variant"] == "blocking, float32, sum"


@pytest.mark.usefixtures("without_charts")
def test_data_cannot_end_the_script_it_stands_in(tmp_path):
    row = result("bcast", "chain", 8, 4, 1) | {"note": "</script><!--<script>alert(1)"}
    path = write(tmp_path / "a", [row], cpu="</td><script>")
    page = tmp_path / "p.html"
    good(path, "-o", page)
    text = page.read_text(encoding="utf-8")
    assert len(re.findall("<script[ >]", text.split("<body>")[0] + text.split("</main>")[1])) >= 3
    assert "</script><!--" not in text and "</td><script>" not in text
    (data,) = re.findall(r'<script id="data"[^>]*>(.*?)</script>', text, re.DOTALL)
    assert json.loads(data)["collectives"][0]["settings"][0]["places"][0]["rows"][0]["note"] == row["note"]


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_pictures(tmp_path):
    path = write(tmp_path / "a", results(("bcast", "barrier"), ((4, 1), (8, 2)), (8, 65536)))
    pngs, svgs = tmp_path / "deep" / "png", tmp_path / "svg"
    assert "6 PNG files" in good(path, "--collectives", "barrier", "--png", pngs) and "SVG" in good(path, "--svg", svgs)
    assert all(p.read_bytes().startswith(b"\x89PNG") and p.stat().st_size > 4000 for p in pngs.iterdir())
    assert {p.stem for p in pngs.iterdir()} < {p.stem for p in svgs.iterdir()}
    assert {"bcast-blocking-float64-root-0-best", "bcast-blocking-float64-root-0-8-ranks-on-2-hosts-time",
            "bcast-blocking-float64-root-0-4-ranks-on-1-host-ratio", "barrier-blocking-4-ranks-on-1-host-time",
            "bcast-blocking-float64-root-0-64-kib-4-ranks-per-host-over-hosts"} <= {p.stem for p in svgs.iterdir()}
    curves = (svgs / "bcast-blocking-float64-root-0-8-ranks-on-2-hosts-time.svg").read_text()
    ElementTree.fromstring(curves)
    words = ("native", "knomial(k=4)", "64 KiB", "limit of the links", "8 ranks on 2 hosts")
    assert all(word in curves for word in words) and "dissemination" not in curves  # which is of the barrier


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--compare"], "--compare takes two files, the old one and the new one; 1 given"),
        (["--fail-if-slower"], "--fail-if-slower and --tolerance need --compare"),
        (["--tolerance", "3"], "--fail-if-slower and --tolerance need --compare"),
        (["--title", "x"], "--title is of the page that --output FILE writes"),
        (["--tolerance", "-1"], "-1"),
        (["--compare", "--tolerance", "nan", "FILE"], "--tolerance is nan"),
        (["--compare", "--tolerance", "inf", "FILE"], "--tolerance is inf"),
    ],
)
def test_options_that_do_not_go_together(ours, options, message):
    assert message in refused(ours, *(ours if word == "FILE" else word for word in options))


@pytest.mark.usefixtures("without_charts")
def test_bad_files_and_places(ours, tmp_path):
    assert "cannot read nothing.jsonl: No such file" in refused("nothing.jsonl")
    old = write(tmp_path / "old", [])
    old.write_text(old.read_text().replace('"schema": 2', '"schema": 1'))
    assert "has schema 1, and this mpicoll reads schema 2" in refused(old)
    assert "goes with none of" in refused(ours, ours, "--compare", "-o", "x.html")
    assert "have no row in common" in refused(ours, DATA / "imb-2.txt", "--compare")
    assert "cannot write" in refused(ours, "-o", tmp_path / "none" / "x.html", status=1)
    assert "cannot write" in refused(ours, "--svg", ours, status=1)
    assert "Missing argument" in refused()


@pytest.mark.parametrize(("options", "module"), [
    (["-o", "x.html"], "jinja2"), (["--png", "x"], "vl_convert"), (["--svg", "x"], "altair"), (["--compare"], "scipy"),
])
def test_a_missing_package_is_one_line(ours, tmp_path, monkeypatch, options, module):
    monkeypatch.chdir(tmp_path)
    real = builtins.__import__

    def missing(name, *args, **others):
        if name.partition(".")[0] == module:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return real(name, *args, **others)

    for name in [name for name in sys.modules if name.startswith("mpicoll.benchmarks.report") or name == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", missing)
    files = [ours, ours] if options == ["--compare"] else [ours]
    message = refused(*files, *options, status=1)
    assert module in message and "pip install 'mpicoll[report]'" in message
    assert not (tmp_path / "x").exists() and not (tmp_path / "x.html").exists()


def test_it_starts_no_mpi_and_loads_no_plots_for_tables(ours):
    code = (
        "import sys; from mpicoll import cli\n"
        f"cli.main(['report', {str(ours)!r}], standalone_mode=False)\n"
        "bad = {'mpi4py', 'altair', 'scipy', 'vl_convert'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_rank_0_speaks(ours):
    done = run(ours, env={"PMI_RANK": "1"})
    assert done.exit_code == 0 and done.output == ""
