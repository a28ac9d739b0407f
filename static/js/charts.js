// uPlot with the portal's colours: one line per metric over steps, extra points for held-out results.
/* global uPlot */

const FEW_POINTS = 12; // of a line: up to here each one is marked
const STEP_INCREMENTS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000];

/** Canvas needs a colour, not a custom property: let the browser resolve it. */
function colour(token) {
  const probe = document.createElement("span");
  probe.style.color = `var(${token})`;
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}

function number(value, digits = 3) {
  return value == null ? "–" : value.toFixed(digits);
}

/** In the legend a gap shows what was measured last before it. */
function shown(plot, value, series, digits) {
  if (value != null || plot.legend?.idx == null) return number(value, digits);
  const earlier = plot.data[series].slice(0, plot.legend.idx).filter((each) => each != null);
  return number(earlier.at(-1), digits);
}

/** While nothing is pointed at, the legend shows the latest step. */
function showLatest(plot) {
  if (plot.cursor.idx == null) plot.setLegend({ idx: plot.data[0].length - 1 }, false);
}

function axis(values, size) {
  return {
    stroke: colour("--text-3"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: colour("--chart-grid"), width: 1 },
    ticks: { show: false },
    size,
    gap: 6,
    values,
  };
}

function seriesOptions({ label, token, shape = "line", digits = 3 }) {
  const stroke = colour(token);
  const common = { label, stroke, value: (plot, value, series) => shown(plot, value, series, digits), spanGaps: true };
  if (shape === "points") {
    const points = { show: true, size: 9, width: 2, stroke, fill: colour("--surface") };
    return { ...common, paths: () => null, points, width: 0 };
  }
  const points = { size: 5, show: (plot) => plot.data[0].length <= FEW_POINTS };
  return { ...common, width: 2, dash: shape === "dashed" ? [5, 4] : undefined, points };
}

/** A chart in `container` (its data-label names it). `series`: [{key, label, token, shape, digits}].
 * `range`: [low, high] of the y axis, or null to follow the data. */
export class Chart {
  #plot = null;

  constructor(container, { series, range = null, height = 220, syncKey = "job" }) {
    Object.assign(this, { container, series, range, height, syncKey });
    this.data = [[], ...series.map(() => [])];
    new ResizeObserver(() => this.#resize()).observe(container);
    document.addEventListener("themechange", () => this.#build());
  }

  /** `points`: Map step -> {key: value}; several series share the steps. */
  setPoints(points) {
    const steps = [...points.keys()].sort((a, b) => a - b);
    this.data = [steps, ...this.series.map(({ key }) => steps.map((step) => points.get(step)[key] ?? null))];
    const empty = steps.length === 0;
    this.container.classList.toggle("chart--empty", empty);
    if (empty) return;
    if (this.#plot) this.#plot.setData(this.data);
    else this.#build();
    this.#describe();
  }

  #build() {
    if (this.data[0].length === 0) return;
    this.#plot?.destroy();
    this.container.replaceChildren();
    const options = {
      width: this.container.clientWidth,
      height: this.height,
      padding: [10, 10, 0, 0],
      cursor: { sync: { key: this.syncKey }, y: false, drag: { x: false, y: false }, points: { size: 7 } },
      legend: { live: true },
      hooks: { ready: [showLatest], setCursor: [showLatest], setData: [showLatest] },
      scales: {
        x: { time: false, range: (_plot, low, high) => [Math.min(low, 0), Math.max(high, 2)] },
        y: { range: this.range ?? ((_plot, low, high) => this.#padded(low, high)) },
      },
      axes: [
        { ...axis((_plot, splits) => splits, 26), incrs: STEP_INCREMENTS },
        axis((_plot, splits) => splits.map((v) => +v.toPrecision(6)), 40),
      ],
      series: [{ label: "Step", value: (_plot, value) => value ?? "–" }, ...this.series.map(seriesOptions)],
    };
    this.#plot = new uPlot(options, this.data, this.container);
    this.#describe();
  }

  #padded(low, high) {
    if (low == null) return [0, 1];
    const margin = Math.max((high - low) * 0.12, Math.abs(high) * 0.05, 1e-6);
    return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
  }

  #resize() {
    const width = this.container.clientWidth;
    if (this.#plot && width && width !== this.#plot.width) this.#plot.setSize({ width, height: this.height });
  }

  /** The same in words for those who do not see the canvas. */
  #describe() {
    const latest = this.series.map(({ label, digits }, index) => {
      const values = this.data[index + 1].filter((value) => value != null);
      return values.length ? `${label}: first ${number(values[0], digits)}, latest ${number(values.at(-1), digits)}` : "";
    });
    const steps = this.data[0].at(-1);
    const text = `${this.container.dataset.label}, up to step ${steps}. ${latest.filter(Boolean).join("; ")}.`;
    this.container.setAttribute("role", "img");
    this.container.setAttribute("aria-label", text);
  }
}
