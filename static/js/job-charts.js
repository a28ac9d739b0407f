// The charts of the job page: which metric is drawn where, and what is computed from the metrics first.
import { Chart, lineToken } from "./charts.js";

const SMALL = 130;
const NO_PARTS = new Set(["reward_mean", "reward_std", "reward_errors"]);
const [ONE, TWO, THREE, FOUR] = [0, 1, 2, 3].map(lineToken);

const SPECS = {
  "chart-reward": {
    height: 250,
    series: [
      { key: "reward_mean", label: "Mean reward", token: ONE },
      { key: "held_out_reward", label: "Held-out reward", token: THREE, shape: "points" },
    ],
  },
  "chart-accuracy": {
    height: 250,
    range: [0, 1],
    series: [
      { key: "accuracy", label: "In training", token: TWO },
      { key: "held_out", label: "Held-out", token: THREE, shape: "points" },
    ],
  },
  "chart-parts": { series: [] },
  "chart-errors": {
    series: [
      { key: "reward_errors", label: "Errors", token: TWO, digits: 0 },
      { key: "dropped_episodes", label: "Not trained on", token: ONE, shape: "dashed", digits: 0 },
    ],
  },
  "chart-length": {
    series: [{ key: "completion_tokens_mean", label: "Mean", token: THREE, digits: 1 }],
  },
  "chart-entropy": { series: [{ key: "entropy", label: "Entropy", token: FOUR }] },
  "chart-kl": { series: [{ key: "kl", label: "KL", token: ONE, digits: 4 }] },
  "chart-clip": {
    series: [
      { key: "clip_fraction", label: "Clipped", token: ONE },
      { key: "importance_bounded_fraction", label: "Importance bounded", token: TWO, shape: "dashed" },
    ],
  },
  "chart-grad": { series: [{ key: "grad_norm", label: "Norm", token: TWO }] },
  "chart-staleness": {
    series: [
      { key: "staleness_mean", label: "Mean", token: ONE, digits: 2 },
      { key: "staleness_max", label: "Longest", token: TWO, shape: "dashed", digits: 0 },
    ],
  },
  "chart-speed": {
    series: [
      { key: "sampled_per_second", label: "Sampled", token: ONE, digits: 0 },
      { key: "train_tokens_per_second", label: "Trained", token: TWO, digits: 0 },
    ],
  },
  "chart-stages": {
    series: ["rollout", "environment", "train", "publish"].map((stage, index) => ({
      key: `${stage}_seconds`,
      label: stage[0].toUpperCase() + stage.slice(1),
      token: lineToken(index),
      digits: 2,
    })),
  },
  "chart-signal": { series: [{ key: "zero_variance_groups", label: "Groups", token: FOUR, digits: 0 }] },
  "chart-rate": { series: [{ key: "learning_rate", label: "Rate", token: ONE, digits: 6 }] },
};

/** The curves of one job, from its steps and evaluations as they come. */
export class JobCharts {
  #points = new Map(); // step -> {time, metrics and held-out results}

  /** `start`: seconds since the epoch when the job first ran; null before. */
  constructor(start) {
    this.start = start;
    this.charts = Object.fromEntries(
      Object.entries(SPECS).map(([id, spec]) => [id, new Chart(document.getElementById(id), { height: SMALL, ...spec })]),
    );
  }

  addStep({ step, time, metrics }) {
    const seconds = metrics.rollout_seconds;
    const speed = seconds ? { sampled_per_second: metrics.tokens_sampled / seconds } : {};
    this.#merge(step, { ...metrics, ...speed, time: this.#since(time) });
  }

  addEvaluation({ step, time, accuracy, reward_mean }) {
    const before = this.#points.get(step)?.time;
    this.#merge(step, { held_out: accuracy, held_out_reward: reward_mean, time: before ?? this.#since(time) });
  }

  draw() {
    this.charts["chart-parts"].setSeries(this.#parts());
    for (const chart of Object.values(this.charts)) chart.setPoints(this.#points);
  }

  #since(time) {
    this.start ??= time;
    return Math.max(0, time - this.start);
  }

  #merge(step, values) {
    this.#points.set(step, { ...this.#points.get(step), ...values });
  }

  #parts() {
    const keys = new Set();
    for (const point of this.#points.values()) {
      for (const key of Object.keys(point)) if (key.startsWith("reward_") && !NO_PARTS.has(key)) keys.add(key);
    }
    return [...keys].sort().map((key, index) => ({ key, label: key.slice("reward_".length), token: lineToken(index) }));
  }
}
