// Several jobs in the same charts, one line each.
import { initChartBar } from "./chart-bar.js";
import { Chart, lineToken } from "./charts.js";
import { pageData } from "./dom.js";

const { jobs, metrics } = pageData("curves");
const SHARES = new Set(["held_out", "accuracy"]);
const DIGITS = { zero_variance_groups: 0, completion_tokens_mean: 1, kl: 4 };

/** Steps and times of different jobs do not meet: each point stands at its own place on the axis. */
function merged(key, axis) {
  const points = new Map();
  jobs.forEach((job, index) => {
    for (const point of job.points) {
      if (point[key] == null) continue;
      const at = axis === "time" ? point.time : point.step;
      points.set(at, { time: at, ...points.get(at), [`job${index}`]: point[key] });
    }
  });
  return points;
}

class ComparedChart extends Chart {
  constructor(id, key) {
    const shape = key === "held_out" ? "line" : undefined;
    const series = jobs.map(({ name }, index) => ({ key: `job${index}`, label: name, token: lineToken(index), shape, digits: DIGITS[key] }));
    super(document.getElementById(id), { series, range: SHARES.has(key) ? [0, 1] : null, height: 200, syncKey: "compare" });
    this.key = key;
  }

  setView(view) {
    super.setView(view);
    this.setPoints(merged(this.key, this.view.axis));
  }
}

const charts = Object.fromEntries(
  Object.keys(metrics)
    .filter((key) => document.getElementById(`chart-${key}`))
    .map((key) => [`chart-${key}`, new ComparedChart(`chart-${key}`, key)]),
);
initChartBar(charts, "comparison");
