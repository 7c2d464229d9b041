"""The built site as a browser shows it: nothing runs out of its box, no formula is left raw, nothing is missing.

Needs Sphinx and its extensions (extra ``docs``) and a Chromium (Debian: ``apt-get install chromium``).
"""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MODULES = (
    "bounds",
    "design",
    "engine",
    "inference",
    "observations",
    "pairs",
    "penalties",
    "plotting",
    "solvers",
    "stochastic",
)
MODULES += ("batch",)

pytest.importorskip("sphinx")
pytest.importorskip("myst_nb")

# What a reader would call broken. Boxes of code and of output must hold their lines in a window of 1400 pixels, and
# only tables, which scroll in their own box, may be wider than their column.
FAULTS = r"""() => {
  const faults = [], article = document.querySelector('article') ?? document.body;
  const shown = node => node.getClientRects().length > 0;
  for (const pre of article.querySelectorAll('pre'))
    if (shown(pre) && pre.scrollWidth > pre.clientWidth + 1)
      faults.push(`code runs out of its box by ${pre.scrollWidth - pre.clientWidth} px: ` +
        pre.textContent.split('\n').sort((a, b) => b.length - a.length)[0]);
  for (const image of document.querySelectorAll('img'))
    if (!image.complete || image.naturalWidth === 0) faults.push(`missing image: ${image.getAttribute('src')}`);
  const column = article.getBoundingClientRect().right;
  for (const node of article.querySelectorAll('p, img, dt, .sd-card, mjx-container'))
    if (shown(node) && !node.closest('.pst-scrollable-table-container') &&
        node.getBoundingClientRect().right > column + 1)
      faults.push(`wider than its column: ${node.tagName} ${node.textContent.slice(0, 60)}`);
  for (const math of article.querySelectorAll('.math'))
    if (!math.querySelector('mjx-container')) faults.push(`formula left raw: ${math.textContent.slice(0, 60)}`);
  for (const error of document.querySelectorAll('mjx-merror, [data-mjx-error]'))
    faults.push(`formula with an error: ${error.getAttribute('data-mjx-error')}`);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const home = text.parentElement;
    if (home.closest('pre, code, script, style, mjx-container, .math') || !shown(home)) continue;
    const raw = text.data.match(/\\[(\[]|\\(frac|sum|le|ge|ell|nabla|lVert|eta|mathbb)\b|\$\$/);
    if (raw) faults.push(`raw TeX: ${text.data.slice(0, 60)}`);
  }
  return faults;
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site: its warnings, broken links among them, are errors."""
    out = tmp_path_factory.mktemp("site") / "html"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", f"{out}-trees"]
    done = subprocess.run(
        [*command, str(ROOT / "docs"), str(out)],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def browser():
    """A headless browser."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH")
    with playwright.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser):
    """A page 1400 pixels wide that records its network requests."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.asked = []
    page.on("request", lambda request: page.asked.append(request.url))
    yield page
    page.close()


def look(page, path):
    """Faults of a page, and the addresses of its links."""
    page.asked.clear()
    page.goto(path.as_uri())
    page.evaluate("async () => { await window.MathJax?.startup?.promise }")
    faults = page.evaluate(FAULTS)
    faults += [f"asks the network for {url}" for url in page.asked if not url.startswith(("file:", "data:"))]
    return faults, page.evaluate("() => [...document.querySelectorAll('a[href]')].map(a => a.href)")


def pages_of(site):
    """Pages that people read; the sources of modules are listings of our code, not pages."""
    return [
        path for path in sorted(site.rglob("*.html")) if "_modules" not in path.parts and "_static" not in path.parts
    ]


@pytest.mark.parametrize(
    "every", [pytest.param(10, marks=pytest.mark.thorough), pytest.param(1, marks=pytest.mark.slow)]
)
def test_no_page_is_broken(site, page, every):
    """Check some pages of the reference, which are generated alike, and all other pages."""
    broken, links = {}, set()
    reference = [path for path in pages_of(site) if path.parent.name == "generated"]
    for path in [path for path in pages_of(site) if path not in reference] + reference[::every]:
        faults, found = look(page, path)
        links.update(found)
        if faults:
            broken[str(path.relative_to(site))] = faults
    inside = {
        unquote(link.partition("#")[0].partition("?")[0]).removeprefix("file://")
        for link in links
        if link.startswith("file:")
    }
    missing = [link for link in sorted(inside) if not Path(link).exists()]
    assert len(pages_of(site)) > 100
    assert not missing, "links to nothing:\n" + "\n".join(missing)
    assert not broken, "\n".join(f"{name}: {fault}" for name, faults in broken.items() for fault in faults)


@pytest.mark.thorough
def test_every_notebook_can_be_downloaded_unchanged(site, page):
    for notebook in sorted((ROOT / "docs" / "gallery").glob("*.ipynb")):
        page.goto((site / "gallery" / f"{notebook.stem}.html").as_uri())
        links = page.evaluate("() => [...document.querySelectorAll('a.download')].map(a => a.href)")
        files = [Path(unquote(link.removeprefix("file://"))) for link in links]
        assert [file.name for file in files] == [notebook.name, f"{notebook.stem}.py"]
        assert files[0].read_bytes() == notebook.read_bytes()
        assert files[1].read_bytes() == (ROOT / "examples" / files[1].name).read_bytes()


@pytest.mark.thorough
def test_every_public_class_and_function_has_a_page(site):
    have = {path.stem for path in (site / "api" / "generated").glob("*.html")}
    for module in ("glmfit", *(f"glmfit.{name}" for name in MODULES)):
        content = importlib.import_module(module)
        names = {name for name in content.__all__ if callable(getattr(content, name))}
        assert {f"{module}.{name}" for name in names} <= have


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("<pre style='width: 200px; overflow: auto'>" + "x" * 200 + "</pre>", "code runs out of its box"),
        ("<img src='nowhere.png'>", "missing image"),
        ("<p>so that \\(x\\) is small</p>", "raw TeX"),
        ("<span class='math'>\\frac12</span>", "formula left raw"),
        ("<p style='width: 3000px'>wide</p>", "wider than its column"),
        ("<script src='https://example.invalid/x.js'></script>", "asks the network"),
    ],
)
def test_a_broken_page_is_noticed(body, fault, page, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(f"<article style='width: 800px'>{body}</article>")
    assert any(fault in found for found in look(page, path)[0])
    path.write_text("<article style='width: 800px'><p>all is well</p></article>")
    assert look(page, path)[0] == []
