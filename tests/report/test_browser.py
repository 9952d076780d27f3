"""The report in a real browser, from disk and without a network."""

import numpy as np
import pytest

from coterie.report.html import plot
from coterie.report.page import POLICY, asset, shell
from coterie.report.trajectories import drawn, trajectories

pytestmark = pytest.mark.slow

DRAWN = "document.querySelectorAll('.figure .main-svg').length > 0"
EVERY_FIGURE = """
async () => {
  for (const box of document.querySelectorAll('.figure')) {
    if (box.closest('[hidden]')) continue;
    box.scrollIntoView();
    while (!box.querySelector('.main-svg')) await new Promise(done => setTimeout(done, 20));
  }
  window.scrollTo(0, 0);
}
"""


def until(page, expression, argument=None):
    """Wait until it holds; a page's policy forbids that Playwright looks again by itself."""
    for _ in range(1200):
        if page.evaluate(expression, argument):
            return
        page.wait_for_timeout(100)
    raise AssertionError(expression)


@pytest.fixture
def opened(browser, run_folder):
    """Opens the report in a context of its own; whatever the page complains of fails the test."""
    contexts, complaints = [], []

    def open_report(**options):
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)  # the machine may be busy
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: complaints.append(request.url) if request.url[:4] == "http" else None)
        page.goto((run_folder / "report.html").as_uri())
        page.evaluate("document.querySelector('.figure').scrollIntoView()")  # that draws it
        until(page, DRAWN)
        page.evaluate("window.scrollTo(0, 0)")
        return page

    yield open_report
    for context in contexts:
        context.close()
    assert complaints == []


def test_every_figure_is_drawn(opened):
    page = opened()
    page.evaluate(EVERY_FIGURE)
    shown = page.locator(".figure:visible")
    assert shown.count() == page.locator(".figure:visible .main-svg:first-child").count() > 8
    assert page.locator("h2").first.inner_text() == "The decision"


def test_the_navigation_stays_in_sight_and_leads_to_every_part(opened):
    page = opened(viewport={"width": 420, "height": 800})
    links = page.locator("nav a")
    assert links.all_inner_texts() == ["Decision", "Evidence", "Predictions", "Training"]
    for i in range(links.count()):
        links.nth(i).click()
        part = links.nth(i).get_attribute("href")
        near = f"Math.abs(document.querySelector('{part}').getBoundingClientRect().top) < 80"
        until(page, f"{near} || window.scrollY + window.innerHeight >= document.body.scrollHeight - 1")
        assert page.evaluate("document.querySelector('nav').getBoundingClientRect().top") >= 0


def test_the_slider_moves_the_heat_map(opened):
    page = opened()
    page.evaluate(EVERY_FIGURE)
    weights = "() => JSON.stringify(document.querySelector('.slider-container').closest('.js-plotly-plot').data[0].z)"
    last = page.evaluate(weights)
    page.locator(".slider-container").first.scroll_into_view_if_needed()
    grip = page.locator(".slider-container .slider-grip-rect").first.bounding_box()
    rail = page.locator(".slider-container .slider-rail-rect").first.bounding_box()
    page.mouse.move(grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2)
    page.mouse.down()
    page.mouse.move(rail["x"] + 2, grip["y"] + grip["height"] / 2, steps=4)
    page.mouse.up()
    until(page, "before => (" + weights + ")() !== before", last)


def test_the_legend_hides_a_method(opened):
    page = opened()
    page.evaluate(EVERY_FIGURE)
    line = page.locator(".figure", has=page.locator(".legendtoggle")).filter(has_text="fedamp (cloud)").first
    toggle = line.locator(".legendtoggle").first
    toggle.scroll_into_view_if_needed()
    toggle.click()
    hidden = "p => p.data.some(line => line.visible === 'legendonly')"
    until(page, hidden, line.locator(".js-plotly-plot").element_handle())


def test_one_method_or_silo_is_shown_at_a_time(opened):
    page = opened()
    chooser = page.locator("select[data-lines]:visible").first
    chooser.scroll_into_view_if_needed()
    plot = "s => s.closest('.lines').querySelector('.plot')"
    until(page, "s => (" + plot + ")(s).data", chooser.element_handle())
    chooser.select_option(index=1)
    shown = "s => (" + plot + ")(s).data.filter(t => t.visible).every(t => t.meta === 1)"
    until(page, shown, chooser.element_handle())
    blocks = page.locator(".blocks", has=page.locator("select[data-blocks]")).last
    blocks.locator("select[data-blocks]").select_option(index=1)
    assert blocks.locator("> .choice").nth(0).is_hidden() and blocks.locator("> .choice").nth(1).is_visible()
    blocks.locator("> .choice").nth(1).locator(".main-svg").first.wait_for()


def test_dark_mode_changes_the_page_and_its_figures(opened):
    page = opened(color_scheme="light")
    of_figure = "document.querySelector('.js-plotly-plot').layout.font.color"
    colours = f"() => [getComputedStyle(document.body).backgroundColor, {of_figure}]"
    until(page, of_figure)
    light = page.evaluate(colours)
    page.emulate_media(color_scheme="dark")
    until(page, "before => (" + colours + ")().every((colour, i) => colour !== before[i])", light)


def test_a_phone_scrolls_down_only(opened):
    page = opened(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    page.evaluate(EVERY_FIGURE)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("[...document.querySelectorAll('.figure')].every(f => f.getBoundingClientRect().right <= 390)")


def test_lines_without_a_legend_make_no_figure_taller(browser, tmp_path):
    trace = {"silos": np.array([f"s{i}" for i in range(30)]), "rounds": np.arange(3), "drift": np.ones((3, 30))}
    figure = drawn(next(trajectories(trace)))
    (tmp_path / "page.html").write_text(shell("many", "", plot(figure), asset("page.js"), POLICY), "utf-8")
    page = browser.new_page(viewport={"width": 420, "height": 800})
    page.goto((tmp_path / "page.html").as_uri())
    until(page, DRAWN)
    assert len(figure.data) == 30
    assert page.locator(".plot").evaluate("plot => plot.clientHeight") == figure.layout.height
