// Draws a figure when it comes near the screen, in the colours of the theme, and again when the theme changes. On a
// touch screen a finger on a figure scrolls the page rather than zooming. Plotly's own default is a button that sends
// the figure's data to its makers' cloud: what a report of private silos holds must stay in it.
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const themed = layout => {
    const set = {"font.color": colour("--ink"), "font.family": getComputedStyle(document.body).fontFamily,
      "hoverlabel.bgcolor": colour("--card"), "hoverlabel.bordercolor": colour("--line"),
      "hoverlabel.font.color": colour("--ink"), "modebar.color": colour("--soft"),
      "modebar.activecolor": colour("--ink"), "modebar.bgcolor": "rgba(0,0,0,0)"};
    for (const key of Object.keys(layout)) if (/^[xy]axis[0-9]*$/.test(key)) {
      set[key + ".gridcolor"] = colour("--grid");
      set[key + ".linecolor"] = colour("--line");
      set[key + ".zerolinecolor"] = colour("--line");
      set[key + ".tickcolor"] = colour("--line");
    }
    (layout.sliders || []).forEach((_, i) => {
      set[`sliders[${i}].bgcolor`] = colour("--soft");
      set[`sliders[${i}].activebgcolor`] = colour("--accent");
      set[`sliders[${i}].bordercolor`] = colour("--line");
      set[`sliders[${i}].tickcolor`] = colour("--soft");
    });
    return set;
  };
  const config = {responsive: true, showSendToCloud: false, plotlyServerURL: "", displaylogo: false,
    displayModeBar: touch ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"]};
  const drawn = new Set();
  const draw = (box, figure) => {
    figure = figure || JSON.parse(box.querySelector("script").textContent);
    if (touch) figure.layout.dragmode = false;
    figure.config = config;
    const plot = box.querySelector(".plot");
    drawn.add(plot);
    const listed = figure.layout.showlegend === false ? [] : figure.data;
    const named = listed.filter(line => line.showlegend !== false && line.visible !== false).length;
    if (plot.clientWidth < 500 && named > 8) {  // two names a line; more than four lines would eat the figure
      figure.layout.height += 20 * (named - 8);
      plot.style.height = figure.layout.height + "px";
    }
    return Plotly.newPlot(plot, figure).then(() => Plotly.relayout(plot, themed(figure.layout)));
  };
  const near = new IntersectionObserver(entries => entries.forEach(entry => {
    if (entry.isIntersecting) { near.unobserve(entry.target); draw(entry.target); }
  }), {rootMargin: "800px"});
  const boxes = [...document.querySelectorAll(".figure")].filter(box => box.querySelector("script"));
  boxes.forEach(box => near.observe(box));
  window.addEventListener("beforeprint", () => boxes.forEach(box => {
    if (!drawn.has(box.querySelector(".plot")) && !box.closest("[hidden]")) { near.unobserve(box); draw(box); }
  }));
  dark.addEventListener("change", () => drawn.forEach(plot => Plotly.relayout(plot, themed(plot.layout))));

  // One of several blocks at a time.
  document.querySelectorAll("select[data-blocks]").forEach(select => select.addEventListener("change", () =>
    [...select.closest(".blocks").querySelectorAll(":scope > .choice")].forEach((choice, i) => {
      choice.hidden = i !== select.selectedIndex;
    })));
  // The lines of one silo at a time.
  document.querySelectorAll("select[data-lines]").forEach(select => select.addEventListener("change", () => {
    const plot = select.closest(".lines").querySelector(".plot");
    const shown = plot.data.map(line => line.meta === null || line.meta === undefined || line.meta === select.selectedIndex);
    Plotly.restyle(plot, {visible: shown});
  }));
  window.coterie = {draw, themed, config};
})();
