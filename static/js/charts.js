// uPlot with the portal's colours: one line per metric over steps or time, extra points for held-out results.
/* global uPlot */

const FEW_POINTS = 12; // of a line: up to here each one is marked
const STEP_INCREMENTS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000];
const TIME_INCREMENTS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 172_800];
const TOKENS = ["--chart-1", "--chart-2", "--chart-3", "--chart-4", "--chart-5", "--chart-6"];

/** The colour token of the n-th of several lines alike. */
export function lineToken(index) {
  return TOKENS[index % TOKENS.length];
}

/** Canvas needs a colour, not a custom property: let the browser resolve it. */
function colour(token) {
  const probe = document.createElement("span");
  probe.style.color = `var(${token})`;
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}

/** With `digits` after the point, fewer of large numbers: nobody reads the third of 1234.567. */
function number(value, digits = 3) {
  if (value == null) return "–";
  const size = Math.abs(value);
  if (value !== 0 && size < 10 ** -digits) return value.toExponential(1);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? Math.min(1, digits) : digits);
}

/** 95 -> "1:35", 5400 -> "1:30:00". */
export function clockText(seconds) {
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor((seconds % 3600) / 60)];
  const rest = String(Math.floor(seconds % 60)).padStart(2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

/** Exponential moving average, weighted so that the first values are not drawn towards 0; gaps stay gaps. */
export function smooth(values, weight) {
  let [sum, norm] = [0, 0];
  return values.map((value) => {
    if (value == null) return null;
    sum = sum * weight + value * (1 - weight);
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
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

/** What was measured, faint behind its smoothed line. */
function rawOptions({ label, token }) {
  const stroke = colour(token);
  return { label: `${label}, measured`, stroke, alpha: 0.28, width: 1, spanGaps: true, points: { show: false }, class: "u-raw" };
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** A chart in `container` (its data-label names it). `series`: [{key, label, token, shape, digits}].
 * `range`: [low, high] of the y axis, or null to follow the data. */
export class Chart {
  #plot = null;
  #points = new Map();

  constructor(container, { series, range = null, height = 220, syncKey = "job" }) {
    Object.assign(this, { container, series, range, height, syncKey });
    this.view = { smoothing: 0, axis: "step" };
    this.steps = [];
    this.values = series.map(() => []);
    new ResizeObserver(() => this.#resize()).observe(container);
    document.addEventListener("themechange", () => this.#rebuild());
  }

  /** `points`: Map step -> {time, key: value}; several series share the steps. `time`: seconds since the start. */
  setPoints(points) {
    this.#points = points;
    this.steps = [...points.keys()]
      .filter((step) => this.series.some(({ key }) => points.get(step)[key] != null))
      .sort((a, b) => a - b);
    this.values = this.series.map(({ key }) => this.steps.map((step) => points.get(step)[key] ?? null));
    if (this.steps.length === 0) return;
    this.container.parentElement.classList.remove("is-empty"); // what is not shown has no width to draw in
    if (this.#plot) this.#plot.setData(this.#data());
    else this.#rebuild();
    this.#describe();
  }

  /** Other lines than before, for what is known only once it was measured. */
  setSeries(series) {
    if (JSON.stringify(series) === JSON.stringify(this.series)) return;
    this.series = series;
    this.#plot?.destroy();
    this.#plot = null;
    this.setPoints(this.#points);
  }

  /** `view`: {smoothing: 0 to 0.95, axis: "step" | "time"}. */
  setView(view) {
    this.view = { ...this.view, ...view };
    this.#rebuild();
  }

  #data() {
    const byTime = this.view.axis === "time";
    const x = this.steps.map((step) => (byTime ? (this.#points.get(step).time ?? 0) : step));
    if (!this.view.smoothing) return [x, ...this.values];
    const lines = this.values.map((values, index) =>
      this.series[index].shape === "points" ? values : smooth(values, this.view.smoothing),
    );
    return [x, ...lines, ...this.#smoothed().map((index) => this.values[index])];
  }

  /** Indices of the series that are smoothed: single results are not. */
  #smoothed() {
    return [...this.series.keys()].filter((index) => this.series[index].shape !== "points");
  }

  #rebuild() {
    if (this.steps.length === 0) return;
    this.#plot?.destroy();
    this.container.replaceChildren();
    const byTime = this.view.axis === "time";
    const raw = this.view.smoothing ? this.#smoothed().map((index) => rawOptions(this.series[index])) : [];
    const xText = byTime ? clockText : (value) => value;
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
        { ...axis((_plot, splits) => splits.map(xText), 26), incrs: byTime ? TIME_INCREMENTS : STEP_INCREMENTS },
        axis((_plot, splits) => splits.map((v) => (v !== 0 && Math.abs(v) < 1e-3 ? Number(v.toPrecision(2)).toExponential() : +v.toPrecision(6))), 44),
      ],
      series: [
        { label: byTime ? "Time" : "Step", value: (_plot, value) => (value == null ? "–" : xText(value)) },
        ...this.series.map(seriesOptions),
        ...raw,
      ],
    };
    this.#plot = new uPlot(options, this.#data(), this.container);
    const tools = this.container.parentElement.querySelector(".chart-tools");
    if (tools) tools.hidden = false;
    this.#describe();
  }

  #padded(low, high) {
    if (low == null || (low === 0 && high === 0)) return [0, 1];
    if (low === high) return low > 0 ? [0, 2 * low] : [2 * low, 0]; // a level line, in the middle
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
      const values = this.values[index].filter((value) => value != null);
      return values.length ? `${label}: first ${number(values[0], digits)}, latest ${number(values.at(-1), digits)}` : "";
    });
    const text = `${this.container.dataset.label}, up to step ${this.steps.at(-1)}. ${latest.filter(Boolean).join("; ")}.`;
    this.container.setAttribute("role", "img");
    this.container.setAttribute("aria-label", text);
  }

  // --- downloads ------------------------------------------------------------------------------------------------

  /** As measured, whatever the smoothing. */
  saveCsv(name) {
    const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const head = ["step", "seconds", ...this.series.map(({ label }) => quoted(label))];
    const rows = this.steps.map((step, row) => [
      step,
      this.#points.get(step).time?.toFixed(3) ?? "",
      ...this.values.map((values) => values[row] ?? ""),
    ]);
    save(new Blob([[head, ...rows].map((row) => row.join(",")).join("\n") + "\n"], { type: "text/csv" }), `${name}.csv`);
  }

  /** As drawn, with its title and the names of the lines. */
  savePng(name) {
    const plot = this.#plot.ctx.canvas;
    const ratio = devicePixelRatio || 1;
    const [pad, line] = [12 * ratio, 20 * ratio];
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [plot.width + 2 * pad, plot.height + 2 * line + 2 * pad];
    const context = canvas.getContext("2d");
    context.fillStyle = colour("--surface");
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.fillStyle = colour("--text");
    context.font = `600 ${13 * ratio}px system-ui, sans-serif`;
    context.fillText(`${this.container.dataset.label}, by ${this.view.axis}`, pad, pad + line * 0.7);
    context.drawImage(plot, pad, pad + line);
    context.font = `${12 * ratio}px system-ui, sans-serif`;
    let x = pad;
    for (const { label, token } of this.series) {
      context.fillStyle = colour(token);
      context.fillRect(x, canvas.height - pad - 9 * ratio, 10 * ratio, 10 * ratio);
      context.fillStyle = colour("--text");
      context.fillText(label, x + 15 * ratio, canvas.height - pad);
      x += context.measureText(label).width + 32 * ratio;
    }
    canvas.toBlob((blob) => save(blob, `${name}.png`));
  }
}
