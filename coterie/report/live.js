// Asks for what is new every two seconds; a figure keeps its zoom and what is hidden in its legend.
(() => {
  const status = document.getElementById("status");
  let known = "";
  const show = state => {
    status.textContent = state.status;
    document.getElementById("progress").innerHTML = state.progress;
    document.getElementById("scores").innerHTML = state.scores;
    for (const name of ["curves", "scores"]) document.getElementById(name).closest("section").hidden = !state.scores;
    for (const [name, figure] of Object.entries(state.figures)) {
      const plot = document.getElementById(name);
      figure.layout.uirevision = name;
      figure.config = coterie.config;
      if (plot.data) {
        Plotly.react(plot, figure).then(() => Plotly.relayout(plot, coterie.themed(figure.layout)));
      } else {
        coterie.draw(plot.parentElement, figure);
      }
    }
  };
  const ask = () => fetch("/state?known=" + known).then(answer => answer.json()).then(state => {
    if (state.silos !== undefined) document.getElementById("silos").innerHTML = state.silos;
    if (state.version !== known) { known = state.version; show(state); }
  }).catch(() => { status.textContent = "`coterie watch` has ended; this page shows what it last saw."; })
    .finally(() => setTimeout(ask, 2000));
  ask();
})();
