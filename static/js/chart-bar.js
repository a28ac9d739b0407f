// The bar above a set of charts: smoothing, the x axis, and the downloads of single charts.

const STORE = "charts";

/** Wires the bar to `charts` ({id: Chart}); `slug` begins the names of downloaded files. */
export function initChartBar(charts, slug) {
  const slider = document.getElementById("smoothing");
  const output = document.querySelector('output[for="smoothing"]');
  const axes = [...document.querySelectorAll("[data-axis]")];
  const view = { smoothing: 0, axis: "step" };
  try {
    Object.assign(view, JSON.parse(localStorage.getItem(STORE)));
  } catch {
    localStorage.removeItem(STORE);
  }

  function apply() {
    slider.value = view.smoothing;
    output.textContent = Number(view.smoothing).toFixed(2);
    for (const button of axes) button.setAttribute("aria-pressed", String(button.dataset.axis === view.axis));
    for (const chart of Object.values(charts)) chart.setView(view);
    localStorage.setItem(STORE, JSON.stringify(view));
  }

  slider.addEventListener("input", () => {
    view.smoothing = Number(slider.value);
    apply();
  });
  for (const button of axes) {
    button.addEventListener("click", () => {
      view.axis = button.dataset.axis;
      apply();
    });
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-chart-png], [data-chart-csv]");
    if (!button) return;
    const id = button.dataset.chartPng ?? button.dataset.chartCsv;
    const name = `${slug}-${id.replace("chart-", "")}`;
    if (button.dataset.chartPng) charts[id].savePng(name);
    else charts[id].saveCsv(name);
  });
  apply();
}
